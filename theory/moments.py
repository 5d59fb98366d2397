r"""Moments of log ratios that can be streamed: states of blocks, shards or workers merge to that of all.

A `MomentState` holds n, the mean, and sums of the second to fourth powers of deviations from it; these add
without the cancellation of raw power sums (Pebay 2008). With an `EssState` beside it every pooled measure of
ratios follows: ESS, cumulants, mean ratio, the k3 estimate of a KL divergence, chi-square.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory.arrays import Array, count, masked, namespace
from theory.cumulants import Cumulants, from_central
from theory.ess import EssState, ess_state, merge_states

NEAR = 0.05
"""Nats of a log ratio up to which series of fourth order stand for exponentials: k3 is off by 2e-6 of itself
then, chi-square by 3e-5"""


class MomentState(NamedTuple):
    """Moments of a set of numbers, arrays of one shape (...); all zero for no numbers."""

    n: Array
    """How many, as a float"""
    mean: Array
    m2: Array
    """Sum, not mean, of ``(x - mean)^2``; likewise the next two"""
    m3: Array
    m4: Array


class RatioState(NamedTuple):
    """What is kept of a set of ratios w."""

    ess: EssState
    moments: MomentState
    """Of log w"""


def moment_state(x: Array, /, *, mask: Array | None = None, axis: int = -1, dtype: Any = None) -> MomentState:
    """Summarise numbers along `axis`; masked entries never matter.

    Parameters
    ----------
    x : array, shape (..., n)
        Log ratios in nats.
    mask : array of bool, same shape, optional
        True where the entry counts.
    axis : int
        The axis of the draws.
    dtype : optional
        Type the sums are kept in, that of `x` if left out: a long stream of float32 wants float64.

    Returns
    -------
    MomentState
        Arrays of shape (...). An infinite number makes the mean infinite and the rest NaN; a NaN, all of it.
    """
    xp = namespace(x)
    wide = x.dtype if dtype is None else dtype
    kept = masked(x, mask, 0.0)
    n = count(x, mask, axis=axis, dtype=wide)
    some = xp.where(n > 0, n, xp.ones_like(n))
    mean = xp.sum(kept, axis=axis, keepdims=True, dtype=wide) / some
    exists = xp.isfinite(mean)
    about = xp.astype(xp.where(exists, mean, xp.zeros_like(mean)), x.dtype)
    dev = masked(kept - about, mask, 0.0)
    square = dev * dev
    last = axis % x.ndim - x.ndim

    zero_or_nan = xp.squeeze(xp.where(exists, xp.zeros_like(mean), float("nan") * mean), axis=axis)

    def moment(value: Array) -> Array:
        return xp.astype(value, wide) + zero_or_nan

    s2 = moment(xp.sum(square, axis=axis, dtype=wide))
    s3 = moment(xp.vecdot(square, dev, axis=last))
    s4 = moment(xp.vecdot(square, square, axis=last))
    n, mean, about = (xp.squeeze(v, axis=axis) for v in (n, mean, xp.astype(about, wide)))
    # deviations are from the mean as the entries' type can write it: move them to the mean itself
    off = xp.where(xp.isfinite(mean), mean - about, xp.zeros_like(mean))
    return MomentState(
        n,
        mean,
        s2 - n * off**2,
        s3 - 3 * off * s2 + 2 * n * off**3,
        s4 - 4 * off * s3 + 6 * off**2 * s2 - 3 * n * off**4,
    )


def merge_moments(a: MomentState, b: MomentState, /) -> MomentState:
    """State of the union of two disjoint sets of numbers."""
    xp = namespace(a.mean, b.mean)
    n = a.n + b.n
    some = xp.where(n > 0, n, xp.ones_like(n))
    p, q = a.n / some, b.n / some
    exists = xp.isfinite(a.mean) & xp.isfinite(b.mean)
    gap = xp.where(exists, b.mean, xp.zeros_like(n)) - xp.where(exists, a.mean, xp.zeros_like(n))
    # an empty set keeps its neutral mean of 0 out of the sum
    mean = xp.where(
        exists,
        xp.where(p >= q, a.mean + gap * q, b.mean - gap * p),
        xp.where(a.n > 0, a.mean, xp.zeros_like(n)) + xp.where(b.n > 0, b.mean, xp.zeros_like(n)),
    )
    pq = n * p * q
    m2 = a.m2 + b.m2 + gap**2 * pq
    m3 = a.m3 + b.m3 + gap**3 * pq * (p - q) + 3 * gap * (p * b.m2 - q * a.m2)
    m4 = a.m4 + b.m4 + gap**4 * pq * (p * p - p * q + q * q)
    m4 = m4 + 6 * gap**2 * (p * p * b.m2 + q * q * a.m2) + 4 * gap * (p * b.m3 - q * a.m3)
    return MomentState(n, mean, m2, m3, m4)


def ratio_state(
    log_ratio: Array, /, *, mask: Array | None = None, axis: int = -1, dtype: Any = None
) -> RatioState:
    """Summarise ratios along `axis` from their logs; arguments as of `moment_state`."""
    return RatioState(
        ess_state(log_ratio, mask=mask, axis=axis, dtype=dtype),
        moment_state(log_ratio, mask=mask, axis=axis, dtype=dtype),
    )


def merge_ratios(a: RatioState, b: RatioState, /) -> RatioState:
    """State of the union of two disjoint sets of ratios."""
    return RatioState(merge_states(a.ess, b.ess), merge_moments(a.moments, b.moments))


def cumulants_of(state: MomentState, /) -> Cumulants:
    """First four cumulants of a summarised set, plain averages; NaN for no numbers."""
    n, mean, m2, m3, m4 = state
    xp = namespace(n)
    some = xp.where(n > 0, n, float("nan") * xp.ones_like(n))
    return from_central(mean * (some / some), m2 / some, m3 / some, m4 / some)


def root_mean_square(state: MomentState, /) -> Array:
    """Root of the mean square of the numbers themselves, in their unit; NaN for none, inf where one is."""
    mean, variance, _, _ = cumulants_of(state)
    xp = namespace(mean)
    spread = xp.where(xp.isinf(mean), xp.zeros_like(mean), variance)
    return xp.sqrt(mean**2 + spread)


def mean_ratio(state: EssState, /) -> Array:
    """Mean of w; 1 minus it estimates the mass the sampler cannot reach, as E w = 1 where it reaches all."""
    return _mean_power(state.n, state.log_sum_w)


def _mean_power(n: Array, log_sum: Array) -> Array:
    xp = namespace(n)
    with np.errstate(over="ignore"):  # a mean beyond any float is infinite; torch and JAX say nothing of it
        return xp.exp(log_sum) / xp.where(n > 0, n, float("nan") * xp.ones_like(n))


def kl_k3(state: RatioState, /) -> Array:
    """Estimate ``E[w - 1 - log w]`` of ``KL(pi_s||pi)`` in nats, never negative (Schulman's k3)."""
    return kl_and_chi_square(state)[0]


def chi_square(state: RatioState, /) -> Array:
    """``E (w - 1)^2``, never negative; ``1/ESS - 1`` where E w = 1."""
    return kl_and_chi_square(state)[1]


def kl_and_chi_square(state: RatioState, /) -> tuple[Array, Array]:
    """`kl_k3` and `chi_square` of a summarised set at once.

    Both are small differences of numbers near 1 where the lag is small, so there they are summed as series in
    the moments of log w, which cancel nothing. No ratio is further than `NEAR` from the mean then, since the
    sum of fourth powers bounds the largest.
    """
    ess, moments = state
    mean = cumulants_of(moments).k1
    xp = namespace(mean)
    zero, some = xp.zeros_like(mean), xp.where(moments.n > 0, moments.n, xp.ones_like(mean))
    near = (moments.m4 <= NEAR**4) & (xp.abs(mean) <= NEAR)  # false for NaN
    m, m2, m3, m4 = (
        xp.where(near, x, zero) for x in (mean, moments.m2 / some, moments.m3 / some, moments.m4 / some)
    )
    about = m2 / 2 + m3 / 6 + m4 / 24  # E[e^d - 1 - d] of the deviation d
    square = m2 + m3 + 7 * m4 / 12  # E (e^d - 1)^2
    shift = m + m**2 / 2 + m**3 / 6 + m**4 / 24  # e^m - 1
    k3 = m**2 / 2 + m**3 / 6 + m**4 / 24 + (1 + shift) * about
    chi = shift**2 + 2 * shift * (1 + shift) * about + (1 + shift) ** 2 * square
    mean_w, mean_w2 = mean_ratio(ess), _mean_power(ess.n, ess.log_sum_w2)
    # E w^2 >= (E w)^2, so where E w is beyond any float E w^2 is too, and is the answer: no inf - inf
    far_k3 = mean_w - 1 - xp.where(xp.isinf(mean_w), zero, mean)
    far_chi = mean_w2 - 2 * xp.where(xp.isinf(mean_w2), zero, mean_w) + 1
    return xp.where(near, k3, xp.maximum(far_k3, zero)), xp.where(near, chi, xp.maximum(far_chi, zero))
