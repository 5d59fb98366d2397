"""A full-size batch as tables: what the trace keeps of it, and padded for the measures.

Suffixes: B responses, T tokens, N tokens of all responses one after another, C prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from real.fullsize.engine import FullRollout
from real.fullsize.trainer import FullStep


class Update(NamedTuple):
    """One batch and what was made of it."""

    rollout: FullRollout
    taken: FullStep
    measures: dict[str, float]
    tokens: dict[str, np.ndarray]
    """Columns of TOKEN_COLUMNS"""
    sequences: dict[str, np.ndarray]
    """Columns of SEQUENCE_COLUMNS"""


def padded(rollout: FullRollout, taken: FullStep) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the mask (B, T) and log mu, log pi_s, log pi at the sampled tokens, padded with 0."""
    lengths = torch.tensor(rollout.lengths)
    mask_BT = torch.arange(max(int(lengths.max()), 1)) < lengths[:, None]

    def table(x_N: Tensor) -> Tensor:
        out = torch.zeros(mask_BT.shape)
        out[mask_BT] = x_N.float()
        return out

    return mask_BT, (table(rollout.mu.logp_a), table(taken.logpi_s_N), table(taken.logpi_N))


def token_table(
    step: int, rollout: FullRollout, taken: FullStep, advantage_B: Tensor
) -> dict[str, np.ndarray]:
    """Return the columns of TOKEN_COLUMNS, one row per response token."""
    lengths = np.array(rollout.lengths)
    count = int(lengths.sum())
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return {
        "step": np.full(count, step, dtype=np.int32),
        "sequence": np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        "position": (np.arange(count) - starts).astype(np.int32),
        "token": rollout.mu.ids[:, 0].numpy(),
        "mask": np.ones(count, dtype=bool),
        "logmu": rollout.mu.logp_a.numpy(),
        "logpi_s": taken.logpi_s_N.numpy(),
        "logpi": taken.logpi_N.numpy(),
        "advantage": np.repeat(advantage_B.numpy(), lengths),
    }
