r"""Mismatch beyond numerics and lag: top-p, reward filters, deferred responses, retokenisation.

Exact mean gradients, in the logits of one prefix, shapes (K,). None of these is removed by a correction of
the two terms; each has a remedy at the infrastructure layer, named in its docstring. Claims ``infra-*``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory.arrays import Array, namespace
from theory.fisher import gradient, score_mean


def nucleus(p: Array, top_p: float, /) -> Array:
    """Boolean mask of the smallest set of likeliest actions whose mass reaches `top_p`; shape (..., K)."""
    if isinstance(top_p, (int, float)) and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}; 1 keeps everything")
    xp = namespace(p)
    order = xp.argsort(-p, axis=-1, stable=True)
    ordered = xp.take_along_axis(p, order, axis=-1)
    before = xp.cumulative_sum(ordered, axis=-1) - ordered
    # the mass before an action decides, so the one that reaches top_p stays; an ulp of rounding must not add
    # one
    kept = before < top_p * (1 - 4 * xp.finfo(p.dtype).eps)
    return xp.take_along_axis(kept, xp.argsort(order, axis=-1), axis=-1) | (top_p >= 1)


class TopP(NamedTuple):
    """Policy gradients under a truncating sampler, each of shape (K,)."""

    uncorrected: np.ndarray
    """Gradient of the truncated samples less the true one; a ratio with the unfiltered reported probability
    is 1 and changes nothing"""
    corrected: np.ndarray
    """With the ratio to the distribution really sampled: the scale 1/P goes, the missing support stays"""
    restricted: np.ndarray
    """Gradient (not bias) of the objective restricted to the nucleus: a trainer masked to it is exact for
    that"""


def top_p_bias(p: np.ndarray, advantage: np.ndarray, keep: np.ndarray, /) -> TopP:
    """Bias that sampling only from `keep`, renormalised, adds.

    Remedy: top_p = 1; or report the distribution really sampled and mask the trainer to the same set.
    """
    mass = p[keep].sum()
    sampled = np.where(keep, p / mass, 0.0)
    g = gradient(p, advantage)
    return TopP(
        uncorrected=score_mean(sampled * advantage, p) - g,
        corrected=-score_mean(np.where(keep, 0.0, p) * advantage, p),
        restricted=gradient(sampled, advantage),
    )


class RewardFilter(NamedTuple):
    """What it does to keep all right responses but only a share of the wrong ones, rewards +-1."""

    scale: float
    """Factor on the true gradient when on-policy: a pure rescale, ``(1 + c)/(2 Z)``"""
    mean_advantage: float
    """Mean reward of the kept responses, the baseline error it creates"""
    gradient: np.ndarray
    """Mean gradient of the kept samples with the reward as advantage, shape (K,)"""
    drift: np.ndarray
    """``Abar_c (mu - pi)``: what the filter adds under a mismatched sampler, removed by centring; shape
    (K,)"""


def reward_filter(
    mu: np.ndarray, pi: np.ndarray, success: np.ndarray, /, *, keep_wrong: float
) -> RewardFilter:
    """Filter by outcome: r = +1 always kept, r = -1 with probability `keep_wrong`, weights renormalised.

    Parameters
    ----------
    mu, pi : arrays, shape (K,)
        Sampler and trainer.
    success : array, shape (K,)
        Probability of reward +1 per action.
    keep_wrong : float
        c in [0, 1]; 1 filters nothing.

    Notes
    -----
    Remedy: form batches independently of the outcome, or centre the score. On-policy the filter is harmless
    but for its scale.
    """
    if not 0 <= keep_wrong <= 1:
        raise ValueError(f"keep_wrong is a probability, got {keep_wrong}")
    right = float(mu @ success)
    kept = right + keep_wrong * (1 - right)
    mean = (right - keep_wrong * (1 - right)) / kept
    signed = mu * (success - keep_wrong * (1 - success)) / kept
    return RewardFilter((1 + keep_wrong) / (2 * kept), mean, score_mean(signed, pi), mean * (mu - pi))


def group_kept(success: float, samples: int, /) -> float:
    """Probability that a group is kept when groups of equal rewards are dropped: ``1 - rho^n - (1 - rho)^n``.

    Reweights prompts by difficulty: those near success 1/2 count most.
    """
    if not 0 <= success <= 1 or samples < 1:
        raise ValueError(f"needs a success probability and samples >= 1, got {success} and {samples}")
    return 1 - success**samples - (1 - success) ** samples


def first_batch_bias(p: np.ndarray, advantage: np.ndarray, long: np.ndarray, /) -> np.ndarray:
    """Bias of the first batch, while long responses are still being generated: shape (K,)."""
    return top_p_bias(p, advantage, ~long).uncorrected


def deferred_bias(
    p_before: np.ndarray, p: np.ndarray, advantage: np.ndarray, long: np.ndarray, /
) -> np.ndarray:
    """Bias in the steady state, when long responses arrive one update late: shape (K,).

    ``sum_long (p_before - p) A (e_a - p)``. Remedy: batches formed independently of length, or the lag ratio
    of each response's own version.

    Parameters
    ----------
    p_before, p : arrays, shape (K,)
        Policy one update ago, and now.
    advantage : array, shape (K,)
        Advantage of each response.
    long : array of bool, shape (K,)
        Which responses arrive late.
    """
    return score_mean(np.where(long, p_before - p, 0.0) * advantage, p)


class Retokenised(NamedTuple):
    """Two tokens (a, b) decoded to text and encoded again as one token ab."""

    first: np.ndarray
    """Bias of the gradient in the first prefix's logits, ``P(a, b) A (e_ab - e_a)``"""
    second: np.ndarray
    """Bias in the logits after a: the whole gradient there is lost"""
    log_ratio: float
    """``log pi(ab) - log pi(a, b)``: a spurious ratio, neither discrepancy nor lag"""


def retokenised(
    p_first: np.ndarray, p_second: np.ndarray, /, *, a: int, b: int, ab: int, advantage: float
) -> Retokenised:
    """Bias when the text of (a, b) is trained on as the token ab. Remedy: token ids end to end.

    Parameters
    ----------
    p_first, p_second : arrays, shape (K,)
        Policy at the first prefix, and after a.
    a, b, ab : int
        Token ids.
    advantage : float
        Advantage of the response; the response (ab) itself has the same one and is not affected.
    """
    both = p_first[a] * p_second[b]
    unit = np.eye(p_first.shape[-1])
    return Retokenised(
        first=both * advantage * (unit[ab] - unit[a]),
        second=-both * advantage * (np.eye(p_second.shape[-1])[b] - p_second),
        log_ratio=float(np.log(p_first[ab]) - np.log(both)),
    )
