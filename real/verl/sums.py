"""Measures that survive verl's averaging: sums of powers of the lag ratio; the ESS of their means is exact.

verl averages every metric of a loss over micro-batches and ranks. A mean of ESS is not the ESS of the pool,
but the number of micro-batches cancels in ``(mean of sums of w)^2 / (mean of n * mean of sums of w^2)``.
Exact within one mini-batch; over several it needs equally many micro-batches in each.

Suffixes: B responses, T response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from theory.ess import EssState, ess_from_state, response_log_ratio

PREFIX = "actor/lag_"
"""verl puts "actor/" before the names of a loss's metrics where it is not there"""


def lag_sums(logpi_s_BT: Tensor, logpi_BT: Tensor, mask_BT: Tensor, /) -> dict[str, float]:
    """Sum n, w, w^2, log w and its square over tokens, and n, w, w^2 over responses; raw, in float64."""
    log_w_BT = logpi_BT.detach().double() - logpi_s_BT.double()
    log_w = log_w_BT[mask_BT]
    of_response = response_log_ratio(log_w_BT, mask=mask_BT)[mask_BT.any(-1)]
    sums = {"n": float(log_w.numel()), "l": log_w.sum().item(), "l2": log_w.square().sum().item()}
    sums |= {"rn": float(of_response.numel())}
    for name, x in (("w", log_w), ("rw", of_response)):
        sums |= {name: x.exp().sum().item(), f"{name}2": (2 * x).exp().sum().item()}
    return {PREFIX + name: value for name, value in sums.items()}


def measures_of_sums(metrics: Mapping[str, Any], /) -> dict[str, float]:
    """Keys of STEP_COLUMNS from averaged sums; empty where no token counted."""
    n = float(metrics.get(f"{PREFIX}n", 0.0))
    if n == 0:
        return {}
    got = {name: float(metrics[PREFIX + name]) for name in ("w", "w2", "l", "l2", "rn", "rw", "rw2")}
    return {
        "ess_token": _ess(n, got["w"], got["w2"]),
        "ess_sequence": _ess(got["rn"], got["rw"], got["rw2"]),
        "k1": got["l"] / n,
        "k2": got["l2"] / n - (got["l"] / n) ** 2,
        "mean_w": got["w"] / n,
        "lag_rms": (got["l2"] / n) ** 0.5,
    }


def _ess(n: float, w: float, w2: float) -> float:
    with np.errstate(divide="ignore"):
        state = EssState(np.asarray(n), np.log(np.asarray(w)), np.log(np.asarray(w2)), np.asarray(np.nan))
    return float(ess_from_state(state))
