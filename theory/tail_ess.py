r"""ESS with its heavy tail put back: the estimator behind the monitor.

The sample ESS reads high under heavy tails because the few weights that carry E w^2 are rarely drawn. Here
the second moment of the largest weights is not summed but computed from the Pareto law they follow: with
cutoff u, mean excess m and tail index k,

.. math:: E[w^2 | w > u] = u^2 + 2 u m + 2 m^2 \frac{1 - k}{1 - 2k}

The mean excess is well measured; the factor is what a sample of that size tends to miss. At a true ESS of 1/2
a third to a half of the samples then read below 1/2, for Gaussian, Laplace, variance-gamma and conditionally
normalised mixtures from 512 draws on; of plain sample ESSs, 7% to 40%. Claim ``monitor``.
"""

from __future__ import annotations

from theory.arrays import Array, largest_last, namespace
from theory.ess import ess_fraction
from theory.tail import FEWEST_IN_TAIL, k_hat_of_tail, tail_draws

LARGEST_INDEX = 0.45
"""Tail index beyond which the factor is held: at 1/2 it is infinite, and no estimate of k is good to .05. It
also keeps a heavy tail of ratios that all lie near 1 from reading as ESS 0."""


def tail_corrected_ess(log_ratio: Array, /, *, index: Array | None = None) -> Array:
    """ESS share with the second moment of the tail taken from its fitted Pareto law.

    Parameters
    ----------
    log_ratio : array, shape (..., n)
        Log ratios in nats at draws from the sampler; drop masked entries before.
    index : array, shape (...), optional
        Tail index to use, for example a mean over the last steps; `theory.tail.k_hat` of these draws if left
        out or where it is NaN.

    Returns
    -------
    array, shape (...)
        The plain `theory.ess.ess_fraction` where no tail can be fitted (few draws, equal or infinite ratios).
    """
    xp = namespace(log_ratio)
    plain = ess_fraction(log_ratio)
    n = log_ratio.shape[-1]
    tail = tail_draws(n)
    if tail < FEWEST_IN_TAIL:
        return plain
    ordered = largest_last(log_ratio, tail + 1)
    top = ordered[..., -1:]
    finite = xp.isfinite(top)
    # scale-free: the largest weight is 1
    w = xp.exp(xp.where(finite, ordered - xp.where(finite, top, xp.zeros_like(top)), xp.zeros_like(ordered)))
    cutoff = w[..., n - tail - 1]
    excess = xp.mean(w[..., n - tail :] - cutoff[..., None], axis=-1)
    k = k_hat_of_tail(ordered[..., n - tail :], ordered[..., n - tail - 1])
    if index is not None:
        k = xp.where(xp.isfinite(index), index, k)
    fitted = xp.isfinite(k) & finite[..., 0]
    k = xp.where(fitted, xp.minimum(k, xp.full_like(k, LARGEST_INDEX)), xp.zeros_like(k))
    tail_square = cutoff**2 + 2 * cutoff * excess + 2 * excess**2 * (1 - k) / (1 - 2 * k)
    second = (xp.sum(w[..., : n - tail] ** 2, axis=-1) + tail * tail_square) / n
    corrected = xp.mean(w, axis=-1) ** 2 / xp.where(second > 0, second, xp.ones_like(second))
    return xp.where(fitted, xp.minimum(corrected, xp.ones_like(corrected)), plain)
