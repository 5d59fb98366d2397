"""Experiments of the real engine: the mini-Qwen3 environment, the working points found for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from real.task import Task
from real.tasks import TASKS, TaskName
from theory.corrections import Correction
from theory.experiment import Experiment
from theory.limits import refuse_choice, refuse_count, refuse_real, refuse_text

SamplerName = Literal["torch", "vllm"]

TAU = 1.6
"""Flattening of the warm start. It starts accuracy at about .25, where 40 steps of plain SGD have room to
rise, and gives the policy the entropy (.8 nats a token) a lag needs to grow in. Scanned: 1, 1.3, 1.6, 2 on
seed 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mini:
    """A task with the mini-Qwen3: which start, which sampler, how it is evaluated. Hashable."""

    task: TaskName = "countdown"
    """countdown: answers of at most 8 tokens; search: traces of about 50 to 100"""
    sampler: SamplerName = "torch"
    """vllm: the engine in this process; torch: a key-value-cache loop with the same interface"""
    tau: float = TAU
    """The logits of the warm start are divided by it"""
    model: str = "mini"
    """"mini": the checkpoint shipped for the task; else a safetensors file of its model, or its folder"""
    top_k_row: int | None = None
    """Columns of the sampler's row that centring sees; None: the full row (20 or 21 columns)"""
    eval_every: int = 8
    """Steps between evaluations; the start and the last step are always evaluated"""
    eval_prompts: int = 512
    """Held-out problems, the same in every run"""
    eval_samples: int = 2
    """Responses to each"""

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        refuse_choice("task", self.task, TASKS)
        refuse_choice("sampler", self.sampler, get_args(SamplerName))
        refuse_real("tau", self.tau)
        if not self.tau > 0:
            raise ValueError(
                f"tau divides the logits, so it must be > 0, got {self.tau}; 1 leaves them alone"
            )
        for field in ("eval_every", "eval_prompts", "eval_samples"):
            refuse_count(field, getattr(self, field), least=1)
        if self.top_k_row is not None:
            refuse_count("top_k_row", self.top_k_row, least=1)
        refuse_text("model", self.model)
        if self.model != "mini" and not Path(self.model).exists():
            raise ValueError(
                f"model must be 'mini' or an existing file or folder, got {self.model!r}, which is neither; "
                "make a checkpoint with `python -m real.warmstart --out FILE`"
            )

    @property
    def definition(self) -> Task:
        """The task's own record."""
        return TASKS[self.task]


def working_point_a(
    correction: Correction, /, *, sampler: SamplerName = "torch", **changes: Any
) -> Experiment:
    """Rewards +-1, no baseline, lr .15: a mean advantage is left on every prefix, so centring matters.

    Parameters
    ----------
    correction : Correction
        From `theory.corrections.correction`.
    sampler : {"torch", "vllm"}
        Where the responses come from.
    **changes
        Fields of `Experiment`: seed, sync_every (64 is the articles' stale sampler), steps, ...
    """
    return _point(correction, sampler, {"lr": 0.15, "baseline": "none"} | changes)


def working_point_b(
    correction: Correction, /, *, sampler: SamplerName = "torch", **changes: Any
) -> Experiment:
    """Rewards +-1 minus the group's mean, lr .3: learns faster, higher noise floor. Arguments as point A."""
    return _point(correction, sampler, {"lr": 0.3, "baseline": "group"} | changes)


LONG_LR = 0.2
"""On seed 0 on-policy training learns at it (.28 to .41 in 20 steps) and a stale IS collapses by step 8; at
.1 the latter does not by step 20"""


def longer_responses(
    correction: Correction, /, *, sampler: SamplerName = "torch", **changes: Any
) -> Experiment:
    """Search traces of about 50 to 100 tokens: rewards +-1, no baseline, 24 steps of 32 x 4 responses.

    A fourth of the responses of the working points at ten times their length. The warm start is used as it
    is: it was stopped where its accuracy leaves room. Arguments as point A.
    """
    environment = Mini(task="search", sampler=sampler, tau=1.0, eval_every=4, eval_prompts=96, eval_samples=1)
    fields = {
        "environment": environment,
        "lr": LONG_LR,
        "baseline": "none",
        "steps": 24,
        "prompts": 32,
        "samples": 4,
    }
    return _point(correction, sampler, fields | changes)


def _point(correction: Correction, sampler: SamplerName, fields: dict[str, Any]) -> Experiment:
    return Experiment(**{"environment": Mini(sampler=sampler), "correction": correction, **fields})
