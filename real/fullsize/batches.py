"""Micro-batches of a rollout: sequences of like length together, padded, and which tokens they hold.

Suffixes: b sequences of a micro-batch, L tokens of its longest, n response tokens in it, N of the whole
rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some sequences of a rollout."""

    input_bL: Tensor
    """Prompt and response, padded on the right: causal attention never sees the padding from a real token"""
    predicts_bL: Tensor
    """True at positions whose output predicts a response token; in row-major order these are `tokens_n`"""
    tokens_n: Tensor
    """Index of each of those tokens among the N of the rollout"""


def micro_batches(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    /,
    *,
    tokens: int,
    only: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """Cut responses into micro-batches.

    Parameters
    ----------
    prompts : sequences of int
        One a prompt.
    responses : sequences of int
        Group-major.
    tokens : int
        Padded tokens in one micro-batch; a single longer sequence is still one.
    only : sequence of int, optional
        Indices of the responses to take; None: all.

    Returns
    -------
    list of MicroBatch
        Together they hold every token of the chosen responses once. An empty response holds none.
    """
    samples = len(responses) // len(prompts)
    starts = torch.tensor([0, *(len(r) for r in responses)]).cumsum(0).tolist()
    chosen = [i for i in (range(len(responses)) if only is None else only) if responses[i]]
    chosen.sort(key=lambda i: len(prompts[i // samples]) + len(responses[i]))
    groups: list[list[int]] = []
    for i in chosen:
        length = len(prompts[i // samples]) + len(responses[i])  # the longest so far: they come sorted
        if groups and (len(groups[-1]) + 1) * length <= tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [_padded(group, prompts, responses, samples, starts) for group in groups]


def _padded(
    group: list[int],
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    samples: int,
    starts: list[int],
) -> MicroBatch:
    whole = [[*prompts[i // samples], *responses[i]] for i in group]
    L = max(map(len, whole))
    input_bL = torch.zeros(len(group), L, dtype=torch.long)
    predicts_bL = torch.zeros(len(group), L, dtype=torch.bool)
    for row, (i, sequence) in enumerate(zip(group, whole, strict=True)):
        input_bL[row, : len(sequence)] = torch.tensor(sequence)
        first = len(prompts[i // samples])
        predicts_bL[row, first - 1 : len(sequence) - 1] = True
    tokens_n = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in group])
    return MicroBatch(input_bL=input_bL, predicts_bL=predicts_bL, tokens_n=tokens_n)
