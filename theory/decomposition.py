r"""The exact split of the sampler/trainer mismatch into engine discrepancy and policy lag.

``log(mu/pi) = log(mu/pi_s) + log(pi_s/pi)`` for every token: the first term is the engine's numerics at the
weights it holds, the second the trainer's movement since the last sync. Claim ``split``.
"""

from __future__ import annotations

from typing import NamedTuple

from theory.arrays import Array, namespace, same_shape


class Split(NamedTuple):
    """The two terms of one log-ratio ``log(mu/pi)``, each of the input's shape, in nats."""

    discrepancy: Array
    """``log mu - log pi_s``: what the engine does differently at equal weights"""
    lag: Array
    """``log pi_s - log pi``: what the trainer has changed since the sync"""


class KLSplit(NamedTuple):
    """``KL(mu||pi)`` and its three parts, nats, the action axis summed away."""

    total: Array
    discrepancy: Array
    """``KL(mu||pi_s)``"""
    lag: Array
    """``KL(pi_s||pi)``"""
    cross: Array
    """``<mu - pi_s, log(pi_s/pi)>``: zero only if the two errors are orthogonal in the Fisher metric"""


class VarianceSplit(NamedTuple):
    """Variance of ``log(mu/pi)`` under mu and its three parts, nats squared."""

    total: Array
    discrepancy: Array
    lag: Array
    covariance: Array
    """Twice the covariance of the two terms: total = discrepancy + lag + covariance"""


def split(logmu: Array, logpi_s: Array, logpi: Array, /) -> Split:
    """Split ``log(mu/pi)`` into discrepancy and lag, token by token.

    Parameters
    ----------
    logmu, logpi_s, logpi : arrays of one shape
        Log-probabilities of the same tokens, in nats: as sampled by the engine, by the trainer at the
        sampler's weights, by the trainer now.

    Returns
    -------
    Split
        Two arrays of that shape; their sum is ``logmu - logpi`` up to rounding.

    Raises
    ------
    ValueError
        If the shapes differ: broadcasting would pair the wrong tokens.
    """
    same_shape("split", mu=logmu, pi_s=logpi_s, pi=logpi)
    return Split(logmu - logpi_s, logpi_s - logpi)


def _gap(logp: Array, logq: Array) -> Array:
    """``log p - log q`` over a row, 0 where neither reaches the action (-inf - -inf is no number)."""
    xp = namespace(logp, logq)
    neither = (logp == -float("inf")) & (logq == -float("inf"))
    zero = xp.zeros_like(logp)
    return xp.where(neither, zero, logp) - xp.where(neither, zero, logq)


def _expect(prob: Array, x: Array) -> Array:
    """Sum ``prob * x`` over the last axis, where an impossible action counts 0 whatever x is."""
    xp = namespace(prob, x)
    return xp.sum(prob * xp.where(prob > 0, x, xp.zeros_like(prob)), axis=-1)


def kl(logp: Array, logq: Array, /) -> Array:
    """``KL(p||q)`` of two full rows, shape (..., K) to (...), in nats; +inf where q lacks support of p."""
    xp = namespace(logp, logq)
    return _expect(xp.exp(logp), _gap(logp, logq))


def kl_split(logmu: Array, logpi_s: Array, logpi: Array, /) -> KLSplit:
    """Three-point identity of the KL divergence over full rows.

    .. math:: KL(mu||pi) = KL(mu||pi_s) + KL(pi_s||pi) + <mu - pi_s, log(pi_s/pi)>

    Parameters
    ----------
    logmu, logpi_s, logpi : arrays, shape (..., K)
        Full rows of log-probabilities over the K actions.

    Returns
    -------
    KLSplit
        Four arrays of shape (...); discrepancy and lag do NOT add in KL unless `cross` vanishes.
    """
    xp = namespace(logmu, logpi_s, logpi)
    same_shape("kl_split", mu=logmu, pi_s=logpi_s, pi=logpi)
    lag = _gap(logpi_s, logpi)
    cross = _expect(xp.exp(logmu), lag) - _expect(xp.exp(logpi_s), lag)
    return KLSplit(kl(logmu, logpi), kl(logmu, logpi_s), kl(logpi_s, logpi), cross)


def variance_split(logmu: Array, logpi_s: Array, logpi: Array, /) -> VarianceSplit:
    """Variance under mu of ``log(mu/pi)`` and of its two terms, exact over full rows (..., K)."""
    xp = namespace(logmu, logpi_s, logpi)
    mu = xp.exp(logmu)
    same_shape("variance_split", mu=logmu, pi_s=logpi_s, pi=logpi)
    d, lag = _gap(logmu, logpi_s), _gap(logpi_s, logpi)
    d = d - _expect(mu, d)[..., None]
    lag = lag - _expect(mu, lag)[..., None]
    return VarianceSplit(
        _expect(mu, (d + lag) ** 2), _expect(mu, d**2), _expect(mu, lag**2), 2 * _expect(mu, d * lag)
    )


def kl_from_cumulants(k2: Array, k3: Array, k4: Array, /) -> Array:
    """``KL(mu||pi)`` from the cumulants of ``e = log(mu/pi)`` under mu, to fourth order.

    ``E_mu exp(-e) = 1`` turns the mean into ``k2/2 - k3/6 + k4/24 - ...``: to second order the split of the
    variance is the split of the KL.
    """
    return k2 / 2 - k3 / 6 + k4 / 24
