r"""Tail index of an importance ratio: the companion that says when its ESS cannot be believed.

The largest ratios are fitted by a generalised Pareto law; its shape k tells which moments are missing: above
1/2 the variance of w is infinite, so the population ESS is 0 whatever the sample says. Claim ``heavy-tail``.
"""

from __future__ import annotations

import math

from theory.arrays import Array, namespace

UNRELIABLE_ABOVE = 0.7
"""k-hat above which Pareto-smoothed importance sampling is not to be trusted; Vehtari et al. 2024."""

FEWEST_IN_TAIL = 5
"""Exceedances below which no tail is fitted; Vehtari et al. 2024."""


def tail_draws(n: int, /) -> int:
    """How many of `n` draws count as the tail: ``min(n/5, 3 sqrt(n))``; Vehtari et al. 2024."""
    return int(min(0.2 * n, math.ceil(3 * math.sqrt(n))))


def k_hat(log_ratio: Array, /) -> Array:
    """Pareto tail index of ``w = exp(log_ratio)``.

    Parameters
    ----------
    log_ratio : array, shape (..., n)
        Log ratios in nats at draws from the sampler; drop masked entries before.

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
    n = log_ratio.shape[-1]
    tail = tail_draws(n)
    if tail < FEWEST_IN_TAIL:
        return xp.sum(log_ratio, axis=-1) * float("nan")
    ordered = xp.sort(log_ratio, axis=-1)
    return k_hat_of_tail(ordered[..., n - tail :], ordered[..., n - tail - 1])


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
    top = log_tail[..., -1:]
    known = xp.isfinite(top)
    top = xp.where(known, top, xp.zeros_like(top))
    # what lies e^-60 below the largest ratio is zero beside it in any precision; this also keeps -inf out
    log_tail = xp.maximum(xp.where(known, log_tail, xp.zeros_like(log_tail)), top - 60.0)
    cut = xp.maximum(xp.where(known, log_cutoff[..., None], xp.zeros_like(top)), top - 60.0)
    # the shape does not depend on scale: expm1 keeps digits where all ratios are close, the other form where
    # the largest would overflow
    narrow = top - cut < 1.0
    near = xp.expm1(xp.where(narrow, log_tail - cut, xp.zeros_like(log_tail)))
    far = xp.exp(log_tail - top) - xp.exp(cut - top)
    return _generalised_pareto_shape(xp.where(narrow, near, far))


def _generalised_pareto_shape(excess: Array) -> Array:
    """Shape of a generalised Pareto law from ascending excesses (..., m); Zhang & Stephens 2009."""
    xp = namespace(excess)
    m = excess.shape[-1]
    grid = 30 + int(math.sqrt(m))  # points of the quadrature over b; Zhang & Stephens 2009
    index = xp.cumulative_sum(
        xp.ones_like(xp.broadcast_to(excess[..., :1], (*excess.shape[:-1], grid))), axis=-1
    )
    quartile = excess[..., int(m / 4 + 0.5) - 1][..., None]
    largest = excess[..., -1:]
    fits = quartile > 0  # an unknown tail has been set to equal ratios: excess 0
    one = xp.ones_like(quartile)
    # 3 times the first quartile spreads the prior of b; Zhang & Stephens 2009
    b = (1 - xp.sqrt(grid / (index - 0.5))) / (3 * xp.where(fits, quartile, one))
    b = b + 1 / xp.where(fits, largest, one)
    safe = xp.where(fits, excess, xp.zeros_like(excess))
    k = xp.mean(xp.log1p(-b[..., None] * safe[..., None, :]), axis=-1)
    defined = k != 0
    ratio = xp.where(defined, -b / xp.where(defined, k, xp.ones_like(k)), xp.ones_like(k))
    log_likelihood = m * (xp.log(ratio) - k - 1)
    weight = xp.exp(log_likelihood - xp.max(log_likelihood, axis=-1, keepdims=True))
    posterior = xp.sum(b * weight, axis=-1, keepdims=True) / xp.sum(weight, axis=-1, keepdims=True)
    shape = xp.mean(xp.log1p(-posterior * safe), axis=-1)
    # prior worth 10 draws at k = 1/2; Vehtari et al. 2024
    shape = (m * shape + 5.0) / (m + 10.0)
    return xp.where(fits[..., 0], shape, shape * float("nan"))
