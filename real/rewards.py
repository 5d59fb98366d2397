"""Rewards of a rollout: +1 for a response that solves its problem and ends, -1 for any other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from real.countdown import COUNTDOWN
from real.samplers.base import Rollout
from real.task import EOS, Problem, Task


def ended(rollout: Rollout, /) -> Tensor:
    """Whether each response has its end mark, shape (B,), bool; the others were cut off at the limit."""
    return ((rollout.response_BT == EOS) & rollout.mask_BT).any(-1)


def rewards(rollout: Rollout, problems: Sequence[Problem], /, *, task: Task = COUNTDOWN) -> Tensor:
    """Reward of each response, shape (C, N), float32, in {-1, +1}.

    A response without an end mark is wrong, whatever it says.
    """
    scores = []
    rows = zip(
        rollout.response_BT.tolist(), rollout.mask_BT.sum(-1).tolist(), ended(rollout).tolist(), strict=True
    )
    for b, (tokens, length, has_end) in enumerate(rows):
        problem = problems[b // rollout.samples]
        answer = task.decode(tokens[: length - 1])
        right = has_end and task.solves(answer, problem.numbers, problem.target)
        scores.append(1.0 if right else -1.0)
    return torch.tensor(scores).reshape(len(rollout.prompt_CP), rollout.samples)
