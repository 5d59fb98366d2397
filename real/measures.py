"""What a step reports, from three rows at every sampled prefix: mu, pi_s, and pi after the update.

Suffixes as in `real.samplers.base`. All formulas are those of theory/, in float64.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from real.model import at_tokens
from real.samplers.base import Rollout
from theory.decomposition import kl
from theory.token_measures import token_measures


def lag_measures(rollout: Rollout, logpi_s_BTV: Tensor, logpi_BTV: Tensor, /) -> dict[str, float]:
    """Measures of discrepancy and lag over the batch at the new weights, keys of STEP_COLUMNS.

    Parameters
    ----------
    rollout : Rollout
        The batch, with the rows it was sampled from.
    logpi_s_BTV, logpi_BTV : Tensor, shape (B, T, V)
        The trainer's rows at the sampler's weights and now.
    """
    mask_BT, tokens_BT = rollout.mask_BT, rollout.response_BT
    logmu_BT, logpi_s_BT, logpi_BT = (
        x.double()
        for x in (rollout.logmu_BT, at_tokens(logpi_s_BTV, tokens_BT), at_tokens(logpi_BTV, tokens_BT))
    )
    found = token_measures(logmu_BT, logpi_s_BT, logpi_BT, mask=mask_BT)
    kl_BT = kl(rollout.logmu_BTV.double(), logpi_BTV.double())
    return found | {"kl_sampler": kl_BT[mask_BT].mean().item()}


def token_table(
    step: int, rollout: Rollout, logpi_s_BTV: Tensor, logpi_BTV: Tensor, advantage_CN: Tensor
) -> dict[str, np.ndarray]:
    """Columns of TOKEN_COLUMNS, one row per response token."""
    mask_BT, tokens_BT = rollout.mask_BT, rollout.response_BT
    sequence, position = (x.numpy() for x in torch.nonzero(mask_BT, as_tuple=True))
    entropy_BT = -(logpi_s_BTV.exp() * logpi_s_BTV).sum(-1)
    kept_BT = rollout.logmu_BTV.isfinite().to(torch.float32) * logpi_s_BTV.exp()
    return {
        "step": np.full(len(sequence), step, dtype=np.int32),
        "sequence": sequence.astype(np.int32),
        "position": position.astype(np.int32),
        "token": tokens_BT[mask_BT].numpy().astype(np.int32),
        "mask": np.ones(len(sequence), dtype=bool),
        "logmu": rollout.logmu_BT[mask_BT].numpy(),
        "logpi_s": at_tokens(logpi_s_BTV, tokens_BT)[mask_BT].numpy(),
        "logpi": at_tokens(logpi_BTV, tokens_BT)[mask_BT].numpy(),
        "advantage": advantage_CN.reshape(-1, 1).expand(mask_BT.shape)[mask_BT].numpy(),
        "entropy": entropy_BT[mask_BT].numpy(),
        "kept_mass": kept_BT.sum(-1)[mask_BT].numpy(),
    }
