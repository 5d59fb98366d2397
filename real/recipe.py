"""How the warm start of each task is trained: what was found to work, as data.

A recipe draws its batches among solutions of like length, so that short ones do not pay for long ones, and
may weigh the tokens that end an attempt more than the rest: they are few, and all of stopping is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from real.task import EOS, PAD, Problem, Task
from real.tasks import TaskName
from theory.limits import refuse_count, refuse_real, refuse_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Supervised training on solutions of training problems."""

    steps: int
    batch: int = 128
    pool: int = 60_000
    """Problems the batches are drawn from"""
    peak_lr: float = 4e-3
    horizon: int | None = None
    """Steps over which the learning rate falls; None: `steps`. A longer one stops a recipe before its end"""
    neighbours: int | None = None
    """Solutions of like length a batch is drawn among; None: all of the pool"""
    decisions: str = ""
    """Characters that, with the end mark, say whether the target is hit and whether to go on"""
    decision_weight: float = 1.0
    """Of those tokens in the loss; all others count 1"""

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for field in ("steps", "batch", "pool"):
            refuse_count(field, getattr(self, field), least=1)
        for field in ("horizon", "neighbours"):
            if getattr(self, field) is not None:
                refuse_count(field, getattr(self, field), least=1)
        for field in ("peak_lr", "decision_weight"):
            refuse_real(field, getattr(self, field), least=0)
        refuse_text("decisions", self.decisions)


RECIPES: Mapping[TaskName, Recipe] = MappingProxyType(
    {
        # what 70 CPU-seconds gave when the recipe was found; accuracy at temperature 1 then is about .4
        "countdown": Recipe(steps=853),
        # stopped early: after these 80 CPU-seconds the policy stops at the target (after .93 of its hits and
        # .014 of its misses) and half of its arithmetic is right: accuracy is about .3, with room to rise
        "search": Recipe(
            steps=600,
            horizon=3200,
            batch=64,
            pool=20_000,
            neighbours=256,
            decisions=";!x",
            decision_weight=3.0,
        ),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The pool as token ids."""

    prompt_NP: Tensor
    answer_NT: Tensor
    """Padded at the end"""
    weight_NT: Tensor
    """Of each token in the loss; 0 at padding"""

    def batch(self, recipe: Recipe, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw prompts, answers cut to the longest of them, and weights."""
        count = len(self.prompt_NP)
        near = count if recipe.neighbours is None else min(recipe.neighbours, count)
        start = 0 if near == count else int(torch.randint(0, count - near + 1, (1,), generator=draw))
        pick_B = start + torch.randint(0, near, (recipe.batch,), generator=draw)
        T = int((self.answer_NT[pick_B] != PAD).sum(-1).max())
        return self.prompt_NP[pick_B], self.answer_NT[pick_B, :T], self.weight_NT[pick_B, :T]


def examples(pool: list[Problem], task: Task, recipe: Recipe, /) -> Examples:
    """Encode a pool; by length where the recipe draws among neighbours."""
    if recipe.neighbours is not None:
        pool = sorted(pool, key=lambda problem: len(problem.solution))
    answers = [[*task.encode(p.solution), EOS] for p in pool]
    answer_NT = torch.tensor([a + [PAD] * (task.response_tokens - len(a)) for a in answers])
    weight_NT = (answer_NT != PAD).float()
    if recipe.decision_weight != 1:
        decides = torch.tensor([EOS, *task.encode(recipe.decisions)])
        weight_NT[torch.isin(answer_NT, decides)] = recipe.decision_weight
    return Examples(torch.tensor([task.encode(p.prompt) for p in pool]), answer_NT, weight_NT)
