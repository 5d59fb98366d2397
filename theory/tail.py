r"""Tail index of an importance ratio: the companion that says when its ESS cannot be believed.

The largest ratios are fitted by a generalised Pareto law; its shape k tells which moments are missing: above
1/2 the variance of w is infinite, so the population ESS is 0 whatever the sample says. Claim ``heavy-tail``.
"""

from __future__ import annotations

import math

import numpy as np

from theory.arrays import Array, largest_entries, log_expm1_neg, masked, namespace, reduces_on_host

UNRELIABLE_ABOVE = 0.7
"""k-hat above which Pareto-smoothed importance sampling is not to be trusted; Vehtari et al. 2024."""

FEWEST_IN_TAIL = 5
"""Exceedances below which no tail is fitted; Vehtari et al. 2024."""


def tail_draws(n: int, /) -> int:
    """How many of `n` draws count as the tail: ``min(n/5, 3 sqrt(n))``; Vehtari et al. 2024."""
    return int(min(0.2 * n, math.ceil(3 * math.sqrt(n))))


@reduces_on_host
def k_hat(log_ratio: Array, /, *, mask: Array | None = None, axis: int = -1) -> Array:
    """Pareto tail index of ``w = exp(log_ratio)``.

    Parameters
    ----------
    log_ratio : array, shape (..., n)
        Log ratios in nats at draws from the sampler.
    mask : array of bool, same shape, optional
        True where the entry counts. What stands elsewhere, NaN included, never matters.
    axis : int
        The axis of the draws.

    Returns
    -------
    array, shape (...)
        NaN where no tail can be fitted: fewer than 25 draws, an infinite or NaN ratio, or a tail of which a
        quarter equals the cutoff.

    References
    ----------
    .. [1] A. Vehtari et al., "Pareto smoothed importance sampling", JMLR 25, 2024 (arXiv 1507.02646).
    """
    xp = namespace(log_ratio)
    if mask is not None and isinstance(log_ratio, np.ndarray) and log_ratio.ndim == 1:
        log_ratio, mask = np.take(log_ratio, np.flatnonzero(mask)), None
    x = xp.moveaxis(masked(log_ratio, mask, -float("inf")), axis, -1)
    n = x.shape[-1]
    most = tail_draws(n)
    if most < FEWEST_IN_TAIL:
        return xp.sum(x, axis=-1) * float("nan")
    top = largest_entries(x, most + 1)
    if mask is None:
        return k_hat_of_tail(top[..., 1:], top[..., 0])
    ones = xp.ones_like(x)
    counted = xp.sum(xp.where(xp.moveaxis(mask, axis, -1), ones, 0 * ones), axis=-1, keepdims=True)
    tail = xp.floor(xp.minimum(0.2 * counted, xp.ceil(3 * xp.sqrt(counted))))  # `tail_draws`, row by row
    place = xp.cumulative_sum(xp.ones_like(top), axis=-1)  # from 1; the cutoff is at most + 1 - tail
    cut = xp.sum(xp.where(place == most + 1 - tail, top, 0 * ones[..., : most + 1]), axis=-1)
    return _k_hat(top[..., 1:], cut, tail)


def k_hat_of_tail(log_tail: Array, log_cutoff: Array, /) -> Array:
    """Tail index from the largest log ratios alone, for engines that select them faster than by sorting.

    Parameters
    ----------
    log_tail : array, shape (..., m)
        The largest log ratios in ascending order, ``m = tail_draws(n)``.
    log_cutoff : array, shape (...)
        The largest log ratio that is not among them.

    Returns
    -------
    array, shape (...)
    """
    xp = namespace(log_tail, log_cutoff)
    return _k_hat(log_tail, log_cutoff, log_tail.shape[-1] * xp.ones_like(log_cutoff)[..., None])


def _k_hat(log_tail: Array, log_cutoff: Array, count: Array) -> Array:
    """Shape of the generalised Pareto law of the `count` (..., 1) largest of a tail (..., m).

    The estimator of Zhang & Stephens (2009), all in logs: it does not depend on the scale of the excesses
    over the cutoff, and no ratio is too large for it.
    """
    xp = namespace(log_tail, log_cutoff)
    m = log_tail.shape[-1]
    minus_infinity = xp.full_like(log_tail, -float("inf"))
    above = log_tail > log_cutoff[..., None]
    high = xp.where(above, log_tail, xp.zeros_like(log_tail))  # 0 and -1 where equal infinities would meet
    low = xp.where(above, log_cutoff[..., None] + xp.zeros_like(log_tail), -xp.ones_like(log_tail))
    excess = xp.where(above, high + log_expm1_neg(low - high), minus_infinity)
    largest = excess[..., -1:]
    place = xp.cumulative_sum(xp.ones_like(excess), axis=-1)
    quartile_at = m - count + xp.floor(count / 4 + 0.5)
    quartile = xp.max(xp.where(place == quartile_at, excess, minus_infinity), axis=-1, keepdims=True)
    fits = xp.isfinite(largest) & xp.isfinite(quartile) & (count >= FEWEST_IN_TAIL)
    zero, one = xp.zeros_like(count), xp.ones_like(count)
    count, largest, quartile = (
        xp.where(fits, x, y) for x, y in ((count, one), (largest, zero), (quartile, zero))
    )
    excess = xp.where(fits, excess, minus_infinity)

    # log(1 - b x) = log(1 - x/largest + spread x/quartile), its two terms scaled so that neither overflows
    beyond = excess - quartile
    shift = xp.maximum(beyond, zero)
    fixed, moving = xp.exp(log_expm1_neg(excess - largest) - shift), xp.exp(beyond - shift)

    def log_terms(spread: Array) -> Array:
        """Sum over the tail of ``log(1 - b x)`` at ``b = 1/largest - spread/quartile`` (..., J)."""
        terms = xp.log(fixed[..., None, :] + spread[..., None] * moving[..., None, :])
        return xp.sum(terms, axis=-1) + xp.sum(shift, axis=-1, keepdims=True)

    # points of the quadrature over b; 3 spreads its prior, in units of the first quartile
    points = 30 + xp.floor(xp.sqrt(count))
    most = 30 + int(math.sqrt(m))
    index = xp.cumulative_sum(xp.ones_like(xp.broadcast_to(one, (*one.shape[:-1], most))), axis=-1)
    used = index <= points
    spread = xp.where(used, (xp.sqrt(points / (index - 0.5)) - 1) / 3, xp.ones_like(index))
    k = log_terms(spread) / count
    b = xp.exp(quartile - largest) - spread
    defined = used & (b != 0) & (k != 0)
    ratio = xp.where(defined, -b, xp.ones_like(k)) / xp.where(defined, k, xp.ones_like(k))
    # where nothing is fitted all points weigh the same, so that no infinity is subtracted from itself
    none = xp.where(fits, -float("inf") * one, zero) + xp.zeros_like(k)
    log_likelihood = xp.where(defined, count * (xp.log(ratio) - k - 1), none)
    weight = xp.exp(log_likelihood - xp.max(log_likelihood, axis=-1, keepdims=True))
    posterior = xp.sum(spread * weight, axis=-1, keepdims=True) / xp.sum(weight, axis=-1, keepdims=True)
    shape = log_terms(posterior) / count
    # prior worth 10 draws at k = 1/2; Vehtari et al. 2024
    shape = (count * shape + 5.0) / (count + 10.0)
    return xp.squeeze(xp.where(fits, shape, float("nan") * one), axis=-1)
