r"""Off-support share, and collapses that next-token KL on the sampler's prefixes does not see.

The KL measured on the sampler's own prefixes never visits where the trainer has gone. If the sampler gives an
exit no probability, a share P_off of the trainer's responses can leave for as little as ``-ln(1 - P_off)/T``
nats per token; the longer the response, the cheaper. Claims ``off-support`` and ``invisible``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from theory.arrays import Array, masked, namespace, same_shape
from theory.decomposition import kl
from theory.records import OFF_SUPPORT_BELOW


def off_support_share(
    log_p0: Array,
    /,
    *,
    mask: Array | None = None,
    weight: Array | None = None,
    below: float = OFF_SUPPORT_BELOW,
) -> Array:
    """Share of tokens whose initial probability is below a threshold, over all axes: shape ().

    Parameters
    ----------
    log_p0 : array
        Log-probability under the initial policy of tokens drawn by the trainer, nats.
    mask : array of bool, same shape, optional
        True where the token counts; what stands elsewhere never matters.
    weight : array, same shape, optional
        Expected number of such tokens, for exact shares over enumerated tokens.
    below : float
        Probability under which a token is off-support, in (0, 1].

    Returns
    -------
    array, shape ()
        NaN for no tokens, and if one that counts has a NaN log-prob.

    Raises
    ------
    ValueError
        If `below` is no such probability.
    """
    threshold = _log_threshold(below)
    xp = namespace(log_p0, weight)
    count = masked(xp.ones_like(log_p0) if weight is None else weight, mask, 0.0)
    x = masked(log_p0, count > 0, 0.0)
    off = xp.where(x < threshold, count, xp.zeros_like(count))
    total = xp.sum(count)
    share = xp.sum(off) / xp.where(total > 0, total, xp.ones_like(total))
    return xp.where((total > 0) & ~xp.any(xp.isnan(x)), share, xp.full_like(total, float("nan")))


def _log_threshold(below: float) -> float:
    """Log of a threshold probability; ValueError for what is none."""
    if not 0 < below <= 1:
        raise ValueError(
            f"below is a probability in (0, 1], got {below}; the articles' is {OFF_SUPPORT_BELOW}"
        )
    return math.log(below)


def kl_bound(off: float, length: int, /) -> float:
    """Least KL per token on the sampler's prefixes, nats, for a share `off` of responses to have left.

    ``-ln(1 - P_off)/T``; attained when the sampler never exits and the trainer's exit rate is constant. With
    equal lengths and few tokens it is large: length is what makes a collapse invisible.
    """
    if not 0 <= off <= 1 or length < 1:
        raise ValueError(f"needs a share in [0, 1] and a length >= 1, got {off} and {length}")
    return math.inf if off == 1 else -math.log1p(-off) / length


class Chain(NamedTuple):
    """An absorbing exit, in numbers; KLs in nats per token."""

    kl_sampler: float
    """KL(mu||pi) on the sampler's prefixes before the exit: what a monitor sees"""
    kl_reverse: float
    """KL(pi||mu) on the same prefixes; inf if the sampler never exits"""
    left: float
    """Share of the trainer's responses that have left by the end"""
    off_share: float
    """Share of the trainer's tokens at or after the exit"""
    ess_token: float
    """ESS of the lag ratio over tokens, population; 1 if the sampler never exits (ESS is scale-free)"""
    missing_mass: float
    """``1 - E_mu[w]``: the trainer's probability where the sampler has none"""


def absorbing_chain(exit_rate: float, length: int, /, *, sampler_rate: float = 0.0) -> Chain:
    """Solve a trainer that leaves for good at `exit_rate` per token, under a sampler that hardly does.

    Parameters
    ----------
    exit_rate : float
        Exit probability per token of the trainer, in (0, 1). The exit token counts as off-support, so does
        all that follows it.
    length : int
        Tokens per response.
    sampler_rate : float
        The sampler's exit probability per token, in [0, 1).
    """
    if not 0 < exit_rate < 1 or not 0 <= sampler_rate < 1 or length < 1:
        raise ValueError(
            f"needs exit_rate in (0, 1), sampler_rate in [0, 1) and length >= 1, got {exit_rate}, "
            f"{sampler_rate} and {length}"
        )
    stay, stay_s = math.log1p(-exit_rate), math.log1p(-sampler_rate)
    forward = (1 - sampler_rate) * (stay_s - stay)
    reverse, second = math.inf, math.exp(2 * stay - stay_s)
    mean = math.exp(stay)
    if sampler_rate > 0:
        odds = math.log(exit_rate / sampler_rate)
        forward -= sampler_rate * odds
        reverse = exit_rate * odds + math.exp(stay) * (stay - stay_s)
        second += exit_rate**2 / sampler_rate
        mean = 1.0
    left = -math.expm1(length * stay)
    off = 1 - math.exp(stay) * left / (exit_rate * length)
    return Chain(forward, reverse, left, off, min(mean**2 / second, 1.0), 1 - mean)


def unseen(sampler_rate: float, tokens: int, /) -> float:
    """Probability that `tokens` sampled tokens hold no exit, so that their sample ESS stays at 1."""
    return math.exp(tokens * math.log1p(-sampler_rate))


class TwoStep(NamedTuple):
    """Exact numbers of the two-token example, nats per token."""

    kl_sampler: float
    kl_own: float
    """KL(pi||mu) per token on the trainer's own prefixes"""
    off_share: float


def two_step(exit_rate: float, /, *, sampler_rate: float = 1e-4, twist: float = 0.999) -> TwoStep:
    """Two tokens: the first exits or not; after an exit the trainer plays a token the sampler hardly knows.

    Enumerated, not approximated. With equal lengths a large off-support share is expensive in KL on the
    sampler's prefixes already: .347 nats per token for a share of .5.

    Parameters
    ----------
    exit_rate, sampler_rate : float
        Probability of the exit under trainer and sampler.
    twist : float
        Probability under the trainer, after the exit, of the token the sampler plays with `sampler_rate`.
    """
    mu, pi = np.array([1 - sampler_rate, sampler_rate]), np.array([1 - exit_rate, exit_rate])
    mu_off, pi_off = np.array([1 - sampler_rate, sampler_rate]), np.array([1 - twist, twist])
    logmu, logpi, logmu_off, logpi_off = (np.log(x) for x in (mu, pi, mu_off, pi_off))
    kl_sampler = float(kl(logmu, logpi) + mu[1] * kl(logmu_off, logpi_off)) / 2
    kl_own = float(kl(logpi, logmu) + pi[1] * kl(logpi_off, logmu_off)) / 2
    return TwoStep(kl_sampler, kl_own, (exit_rate + exit_rate * twist) / 2)


def branch_share(exit_rate: float, /, *, off_tokens: int, on_tokens: int, twist: float = 0.999) -> float:
    """Off-support share of tokens when the branch after the exit is longer than the ordinary response."""
    off = exit_rate * (1 + twist * (off_tokens - 1))
    return off / (exit_rate * off_tokens + (1 - exit_rate) * on_tokens)


def exit_mass(log_p0: Array, logpi: Array, /, *, below: float = OFF_SUPPORT_BELOW) -> Array:
    """Probability that the next token is off-support, at each prefix: what the trainer gives such tokens.

    Its mean over the trainer's own prefixes is what `off_support_share` estimates from the tokens drawn
    there, without the noise of drawing; over the sampler's prefixes it is what the sampler's side could see.

    Parameters
    ----------
    log_p0, logpi : array, shape (..., V)
        Rows of the initial policy and of the trainer at the same prefixes, nats.
    below : float
        Initial probability under which a token is off-support, in (0, 1].

    Returns
    -------
    array, shape (...)
        NaN where a row has one.

    Raises
    ------
    ValueError
        If `below` is no such probability, the shapes differ, or the rows are of no token.
    """
    xp = namespace(log_p0, logpi)
    same_shape("exit_mass", log_p0=log_p0, logpi=logpi)
    if log_p0.ndim == 0 or log_p0.shape[-1] == 0:
        raise ValueError(
            f"exit_mass needs rows of one token or more, got shape {tuple(log_p0.shape)}; pass whole rows"
        )
    mass = xp.where(log_p0 < _log_threshold(below), xp.exp(logpi), xp.zeros_like(logpi))
    broken = xp.isnan(log_p0) | xp.isnan(logpi)
    return xp.sum(xp.where(broken, xp.full_like(mass, float("nan")), mass), axis=-1)
