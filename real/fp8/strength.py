"""How far each precision moves the sampler: the discrepancy log(mu/pi_s) at equal weights, by strength.

    python -m real.fp8.strength [--sampler vllm]

Measured on the warm start of the mini-Qwen3, on responses the rounded engine itself sampled. The public
figures beside it are of models ten thousand times as large: the shape is to be compared (rare tokens differ
most), not the size. Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from real import process

process.prepare()

import torch  # noqa: E402 - after its variables are set

from real import countdown  # noqa: E402
from real.command_line import start  # noqa: E402
from real.errors import running  # noqa: E402
from real.evaluate import prompt_ids  # noqa: E402
from real.fp8.recipe import RECIPES, Recipe  # noqa: E402
from real.model import at_tokens, flatten, load, row_logps  # noqa: E402
from real.samplers.base import Sampler  # noqa: E402
from real.samplers.torch_sampler import TorchSampler  # noqa: E402
from real.settings import TAU  # noqa: E402
from theory.cumulants import cumulants  # noqa: E402
from theory.decomposition import kl  # noqa: E402
from theory.ess import ess_fraction  # noqa: E402

BUCKETS = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
"""Edges of the trainer's probability of the sampled token"""

STRENGTHS: Mapping[str, Recipe] = MappingProxyType(
    {
        **RECIPES,
        "fp8-kv": Recipe(kv="e4m3", query=True),
        "fp8-ue8m0": Recipe(weights="e4m3", activations="e4m3", kv="e4m3", query=True, ue8m0=True),
        "weight-noise .02": Recipe(noise=0.02),
        "weight-noise .05": Recipe(noise=0.05),
    }
)

PUBLIC: Mapping[str, tuple[float, tuple[float, ...]]] = MappingProxyType(
    {
        # github.com/AknA13/train-infer-mismatch: 771,300 tokens at T = 1, H200, vLLM 0.12
        "Qwen3-1.7B, bf16 both": (0.0449, (0.124, 0.108, 0.078, 0.031, 0.0010)),
        "Qwen3-1.7B, FP8 cache": (0.180, ()),
        "Qwen3-8B, FP8 cache": (0.135, ()),
    }
)
"""Rms in nats and, where published, mean absolute discrepancy in `BUCKETS`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """Discrepancy of one engine."""

    rms: float
    """Nats"""
    kurtosis: float
    """Excess; 0 for a Gaussian"""
    mean_abs: float
    kl: float
    """KL(mu||pi_s), nats a token, exact rows"""
    ess: float
    """ESS of pi_s/mu over tokens"""
    by_probability: tuple[float, ...]
    """Mean absolute discrepancy in `BUCKETS`; NaN in one without tokens"""
    tokens: int


def measure(sampler: Sampler, *, prompts: int = 64, samples: int = 8, seed: int = 0) -> Strength:
    """Sync a sampler with the warm start, draw, and compare with the trainer's rows.

    Parameters
    ----------
    sampler : Sampler
        Of the mini model; its weights are overwritten.
    prompts, samples, seed : int
        Size and seed of the draw.
    """
    trainer = load()
    flatten(trainer, TAU)
    sampler.sync(trainer.state_dict(), 0)
    rollout = sampler.sample(prompt_ids(countdown.problems(prompts, seed=seed)), samples, seed)
    with torch.no_grad():
        row_BTV = row_logps(trainer, rollout.prompt_CP, rollout.response_BT).double()
    mask_BT = rollout.mask_BT
    logpi = at_tokens(row_BTV, rollout.response_BT)[mask_BT]
    d = rollout.logmu_BT.double()[mask_BT] - logpi
    kappa = cumulants(d)
    edges = torch.tensor(BUCKETS[1:-1], dtype=torch.float64)
    bucket = torch.bucketize(logpi.exp(), edges)
    by_probability = tuple(d.abs()[bucket == i].mean().item() for i in range(len(BUCKETS) - 1))
    return Strength(
        rms=d.square().mean().sqrt().item(),
        kurtosis=float(kappa.k4 / kappa.k2**2),
        mean_abs=d.abs().mean().item(),
        kl=kl(rollout.logmu_BTV.double(), row_BTV)[mask_BT].mean().item(),
        ess=float(ess_fraction(-d)),
        by_probability=by_probability,
        tokens=len(d),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How far each precision moves the sampler, on the mini-Qwen3."""

    sampler: Literal["torch", "vllm"] = "torch"
    """Whose engine rounds"""
    seed: int = 0
    """Of the responses"""


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    return start(Settings, "python -m real.fp8.strength", _main, arguments=arguments)


def _main(given: Settings) -> int:
    with running():
        _table(given)
    return 0


def _table(given: Settings) -> None:
    buckets = " ".join(f"p<{edge:g}".rjust(7) for edge in BUCKETS[1:])
    print(f"{'':24s} {'rms':>7s} {'kurt':>6s} {'mean':>7s} {'KL':>8s} {'ESS':>6s}   mean |d| by probability")
    print(f"{'':64s} {buckets}")
    engines: dict[str, Recipe | None] = {"float32": None, "bfloat16": None, **STRENGTHS}
    for name, recipe in engines.items():
        sampler: Sampler
        if given.sampler == "torch":
            sampler = TorchSampler(recipe=recipe, bfloat16=name == "bfloat16")
        else:
            from real.samplers.vllm_sampler import VllmSampler

            sampler = VllmSampler(recipe=recipe, bfloat16=name == "bfloat16")
        try:
            found = measure(sampler, seed=given.seed)
        finally:
            sampler.close()
        cells = " ".join(f"{x:7.4f}" for x in found.by_probability)
        print(
            f"{name:24s} {found.rms:7.4f} {found.kurtosis:6.0f} {found.mean_abs:7.4f} {found.kl:8.5f} "
            f"{found.ess:6.3f}    {cells}",
            flush=True,
        )
    for name, (rms, rest) in PUBLIC.items():
        cells = " ".join(f"{x:7.4f}" for x in rest) or "  not published"
        print(f"{name:24s} {rms:7.4f} {'':30s}    {cells}")


if __name__ == "__main__":
    raise SystemExit(main())
