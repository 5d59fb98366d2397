r"""When ESS falls to one half: the step it happens at, and the named Gaussian predictions of it.

For a Gaussian log-ratio ``ESS = exp(-sigma^2)``, so ESS is 1/2 at ``sigma^2 = ln 2``. "A Gaussian predicts
step 14" can mean three things, which disagree once the log-ratio has skew or kurtosis; each has its own name:

* `gaussian_var`: ``exp(-Var log w)``, the variance as measured at that step;
* `gaussian_kl`: ``exp(-2 KL(pi_s||pi))``, the mean of the log-ratio in place of its variance;
* `extrapolated`: ``exp(-(c k)^2)``, the growth of sigma fitted on the first steps.

Claims ``ess-half`` and ``heavy-tail``. Other laws of the log-ratio: `theory.families`; beyond two cumulants:
`theory.cumulants`; a forecast with an interval: `theory.forecast`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.resync import FAILURE_THRESHOLD


def first_below(
    series: Any, threshold: float = FAILURE_THRESHOLD, *, sustained: int = 1, steps: Any = None
) -> Any:
    """First step at which a series falls below a threshold.

    Parameters
    ----------
    series : array_like, shape (..., n)
        One value per step, most often ESS shares; NaN ("not measured") is never below.
    threshold : float
        Strict: a value equal to it has not crossed.
    sustained : int
        Steps in a row that must be below; the first of them is returned. 1: a single dip counts.
    steps : array_like, shape (n,), optional
        Step of each entry; 1, 2, ..., n if left out, as in the step column of a trace.

    Returns
    -------
    float or array, shape (...)
        A step; ``inf`` where the series ends without crossing (later than all that was seen); NaN where no
        entry was measured. A float for a one-dimensional series.

    Raises
    ------
    ValueError
        For a scalar series, `sustained` < 1, or `steps` of another length.
    """
    x = np.asarray(series, dtype=np.float64)
    if x.ndim == 0:
        raise ValueError("first_below needs one value per step, got a scalar; pass the series")
    if sustained < 1:
        raise ValueError(f"sustained must be >= 1 step, got {sustained}; 1 counts a single dip")
    n = x.shape[-1]
    at = np.arange(1, n + 1, dtype=np.float64) if steps is None else np.asarray(steps, dtype=np.float64)
    if at.shape != (n,):
        raise ValueError(f"steps must have one entry per value, got {at.shape} for {n} values")
    below = x < threshold
    start = np.zeros(x.shape, dtype=bool)
    if n >= sustained:
        start[..., : n - sustained + 1] = np.lib.stride_tricks.sliding_window_view(
            below, sustained, axis=-1
        ).all(axis=-1)
    out = np.where(start, at, np.inf).min(axis=-1, initial=np.inf)
    out = np.where(np.isnan(x).all(axis=-1), np.nan, out)
    return float(out) if out.ndim == 0 else out


def gaussian_var(k2: Any, /) -> Any:
    """ESS of a Gaussian log-ratio from its variance `k2` in nats squared: ``exp(-k2)``."""
    return np.exp(-np.asarray(k2, dtype=np.float64))


def gaussian_kl(k1: Any, /) -> Any:
    """ESS of a Gaussian log-ratio from its mean `k1` = E log w = -KL(pi_s||pi) in nats: ``exp(2 k1)``.

    A normalised Gaussian ratio has mean ``-sigma^2/2``. In general ``-2 k1 = k2 + k3/3 + k4/12 + ...``, so
    left skew, which suppressed actions cause, makes this predictor read higher than `gaussian_var`.
    """
    return np.exp(2 * np.asarray(k1, dtype=np.float64))


def extrapolated(k2: Any, /, *, fit: int, lag: Any = None, horizon: int | None = None) -> np.ndarray:
    """ESS of a Gaussian log-ratio whose sigma goes on growing as in the first steps: ``exp(-(c k)^2)``.

    Parameters
    ----------
    k2 : array_like, shape (..., n)
        Variance of log w per step, nats squared; NaN entries are left out of the fit.
    fit : int
        How many of the first steps the growth rate is fitted on: least squares of sigma_k = c k.
    lag : array_like, shape (n,), optional
        Updates since the last sync at each step; 1, 2, ..., n if left out.
    horizon : int, optional
        Predict for lags 1..horizon; the lags given, if left out.

    Returns
    -------
    array, shape (..., n) or (..., horizon)
        Predicted ESS shares; NaN where nothing could be fitted.
    """
    sigma = np.sqrt(np.asarray(k2, dtype=np.float64))
    n = sigma.shape[-1]
    if not 1 <= fit <= n:
        raise ValueError(f"fit must be between 1 and the {n} steps there are, got {fit}")
    k = np.arange(1, n + 1, dtype=np.float64) if lag is None else np.asarray(lag, dtype=np.float64)
    head, k_head = sigma[..., :fit], k[:fit]
    seen = ~np.isnan(head)
    weight = np.where(seen, k_head**2, 0.0).sum(axis=-1)
    slope = np.where(seen, k_head * np.where(seen, head, 0.0), 0.0).sum(axis=-1)
    rate = np.where(weight > 0, slope / np.where(weight > 0, weight, 1.0), np.nan)
    ahead = k if horizon is None else np.arange(1, horizon + 1, dtype=np.float64)
    return np.exp(-((rate[..., None] * ahead) ** 2))


def crossing_step(s2_star: float, *, drift: float, diffusion: float = 0.0) -> float:
    r"""Lag (updates since the sync, a real number) at which the log-ratio reaches the crossing variance.

    .. math:: \sigma_k^2 = c^2 k^2 + a^2 k

    Parameters
    ----------
    s2_star : float
        Variance of log w at which ESS is at the threshold: ``ln 2`` for a Gaussian (`theory.families`).
    drift : float
        c: growth of sigma per update, nats (learning rate included).
    diffusion : float
        a: spread per square root of an update from sampling noise, nats; 0: linear lag.

    Returns
    -------
    float
        ``inf`` if nothing grows; NaN for an undefined variance.
    """
    if drift < 0 or diffusion < 0:
        raise ValueError(f"drift and diffusion are rates >= 0, got {drift} and {diffusion}")
    if math.isnan(s2_star):
        return math.nan
    if drift == 0:
        return s2_star / diffusion**2 if diffusion > 0 else math.inf
    if diffusion == 0:
        return math.sqrt(s2_star) / drift
    # the root with the conjugate: no cancellation when diffusion dominates
    a2, c2 = diffusion**2, drift**2
    return 2 * s2_star / (a2 + math.sqrt(a2 * a2 + 4 * c2 * s2_star))
