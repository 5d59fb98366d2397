r"""Forecast of the crossing step, with an interval, from the ESS of the first steps alone.

Let ``y = -log ESS``: the sum of all cumulants of the log-ratio with their coefficients (`theory.cumulants`),
not its variance. Theory gives its growth with the lag k: ``k^2`` where the policy drifts, k where sampling
noise moves it, and less than either as learning saturates. So ``x = log y`` is followed in ``u = log k``,
where its slope starts near 2 and relaxes towards 1 at an unknown rate while it wanders:

.. math:: dx = s\,du, \quad ds = -\kappa (s - 1)\,du + \tau\,dW, \quad \text{reading} = x + r\,\text{noise}

A Kalman filter follows (x, s) for each of a few values of kappa, tau and r; their likelihoods weigh them, and
paths drawn forward from the mixture give the distribution of the first step with y above the threshold. The
grids were fixed on toy environments used for nothing else. Claim ``forecast``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from theory.batch import on_host
from theory.limits import refuse_count, refuse_number, refuse_real, shown
from theory.resync import FAILURE_THRESHOLD

RELAXATION = (0.5, 1.0)
"""kappa: decay of the slope towards 1 per e-fold of the lag"""
WANDERING = (0.5, 1.0, 2.0)
"""tau: spread of the slope after one e-fold of the lag"""
READING_ERROR = (0.05, 0.1, 0.2)
"""r: error of log y; a batch of thousands of draws reads y to 5%"""
START_SLOPE = 2.0
"""Linear lag: y grows as the square"""
START_SPREAD = 0.3
"""Spread of the first slope; between drift (2) and some diffusion"""
FINEST = 1000
"""Lag from which paths take steps of its thousandth, and not of one update: the work grows with its log"""
LEAST = 1e-9
"""y below it is rounding, not lag"""


class Forecast(NamedTuple):
    """Predicted crossing, in updates since the sync (the lag), with a central interval."""

    step: float
    """Median; ``inf``: beyond the horizon more often than not; NaN: nothing was measured"""
    low: float
    high: float
    level: float
    """Coverage the interval was built for"""
    at: float
    """Lag at which the forecast was made"""


class _Filter(NamedTuple):
    """State of the mixture after the last reading: G models."""

    log_weight: np.ndarray
    """(G,)"""
    mean: np.ndarray
    """(G, 2): x and its slope"""
    cov: np.ndarray
    """(G, 2, 2)"""


def forecast(
    ess: Any,
    /,
    *,
    lag: Any = None,
    threshold: float = FAILURE_THRESHOLD,
    level: float = 0.9,
    horizon: float = 20.0,
    paths: int = 2000,
    seed: int = 0,
) -> Forecast:
    """Predict the lag at which ESS falls below a threshold.

    Parameters
    ----------
    ess : array_like, shape (n,)
        ESS of the lag ratio after each step so far, any level; NaN for what was not measured, above 1 (of a
        truncated series) for no lag. From a log that
        only has cumulants: `theory.cumulants.ess_from_cumulants`, while y is below about .05.
    lag : array_like, shape (n,), optional
        Updates since the sync at each entry; 1, 2, ..., n if left out. What precedes the last sync is
        dropped.
    threshold : float
        ESS that counts as failed.
    level : float
        Coverage of the interval.
    horizon : float
        Look ahead to this multiple of the present lag.
    paths : int
        Paths drawn.
    seed : int
        Of the paths.

    Returns
    -------
    Forecast

    Raises
    ------
    ValueError
        For a level or threshold outside (0, 1), a horizon below 1, no path, a negative or infinite ESS, a lag
        that is not finite, or one ESS and lag too few or many.
    """
    for name, share in (("level", level), ("threshold", threshold)):
        refuse_number(f"{name} of a forecast", share)
        if not 0 < share < 1:
            raise ValueError(
                f"{name} of a forecast lies strictly between 0 and 1, got {shown(share)}; leave it out for "
                "the usual one"
            )
    refuse_real("horizon", horizon, least=1)
    refuse_count("paths", paths, least=1)
    refuse_count("seed", seed, least=0, most=math.inf)
    share, k = _readings(ess, lag)
    with np.errstate(divide="ignore"):  # an ESS of 0 is beyond every threshold
        y = -np.log(share)
    restart = np.flatnonzero(np.diff(k) <= 0)
    since = restart[-1] + 1 if restart.size else 0
    y, k = y[since:], k[since:]
    seen = ~np.isnan(y) & (y > LEAST) & (k > 0)
    if not seen.any():
        return Forecast(math.nan, math.nan, math.nan, level, float(k[-1]) if k.size else math.nan)
    target = math.log(-math.log(threshold))
    x, at = np.log(y[seen]), k[seen]
    if x[-1] >= target:
        crossed = float(at[np.argmax(x >= target)])
        return Forecast(crossed, crossed, crossed, level, float(at[-1]))
    x, at = x[np.isfinite(x)], at[np.isfinite(x)]
    models = np.array(list(itertools.product(RELAXATION, WANDERING, READING_ERROR)))
    crossing = _first_passage(_follow(x, at, models), models, at[-1], target, horizon, paths, seed)
    tail = (1 - level) / 2
    low, middle, high = np.quantile(crossing, [tail, 0.5, 1 - tail], method="nearest")
    return Forecast(float(middle), float(low), float(high), level, float(at[-1]))


def _readings(ess: Any, lag: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check one ESS and one lag per step, shapes (n,)."""
    share = on_host(ess, what="ESS readings").astype(np.float64)
    k = np.arange(1.0, share.size + 1) if lag is None else on_host(lag, what="lags").astype(np.float64)
    if share.ndim != 1 or k.shape != share.shape:
        raise ValueError(
            f"forecast needs one ESS and one lag per step, got {share.shape} and {k.shape}; pass two lists "
            "of one length"
        )
    if (share < 0).any() or np.isinf(share).any():
        raise ValueError(
            f"an ESS is a share, got {share[(share < 0) | np.isinf(share)][0]:g}; pass NaN for what was not "
            "measured"
        )
    if not np.isfinite(k).all():
        raise ValueError(f"a lag is a number of updates, got {k[~np.isfinite(k)][0]:g}; drop that step")
    return share, k


def _follow(x: np.ndarray, lag: np.ndarray, models: np.ndarray) -> _Filter:
    """Kalman filter of (x, slope) over log lag, for all models at once."""
    kappa, tau, error = models.T
    mean = np.zeros((len(models), 2))
    mean[:, 0], mean[:, 1] = x[0], START_SLOPE
    cov = np.zeros((len(models), 2, 2))
    cov[:, 0, 0], cov[:, 1, 1] = error**2, START_SPREAD**2
    log_weight = np.zeros(len(models))
    for reading, du in zip(x[1:], np.diff(np.log(lag)), strict=True):
        decay = np.exp(-kappa * du)
        mean = np.stack([mean[:, 0] + du * mean[:, 1], 1 + decay * (mean[:, 1] - 1)], axis=-1)
        move = np.zeros_like(cov)
        move[:, 0, 0], move[:, 0, 1], move[:, 1, 1] = 1.0, du, decay
        shock = tau[:, None, None] ** 2 * np.array([[du**3 / 3, du**2 / 2], [du**2 / 2, du]])
        cov = move @ cov @ np.swapaxes(move, -1, -2) + shock
        spread = cov[:, 0, 0] + error**2
        surprise = reading - mean[:, 0]
        log_weight -= (np.log(spread) + surprise**2 / spread) / 2
        gain = cov[:, :, 0] / spread[:, None]
        mean = mean + gain * surprise[:, None]
        cov = cov - gain[:, :, None] * cov[:, None, 0, :]
    return _Filter(log_weight, mean, cov)


def _first_passage(
    state: _Filter, models: np.ndarray, lag: float, target: float, horizon: float, paths: int, seed: int
) -> np.ndarray:
    """Lag of each path's first step at or above the target; inf beyond the horizon."""
    rng = np.random.default_rng(seed)
    weight = np.exp(state.log_weight - state.log_weight.max())
    model = rng.choice(len(models), size=paths, p=weight / weight.sum())
    kappa, tau = models[model, 0], models[model, 1]
    # a covariance that rounding left without full rank still has a factor with this much on the diagonal
    factor = np.linalg.cholesky(state.cov + 1e-12 * np.eye(2))[model]
    drawn = state.mean[model] + np.einsum("pij,pj->pi", factor, rng.normal(size=(paths, 2)))
    x, slope = drawn.T
    crossing = np.full(paths, math.inf)
    crossing[x >= target] = lag
    ahead = lag
    while ahead < horizon * lag and np.isinf(crossing).any():
        step = max(1.0, ahead // FINEST)
        du = math.log1p(step / ahead)
        ahead += step
        x = x + du * slope
        slope = 1 + np.exp(-kappa * du) * (slope - 1) + tau * math.sqrt(du) * rng.normal(size=paths)
        crossing[(x >= target) & np.isinf(crossing)] = ahead
    return crossing
