r"""Effective sample size of an importance ratio, as a share of the sample.

``ESS = (sum w)^2 / (n sum w^2) = 1 / (1 + CV(w)^2)``: 1 for a constant ratio, 1/n when one draw dominates.
It is scale-free, so it needs no normalised ratio, and for the same reason blind to mass the sampler never
reaches. Everything here is pooled and raw: no clipping, no average over micro-batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from theory.arrays import (
    Array,
    at_least_single,
    count,
    finite_or_zero,
    log_of_sum,
    logsumexp,
    masked,
    namespace,
    reduces_on_host,
)

RUN = 256
"""Squares summed at a time in the type of the ratios"""


class EssState(NamedTuple):
    """All that ESS needs to know of a set of ratios, arrays of one shape (...); see `merge_states`."""

    n: Array
    """Number of ratios, as a float"""
    log_sum_w: Array
    log_sum_w2: Array
    log_max_w: Array


def ess_state(
    log_ratio: Array, /, *, mask: Array | None = None, axis: int = -1, dtype: Any = None
) -> EssState:
    """Summarise log ratios along `axis` for `ess_from_state`; masked entries never matter.

    `dtype` is the type the sums are kept in, that of the ratios if left out: a long stream of float32 blocks
    wants float64. Half precision and integers are raised to float32 first.
    """
    xp = namespace(log_ratio)
    x = masked(at_least_single(log_ratio), mask, -float("inf"))
    if x.shape[axis] == 0:
        shape = tuple(s for i, s in enumerate(x.shape) if i != axis % x.ndim)
        zero = xp.sum(x, axis=axis)  # the library's own empty sum: right dtype and device
        none = xp.reshape(zero - float("inf"), shape)
        return EssState(zero, none, none, none)
    wide = x.dtype if dtype is None else dtype
    top = xp.max(x, axis=axis, keepdims=True)
    w = xp.exp(x - finite_or_zero(top))
    largest = xp.astype(xp.squeeze(top, axis=axis), wide)
    shift = finite_or_zero(largest)
    return EssState(
        xp.squeeze(count(x, mask, axis=axis, dtype=wide), axis=axis),
        log_of_sum(xp.sum(w, axis=axis, dtype=wide), shift),
        log_of_sum(_sum_of_squares(w, axis=axis, dtype=wide), 2 * shift),
        largest,
    )


def _sum_of_squares(w: Array, /, *, axis: int, dtype: Any) -> Array:
    """Sum squares along `axis` in runs short enough for their own type, and the runs in the wider one.

    In single precision alone the sum over a block is off by 1e-7 of itself, which is a percent of the
    chi-square of a lag of 0.003 nats; a wide copy of w would double the time.
    """
    xp = namespace(w)
    if w.dtype == dtype:
        return xp.vecdot(w, w, axis=axis % w.ndim - w.ndim)
    w = xp.moveaxis(w, axis, -1)
    whole = w.shape[-1] - w.shape[-1] % RUN
    runs, rest = xp.reshape(w[..., :whole], (*w.shape[:-1], whole // RUN, RUN)), w[..., whole:]
    return xp.sum(xp.vecdot(runs, runs), axis=-1, dtype=dtype) + xp.astype(xp.vecdot(rest, rest), dtype)


def merge_states(a: EssState, b: EssState, /) -> EssState:
    """State of the union of two disjoint sets of ratios: shards, micro-batches, workers."""
    xp = namespace(a.log_sum_w, b.log_sum_w)

    def add(x: Array, y: Array) -> Array:
        return logsumexp(xp.stack([x, y], axis=-1), axis=-1)

    return EssState(
        a.n + b.n,
        add(a.log_sum_w, b.log_sum_w),
        add(a.log_sum_w2, b.log_sum_w2),
        xp.maximum(a.log_max_w, b.log_max_w),
    )


def ess_from_state(state: EssState, /) -> Array:
    """ESS share of a summarised set; the same defined cases as `ess_fraction`."""
    xp = namespace(state.log_sum_w)
    zero = xp.zeros_like(state.log_sum_w)
    n = xp.where(state.n > 0, state.n, zero + 1)
    finite = xp.isfinite(state.log_sum_w)
    s1 = xp.where(finite, state.log_sum_w, zero)
    s2 = xp.where(finite, state.log_sum_w2, zero)
    share = xp.exp(2 * s1 - s2) / n
    # Cauchy-Schwarz bounds the exact value; only its rounding can leave [1/n, 1]
    share = xp.minimum(xp.maximum(share, 1 / n), zero + 1)
    share = xp.where(state.log_sum_w == -float("inf"), zero, share)
    share = xp.where(state.log_sum_w == float("inf"), 1 / n, share)
    broken = (state.n == 0) | xp.isnan(state.log_sum_w)
    return xp.where(broken, zero + float("nan"), share)


def ess_fraction(log_ratio: Array, /, *, mask: Array | None = None, axis: int = -1) -> Array:
    r"""Effective sample size of ``w = exp(log_ratio)`` as a share of the sample.

    .. math:: \mathrm{ESS} = \frac{(\sum w)^2}{n \sum w^2}

    Computed from logs: ratios may overflow, ESS does not.

    Parameters
    ----------
    log_ratio : array, shape (..., n)
        Log ratios in nats, at tokens (or responses) drawn from the sampler.
    mask : array of bool, same shape, optional
        True where the entry counts. What stands elsewhere, NaN included, never matters.
    axis : int
        The axis of the draws.

    Returns
    -------
    array, shape (...)
        In ``[1/n, 1]`` with n the number of unmasked draws. Defined cases: NaN for no draws and for a NaN
        among them (a NaN log-prob is a fault to find, not a draw to drop); 0 if every ratio is zero; 1/n if
        one is infinite.

    References
    ----------
    .. [1] A. Kong, "A note on importance sampling using standardized weights", 1992.
    .. [2] Claim ``ess-half``: the failure law at 1/2.
    """
    return ess_from_state(ess_state(log_ratio, mask=mask, axis=axis))


def response_log_ratio(log_ratio: Array, /, *, mask: Array | None = None, geometric: bool = False) -> Array:
    """Log ratio of whole responses from those of their tokens.

    Parameters
    ----------
    log_ratio : array, shape (..., T)
        Token log ratios in nats.
    mask : array of bool, same shape, optional
        True at response tokens.
    geometric : bool
        Mean over the tokens (geometric mean of the ratio) in place of the sum (product of the ratio).

    Returns
    -------
    array, shape (...)
        0 for a response without tokens: an empty product.
    """
    xp = namespace(log_ratio)
    total = xp.sum(masked(log_ratio, mask, 0.0), axis=-1)
    if not geometric:
        return total
    ones = xp.ones_like(log_ratio)
    count = xp.sum(ones if mask is None else xp.where(mask, ones, xp.zeros_like(ones)), axis=-1)
    return total / xp.maximum(count, xp.ones_like(count))


@reduces_on_host
def response_ess(
    log_ratio: Array, /, *, mask: Array | None = None, geometric: bool = False, axis: int = -1
) -> Array:
    """ESS share over whole responses, product or geometric level; shape (..., B, T) to (...).

    Responses without a single unmasked token do not count as draws.
    """
    xp = namespace(log_ratio)
    seen = None if mask is None else xp.any(mask, axis=-1)
    return ess_fraction(response_log_ratio(log_ratio, mask=mask, geometric=geometric), mask=seen, axis=axis)
