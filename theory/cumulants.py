r"""ESS from the cumulants of the log-ratio: what heavy tails and skew add to the Gaussian law.

With kappa_n the cumulants of ``log w`` under the sampler,

.. math:: -\log \mathrm{ESS} = \sum_{n \ge 2} \kappa_n \frac{2^n - 2}{n!}
          = \kappa_2 + \kappa_3 + \tfrac{7}{12} \kappa_4 + \tfrac14 \kappa_5 + \dots

which does not depend on the scale of w. The Gaussian law is its first term, so heavy tails bring the crossing
forward if and only if the rest is positive: negative skew can cancel kurtosis. Claim ``heavy-tail``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import Array, masked, namespace


class Cumulants(NamedTuple):
    """First four cumulants of log w, arrays of one shape (...), in powers of nats."""

    k1: Array
    """Mean"""
    k2: Array
    """Variance"""
    k3: Array
    k4: Array


def log_ess_coefficient(n: int, /) -> float:
    """Coefficient ``(2^n - 2)/n!`` of the n-th cumulant in ``-log ESS``: 0, 1, 1, 7/12, 1/4, 31/360, ..."""
    if n < 1:
        raise ValueError(f"cumulants are numbered from 1, got {n}")
    return (2**n - 2) / math.factorial(n)


def ess_from_cumulants(kappas: Sequence[Any], /) -> Any:
    """ESS share from the cumulants of log w, truncated at the order given.

    Parameters
    ----------
    kappas : sequence of array or float
        kappa_1, kappa_2, ... in order, as many as are known; the mean does not matter.

    Returns
    -------
    array or float
        A truncated series can exceed 1 when left skew is large; it is returned as it is, inf at the most.

    References
    ----------
    .. [1] theory: the ESS law; a truncated series converges only while the log-ratio has exponential moments
       (`theory.families` names the families that have none).
    """
    if len(kappas) < 2:
        raise ValueError(f"the ESS series starts at the variance, got {len(kappas)} cumulant(s); pass >= 2")
    total = sum(log_ess_coefficient(n) * kappa for n, kappa in enumerate(kappas, start=1) if n > 1)
    if isinstance(total, (int, float)):
        total = np.float64(total)
    with np.errstate(over="ignore"):  # torch and JAX say nothing of it either
        ess = namespace(total).exp(-total)
    return float(ess) if isinstance(ess, float) else ess


def cumulants(
    log_ratio: Array, /, *, mask: Array | None = None, weight: Array | None = None, axis: int = -1
) -> Cumulants:
    """First four cumulants of log ratios along `axis`, as plain averages (no small-sample correction).

    Parameters
    ----------
    log_ratio : array, shape (..., n)
        log w in nats, at draws from the sampler, or at all actions together with `weight`.
    mask : array of bool, same shape, optional
        True where the entry counts; what stands elsewhere, NaN and infinity included, never matters.
    weight : array, same shape, optional
        Probability of each entry under the sampler, for exact cumulants over enumerated actions. Need not be
        normalised; an entry of weight 0 never matters.
    axis : int
        The axis of the draws.

    Returns
    -------
    Cumulants
        NaN where no entry counts. An entry of log w = -inf (an action the trainer has given up) makes the
        mean -inf and the rest NaN: no cumulant exists there, while ESS itself does.
    """
    xp = namespace(log_ratio, weight)
    counts = xp.ones_like(log_ratio) if weight is None else weight
    counts = masked(counts, mask, 0.0)
    x = masked(log_ratio, counts > 0, 0.0)
    total = xp.sum(counts, axis=axis, keepdims=True)
    nothing = total <= 0
    p = counts / xp.where(nothing, xp.ones_like(total), total)
    mean = xp.sum(p * x, axis=axis, keepdims=True)
    finite = xp.isfinite(mean)
    dev = xp.where(finite, x, xp.zeros_like(x)) - xp.where(finite, mean, xp.zeros_like(mean))
    square = dev * dev
    m2, m3, m4 = (xp.sum(p * power, axis=axis) for power in (square, square * dev, square * square))
    mean = xp.squeeze(mean, axis=axis)
    nan = xp.full_like(mean, float("nan"))
    first = xp.where(xp.squeeze(nothing, axis=axis), nan, mean)
    exists = xp.isfinite(first)
    return from_central(first, *(xp.where(exists, m, nan) for m in (m2, m3, m4)))


def from_central(mean: Array, m2: Array, m3: Array, m4: Array, /) -> Cumulants:
    """Cumulants from the mean and the central moments of second to fourth order."""
    return Cumulants(mean, m2, m3, m4 - 3 * m2**2)
