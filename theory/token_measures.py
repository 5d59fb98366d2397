"""Measures of discrepancy and lag from three log-probabilities a token: all any trainer has to hand over.

Every name is a key of `theory.records.STEP_COLUMNS`; everything is pooled, raw and in float64.
"""

from __future__ import annotations

from theory.arrays import Array, namespace
from theory.cumulants import cumulants
from theory.decomposition import split
from theory.ess import ess_fraction, response_ess
from theory.tail import k_hat


def token_measures(logmu: Array | None, logpi_s: Array, logpi: Array, /, *, mask: Array) -> dict[str, float]:
    """Measures over the tokens of a batch and, where they are one number a response, over its responses.

    Parameters
    ----------
    logmu : array, shape (B, T), or None
        Log-probs under the engine, nats. None, or a NaN at a token that counts: the engine reported none, and
        what needs them is absent.
    logpi_s, logpi : array, shape (B, T)
        The trainer's at the sampler's weights and now.
    mask : array of bool, shape (B, T)
        True at tokens that count; what stands elsewhere never matters.

    Returns
    -------
    dict
        Empty where no token counts.
    """
    xp = namespace(logpi_s, logpi, mask)
    if not bool(xp.any(mask)):
        return {}
    pi_s, pi = xp.astype(logpi_s, xp.float64), xp.astype(logpi, xp.float64)
    log_w = (pi - pi_s)[mask]
    kappa = cumulants(log_w)
    found = {
        "ess_token": ess_fraction(log_w),
        "ess_sequence": response_ess(pi - pi_s, mask=mask),
        "k1": kappa.k1,
        "k2": kappa.k2,
        "k3": kappa.k3,
        "k4": kappa.k4,
        "k_hat": k_hat(log_w),
        "mean_w": xp.mean(xp.exp(log_w)),
        "lag_rms": xp.sqrt(xp.mean(log_w**2)),
    }
    if logmu is not None and not bool(xp.any(xp.isnan(logmu[mask]))):
        mu = xp.astype(logmu, xp.float64)
        parts = split(mu[mask], pi_s[mask], pi[mask])
        found["discrepancy_rms"] = xp.sqrt(xp.mean(parts.discrepancy**2))
        found["ess_total"] = ess_fraction((pi - mu)[mask])
    return {name: float(value) for name, value in found.items()}
