"""What a step reports of its responses, on a model of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor


def sequence_table(
    step: int,
    *,
    samples: int,
    reward: Tensor,
    lengths: Sequence[int],
    finish: Sequence[str] | np.ndarray,
    sampler_version: int,
    trainer_version: int,
) -> dict[str, np.ndarray]:
    """Columns of `theory.records.SEQUENCE_COLUMNS`, one row per response.

    Parameters
    ----------
    step : int
        Index of the update.
    samples : int
        Responses per prompt.
    reward : Tensor, shape (C, N)
        Of prompts and their responses.
    lengths : sequence of int, one per response
        Response tokens.
    finish : sequence of str, one per response
        Why it ended.
    sampler_version, trainer_version : int
        Updates behind the weights that sampled, and that were trained.
    """
    count = len(lengths)
    number = np.arange(count, dtype=np.int32)
    return {
        "step": np.full(count, step, dtype=np.int32),
        "sequence": number,
        "group": number // samples,
        "reward": reward.reshape(-1).numpy(),
        "length": np.array(lengths, dtype=np.int32),
        "finish_reason": np.array(finish),
        "sampler_version": np.full(count, sampler_version, dtype=np.int32),
        "trainer_version": np.full(count, trainer_version, dtype=np.int32),
    }
