"""Measures of discrepancy and lag from three log-probabilities a token: all a foreign trainer hands over.

Suffixes: B responses, T response tokens.
"""

from __future__ import annotations

from torch import Tensor

from theory.cumulants import cumulants
from theory.decomposition import split
from theory.ess import ess_fraction, response_ess
from theory.tail import k_hat


def token_measures(
    logmu_BT: Tensor | None, logpi_s_BT: Tensor, logpi_BT: Tensor, /, *, mask_BT: Tensor
) -> dict[str, float]:
    """Keys of STEP_COLUMNS, pooled over the batch in float64; formulas are those of theory/.

    Parameters
    ----------
    logmu_BT : Tensor or None
        Log-probs under the engine, nats; None or NaN where the engine reported none: what needs them is
        absent.
    logpi_s_BT, logpi_BT : Tensor, shape (B, T)
        The trainer's at the sampler's weights and now.
    mask_BT : Tensor of bool
        True at tokens that count.
    """
    pi_s_BT, pi_BT = logpi_s_BT.double(), logpi_BT.double()
    log_w_BT = pi_BT - pi_s_BT
    log_w = log_w_BT[mask_BT]
    kappa = cumulants(log_w)
    found = {
        "ess_token": ess_fraction(log_w),
        "ess_sequence": response_ess(log_w_BT, mask=mask_BT),
        "k1": kappa.k1,
        "k2": kappa.k2,
        "k3": kappa.k3,
        "k4": kappa.k4,
        "k_hat": k_hat(log_w),
        "mean_w": log_w.exp().mean(),
        "lag_rms": log_w.square().mean().sqrt(),
    }
    if logmu_BT is not None and not logmu_BT[mask_BT].isnan().any():
        mu_BT = logmu_BT.double()
        discrepancy = split(mu_BT[mask_BT], pi_s_BT[mask_BT], pi_BT[mask_BT]).discrepancy
        found["discrepancy_rms"] = discrepancy.square().mean().sqrt()
        found["ess_total"] = ess_fraction((pi_BT - mu_BT)[mask_BT])
    return {name: value.item() for name, value in found.items()}
