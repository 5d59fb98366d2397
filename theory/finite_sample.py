r"""What a sample says of the ESS: its bias, its standard error, and an interval that respects groups.

``ESS^ = (sum w)^2/(n sum w^2)`` reads high under heavy tails, and slowly less so as n grows, because the few
weights that dominate E w^2 are rarely in the sample: a monitor on it fires late. The formulas below need
moments of w up to the fourth, which heavy tails do not have; then only k-hat tells (`theory.tail`).
Claims ``ess-half`` and ``monitor``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from theory.arrays import logsumexp
from theory.ess import EssState, ess_fraction, ess_from_state
from theory.limits import refuse_count, refuse_number

BLOCK = 64
"""Resamples drawn at a time: bounds the memory to 64 counts per group"""


def ess_bias(m2: float, m3: float, m4: float, n: int, /) -> float:
    r"""Bias of the sample ESS to order 1/n, from the moments ``m_r = E w^r`` of a ratio of mean one.

    .. math:: \frac1n \Big( 1 - \frac{2 m_3}{m_2^2} + \frac{m_4}{m_2^3} \Big)

    Always finite for finite moments; +5/n for a Gaussian log-ratio at ESS 1/2, so that 10 draws say nothing.
    """
    if n < 1:
        raise ValueError(f"needs at least one draw, got n = {n}")
    return (1 - 2 * m3 / m2**2 + m4 / m2**3) / n


def gaussian_ess_bias(s2: float, n: int, /) -> float:
    """`ess_bias` of a Gaussian log-ratio of variance `s2` (nats squared): ``m_r = exp(r (r-1) s2/2)``."""
    return ess_bias(math.exp(s2), math.exp(3 * s2), math.exp(6 * s2), n)


def log_ess_variance(m2: float, m3: float, m4: float, /) -> float:
    """Variance of log ESS^ times n by the delta method, ``Var(2w - w^2/m2)``, for a ratio of mean one.

    Good from about a thousand draws on; below, it promises too much.
    """
    return 4 * m2 - 1 - 4 * m3 / m2 + m4 / m2**2


class EssInterval(NamedTuple):
    """Sample ESS with a percentile interval; shares."""

    ess: float
    low: float
    high: float
    clusters: int
    """Independent groups resampled"""


def ess_interval(
    log_ratio: np.ndarray,
    group: np.ndarray | None = None,
    /,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> EssInterval:
    """Percentile interval by cluster bootstrap: whole groups are drawn again, for their tokens are dependent.

    Parameters
    ----------
    log_ratio : array, shape (n,)
        log w in nats, at the draws that count.
    group : array of int, shape (n,), optional
        Prompt (or group) of each draw; every draw its own if left out.
    level : float
        Coverage of the percentile interval.
    resamples : int
        Bootstrap samples.
    seed : int
        Of the resampling.

    Returns
    -------
    EssInterval
        NaN bounds for fewer than two groups, since one group has no spread to show, and for a NaN or +inf
        among the ratios.

    Raises
    ------
    ValueError
        For a level outside (0, 1), fewer than one resample, or groups that do not fit the draws.
    """
    refuse_number("level", level)
    if not 0 < level < 1:
        raise ValueError(f"level is a coverage strictly between 0 and 1, got {level}; .95 is usual")
    refuse_count("resamples", resamples, least=1)
    refuse_count("seed", seed, least=0, most=math.inf)
    x = np.asarray(log_ratio, dtype=np.float64).ravel()
    if x.size == 0:
        return EssInterval(math.nan, math.nan, math.nan, 0)
    sums = _cluster_sums(x, group)
    clusters = len(sums)
    ess = float(ess_fraction(x))
    if clusters < 2 or math.isnan(ess) or x.max() == math.inf:
        return EssInterval(ess, math.nan, math.nan, clusters)
    rng = np.random.default_rng(seed)
    equal = np.full(clusters, 1 / clusters)
    drawn = []
    for block in range(0, resamples, BLOCK):
        # how often each group is drawn is all a resample needs: counts x sums is one matrix product
        counts = rng.multinomial(clusters, equal, size=min(BLOCK, resamples - block)).astype(np.float64)
        n, w, w2 = (counts @ sums).T
        with np.errstate(divide="ignore"):  # a resample may catch no weight at all: log 0, and ESS 0
            drawn.append(ess_from_state(EssState(n, np.log(w), np.log(w2), np.log(w))))
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return EssInterval(ess, float(low), float(high), clusters)


def _cluster_sums(x: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Draws, sum of w and sum of w^2 per group, shape (G, 3), on a common scale (ESS is scale-free)."""
    if group is None:
        index, clusters = np.arange(x.size), x.size
    else:
        if np.shape(group) != x.shape:
            raise ValueError(f"group must have one entry per draw, got {np.shape(group)} for {x.shape}")
        index, clusters = numbered(group)
    w = np.exp(x - x.max()) if np.isfinite(x.max()) else np.exp(x)
    return np.stack(
        [np.bincount(index, weights=v, minlength=clusters) for v in (np.ones_like(w), w, w * w)], axis=-1
    )


def numbered(group: np.ndarray, /) -> tuple[np.ndarray, int]:
    """Give groups numbers from 0, and count them; what already is such numbers is not sorted for it."""
    group = np.asarray(group).ravel()
    if group.size and group.dtype.kind in "iu" and group.min() == 0 and group.max() < group.size:
        seen = np.bincount(group) > 0
        if seen.all():
            return group, seen.size
    names, index = np.unique(group, return_inverse=True)
    return index, names.size


class MissingMass(NamedTuple):
    """The trainer's probability outside the sampler's support, estimated from ``1 - mean(w)``."""

    value: float
    """Share; sampling noise can make it negative"""
    stderr: float
    """Over groups; NaN for fewer than two"""


def missing_mass(log_ratio: np.ndarray, group: np.ndarray | None = None, /) -> MissingMass:
    """Shortfall ``1 - mean(w)`` over tokens drawn from the sampler, with its standard error over groups.

    Since ``E_mu[pi/pi_s] = 1`` where the sampler has support, the shortfall is the mass that has left it;
    ESS, being scale-free, cannot see that. A few huge weights make up for it in expectation and are rarely
    drawn, which is what the shortfall then shows. Ratio-of-sums error over groups of unequal size.

    Parameters
    ----------
    log_ratio : array, shape (n,)
        log w in nats, at the draws that count.
    group : array of int, shape (n,), optional
        Prompt (or group) of each draw; every draw its own if left out.

    Returns
    -------
    MissingMass
        Of a mean no float64 holds, ``-inf`` with a NaN error; NaN for a NaN among the ratios.
    """
    x = np.asarray(log_ratio, dtype=np.float64).ravel()
    if x.size == 0:
        return MissingMass(math.nan, math.nan)
    with np.errstate(over="ignore"):  # a mean beyond float64 is infinite, and said to be
        mean = float(np.exp(logsumexp(x) - math.log(x.size)))
    index, clusters = (np.arange(x.size), x.size) if group is None else numbered(group)
    if clusters < 2 or not math.isfinite(mean):
        return MissingMass(1 - mean, math.nan)
    with np.errstate(over="ignore"):
        off = np.bincount(index, weights=np.exp(x) - mean)
        variance = float(off @ off) * clusters / (clusters - 1) / x.size**2
    return MissingMass(1 - mean, math.sqrt(variance))
