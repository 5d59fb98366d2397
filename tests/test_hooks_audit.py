"""From a framework's own batch through its hook into the audit: read as the hook's format, judged rightly.

The data are synthetic logs in the shapes the four frameworks hold: padded tensors, nested tensors, lists of
tensors, files of exports. A healthy one is left in peace; the same with a fault has it named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from audit_cases import bf16, in_steps, raw_at_temperature, shifted
from audit_files import prime_rl as write_exports
from audit_logs import Log

torch = pytest.importorskip("torch")

from real.hooks import prime_rl, slime  # noqa: E402
from real.hooks import verl as verl_hook  # noqa: E402
from real.hooks.canonical import append  # noqa: E402
from validation.audit.run import Audit, audit  # noqa: E402

STEPS = 4
LEFT, RIGHT = 3, 5
"""Padding on either side of a batch"""


def _rows(log: Log, step: int) -> np.ndarray:
    return np.flatnonzero(log.step == step)


def through_trl(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TRL: one padded batch a step."""
    hook = pytest.importorskip("real.hooks.trl")
    file = folder / "trace.jsonl"
    for step in range(1, STEPS + 1):
        at = _rows(log, step)

        def padded(values: np.ndarray, at: np.ndarray = at) -> Any:
            return torch.tensor(np.pad(values[at], ((0, 0), (0, RIGHT))))

        prompts = np.array([[0] * LEFT + log.prompts[i] for i in at])
        batch = {
            "prompt_ids": torch.tensor(prompts),
            "prompt_mask": torch.tensor(prompts > 0).long(),
            "completion_ids": padded(log.ids),
            "completion_mask": padded(log.mask),
            "advantages": torch.full((len(at),), 0.7),
            "old_per_token_logps": padded(log.pi_s),  # type: ignore[arg-type]
            "sampling_per_token_logps": padded(log.mu),
        }
        append(file, hook.rows([batch], step=step))
    return file


def through_verl(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Verl: nested tensors, the sampler in sync."""
    file = folder / "trace.jsonl"
    for step in range(1, STEPS + 1):
        at = _rows(log, step)

        def nested(values: Any, at: np.ndarray = at) -> Any:
            parts = [torch.tensor(values[i]) for i in at]
            return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

        data = {
            "prompts": nested(log.prompts),
            "responses": nested(log.ids),
            "response_mask": nested(log.mask),
            "rollout_log_probs": nested(log.mu),
            "old_log_probs": nested(log.pi_s),
            "rm_scores": nested(np.zeros_like(log.mu)),
        }
        tags = [{"min_global_steps": step - 1, "max_global_steps": step - 1}] * len(at)
        append(file, verl_hook.rows(data, tags, step=step, bypass=False))
    return file


def through_slime(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slime: lists of tensors, one file a rank."""
    monkeypatch.setenv("LAGFLOOR_DUMP", str(folder / "trace"))
    monkeypatch.setenv("RANK", "0")
    args = SimpleNamespace(colocate=True, update_weights_interval=1, rollout_temperature=1.0)
    for step in range(1, STEPS + 1):
        at = _rows(log, step)

        def tensors(values: Any, at: np.ndarray = at) -> list[Any]:
            return [torch.tensor(values[i]) for i in at]

        data = {
            "tokens": [torch.tensor([*log.prompts[i], *log.ids[i]]) for i in at],
            "response_lengths": [log.ids.shape[1]] * len(at),
            "loss_masks": tensors(log.mask),
            "rollout_log_probs": tensors(log.mu),
            "log_probs": tensors(log.pi_s),
            "advantages": tensors(np.full(log.mu.shape, 0.7)),
            "weight_versions": [[str(step)]] * len(at),
            "rewards": [1.0] * len(at),
        }
        slime.write(args, step - 1, data)
    return folder / "trace.rank0.jsonl"


def through_prime_rl(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rewrite the token exports of prime-rl."""
    exports = write_exports(log, folder / "token_exports")
    out = folder / "trace.jsonl"
    assert prime_rl.main([str(exports), str(out)]) == 0
    return out


Through = Callable[[Log, Path, pytest.MonkeyPatch], Path]
HOOKS: dict[str, Through] = {
    "trl": through_trl,
    "verl": through_verl,
    "slime": through_slime,
    "prime-rl": through_prime_rl,
}


def audited(hook: str, log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Audit:
    columns = in_steps(len(log.ids), STEPS)
    log.step = columns["step"]
    told = audit([str(HOOKS[hook](log, folder, monkeypatch))])
    assert [f.format for f in told.inputs] == ["canonical"]
    assert told.numbers["counts"]["tokens_compared"] == log.ids.size
    return told


@pytest.mark.parametrize("hook", HOOKS)
def test_a_healthy_run_is_healthy_through_each_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    told = audited(hook, bf16(np.random.default_rng(5)), tmp_path, monkeypatch)
    assert [f for f in told.findings if not f.healthy] == []


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [(raw_at_temperature(0.6), "sampled-vs-reported"), (shifted(1), "alignment-tokens-masks")],
)
def test_a_fault_is_named_through_each_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, fault: Callable[..., Log], kind: str
) -> None:
    told = audited(hook, fault(np.random.default_rng(6)), tmp_path, monkeypatch)
    assert told.findings[0].kind == kind
