"""Audit our own engine blind: healthy precisions and lag, then faults planted in it.

Run as ``python benchmarks/audit_real.py [--sampler torch|vllm] [--steps 12] [--prompts 64]``.
A trace of each run is written as canonical JSON lines, as a user's trainer would, and read back from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from real.process import prepare  # noqa: E402

prepare()

import torch  # noqa: E402

from real import countdown, loop  # noqa: E402
from real.hooks.canonical import append, row  # noqa: E402
from real.model import TIED, prefill  # noqa: E402
from real.samplers import open_sampler  # noqa: E402
from real.samplers.base import Rollout  # noqa: E402
from real.settings import working_point_a  # noqa: E402
from real.sync import Proof  # noqa: E402
from theory.corrections import correction  # noqa: E402
from theory.experiment import Numerics  # noqa: E402
from theory.records import StepRecord  # noqa: E402
from validation.audit.run import Audit, audit  # noqa: E402


class Unproved(Proof):
    """Lets a faulty sync pass: the loop's own proof refuses each of the faults planted here."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.bound = self.common = float("inf")


class Faulty:
    """A sampler with a fault: what it does at a sync and to a rollout can be changed."""

    def __init__(self, sampler: Any, *, sync: Any = None, rollout: Any = None) -> None:
        self.sampler, self._sync, self._rollout = sampler, sync, rollout
        self.claimed = -1
        self.held: Mapping[str, torch.Tensor] | None = None

    @property
    def version(self) -> int:
        return self.claimed

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        given = weights if self._sync is None else self._sync(self, weights, version)
        if given is not None:
            self.held = {k: v.detach().clone() for k, v in given.items()}
            self.sampler.sync(given, version)
        self.claimed = version

    def sample(self, prompt: torch.Tensor, samples: int, seed: int) -> Rollout:
        rollout = self.sampler.sample(prompt, samples, seed)
        rollout = rollout if self._rollout is None else self._rollout(rollout)
        return Rollout(
            prompt_CP=rollout.prompt_CP,
            response_BT=rollout.response_BT,
            mask_BT=rollout.mask_BT,
            logmu_BTV=rollout.logmu_BTV,
            version=self.claimed,
        )

    def next_logps(self, prefix: torch.Tensor) -> torch.Tensor:
        return self.sampler.next_logps(prefix)

    def close(self) -> None:
        self.sampler.close()


def _skip(first: int, last: int) -> Callable[..., Any]:
    """Syncs `first` to `last` do not arrive."""
    return lambda self, weights, version: None if first <= version <= last else weights


def _old_head(self: Faulty, weights: Mapping[str, torch.Tensor], version: int) -> dict[str, torch.Tensor]:
    """Everything but the output head is updated."""
    return dict(weights) if self.held is None else dict(weights) | {TIED: self.held[TIED]}


def _only_first(self: Faulty, weights: Mapping[str, torch.Tensor], version: int) -> Any:
    return weights if self.held is None else None


COLD = 0.6


def _colder(self: Faulty, weights: Mapping[str, torch.Tensor], version: int) -> dict[str, torch.Tensor]:
    """The engine samples at T = 0.6: the last norm scales all logits."""
    return dict(weights) | {"model.norm.weight": weights["model.norm.weight"] / COLD}


def _raw(rollout: Rollout) -> Rollout:
    """What it reports is the distribution before the temperature."""
    raw = torch.log_softmax(rollout.logmu_BTV * COLD, dim=-1).masked_fill(~rollout.mask_BT[..., None], 0.0)
    return dataclasses.replace(rollout, logmu_BTV=raw)


class StaleCache(Faulty):
    """Prompts are read from keys and values of the first weights; only the last prompt token is new."""

    def sample(self, prompt: torch.Tensor, samples: int, seed: int) -> Rollout:
        model = self.sampler.model
        now = {k: v.clone() for k, v in model.state_dict().items()}
        if self.held is None or self.claimed == 0:
            self.first = now
        cache: Any = None
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.load_state_dict(self.first)
            _, cache = prefill(model, prompt[:, :-1], samples)
            model.load_state_dict(now)
            token = prompt[:, -1].repeat_interleave(samples)
            B = len(token)
            ids, masks, rows = [], [], []
            alive = torch.ones(B, dtype=torch.bool)
            for _ in range(countdown.RESPONSE_TOKENS):
                out = model(input_ids=token[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
                logmu = torch.log_softmax(out.float(), dim=-1)
                token = torch.multinomial(logmu.exp(), 1, generator=draw)[:, 0]
                token = token.masked_fill(~alive, countdown.PAD)
                ids.append(token)
                masks.append(alive)
                rows.append(logmu.masked_fill(~alive[:, None], 0.0))
                alive = alive & (token != countdown.EOS)
                if not alive.any():
                    break
        return Rollout(
            prompt_CP=prompt,
            response_BT=torch.stack(ids, 1),
            mask_BT=torch.stack(masks, 1),
            logmu_BTV=torch.stack(rows, 1),
            version=self.claimed,
        )


def lines(
    record: StepRecord, *, columns: Callable[[dict[str, np.ndarray]], None] | None = None
) -> list[dict[str, Any]]:
    """One canonical line a response; the measuring point is after the update, hence version + 1."""
    tokens = {k: np.array(v) for k, v in record.tokens.items()}
    if columns is not None:
        columns(tokens)
    out = []
    for i in range(len(record.sequences["sequence"])):
        at = tokens["sequence"] == record.sequences["sequence"][i]
        out.append(
            row(
                step=record.step,
                seq_id=i,
                response_ids=tokens["token"][at],
                mask=tokens["mask"][at],
                source="real",
                group_id=int(record.sequences["group"][i]),
                logp_mu=tokens["logmu"][at].astype(float),
                logp_pi_s=tokens["logpi_s"][at].astype(float),
                logp_pi=tokens["logpi"][at].astype(float),
                entropy=tokens["entropy"][at].astype(float),
                version=int(record.sequences["sampler_version"][i]),
                trainer_version=int(record.sequences["trainer_version"][i]) + 1,
                reward=float(record.sequences["reward"][i]),
                finish_reason=str(record.sequences["finish_reason"][i]),
            )
        )
    return out


EXACT = Numerics()


def shift(tokens: dict[str, np.ndarray]) -> None:
    """Move the engine's log-probs by one token within each response."""
    for i in np.unique(tokens["sequence"]):
        at = np.flatnonzero(tokens["sequence"] == i)
        tokens["logmu"][at] = np.roll(tokens["logmu"][at], 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: precision, sync period, and the fault planted in it."""

    numerics: Numerics = EXACT
    sync_every: int = 1
    wrap: Callable[[Any], Any] = lambda sampler: sampler
    columns: Callable[[dict[str, np.ndarray]], None] | None = None
    torch_only: bool = False
    lr: float = 0.15


SETTINGS: dict[str, Setting] = {
    "fp32, synced": Setting(),
    "bf16, synced": Setting(numerics=Numerics(kind="bf16")),
    "fp8, synced": Setting(numerics=Numerics(kind="fp8")),
    "fp32, lag to 6": Setting(sync_every=6),
    "bf16, lag to 6": Setting(numerics=Numerics(kind="bf16"), sync_every=6),
    "fp8, lag to 6": Setting(numerics=Numerics(kind="fp8"), sync_every=6),
    "fp8, never synced": Setting(numerics=Numerics(kind="fp8"), sync_every=64),
    "FAULT syncs 4 to 6 skipped": Setting(wrap=lambda s: Faulty(s, sync=_skip(4, 6))),
    "FAULT never synced, claims it is": Setting(wrap=lambda s: Faulty(s, sync=_only_first)),
    "FAULT never synced, claims each third": Setting(
        wrap=lambda s: Faulty(s, sync=_only_first), sync_every=3
    ),
    "FAULT tied head not updated": Setting(wrap=lambda s: Faulty(s, sync=_old_head)),
    "FAULT T=.6, raw log-probs": Setting(wrap=lambda s: Faulty(s, sync=_colder, rollout=_raw)),
    "FAULT T=.6, trainer at 1": Setting(wrap=lambda s: Faulty(s, sync=_colder)),
    "FAULT ids shifted by one": Setting(columns=shift),
    "FAULT prefix cache not reset": Setting(wrap=StaleCache, torch_only=True),
}


def audited(name: str, options: argparse.Namespace) -> Audit:
    """Run one setting, write its trace, audit it blind."""
    setting = SETTINGS[name]
    experiment = working_point_a(
        correction("is"),
        sampler=options.sampler,
        steps=options.steps,
        prompts=options.prompts,
        samples=options.samples,
        sync_every=setting.sync_every,
        numerics=setting.numerics,
        lr=setting.lr,
        seed=options.seed,
    )
    sampler = setting.wrap(open_sampler(experiment.environment, setting.numerics, seed=options.seed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"

        def write(record: StepRecord) -> None:
            append(path, lines(record, columns=setting.columns))

        try:
            loop.Proof = Unproved if name.startswith("FAULT") else Proof
            loop.run(experiment, sampler=sampler, on_step=write)
        finally:
            sampler.close()
        return audit([str(path)])


def main() -> None:
    """Print one block a setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    told: dict[str, Any] = {}
    for name in options.only or SETTINGS:
        if SETTINGS[name].torch_only and options.sampler != "torch":
            continue
        answer = audited(name, options)
        numerics, lag = answer.numbers["numerics"], answer.numbers["lag"]
        print(
            f"{name}: rms d {numerics['rms']:.3g}, rms lag {lag['rms']:.3g}, "
            f"token ESS of the lag {lag['ess_token_raw']:.3f}"
        )
        for finding in answer.findings:
            weight = f"{finding.confidence:.2f}, explains {finding.explains:.2f}"
            print(f"    {finding.kind} ({weight}): {finding.fault}")
        if not answer.findings:
            print("    nothing wrong in these logs")
        told[name] = [f.to_dict() for f in answer.findings]
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
