"""Advantages from rewards: which baseline is subtracted, and what is left of it at each prefix."""

from __future__ import annotations

from typing import Literal, get_args

from theory.arrays import Array, finite_or_zero, namespace, same_shape

Baseline = Literal["none", "global", "group", "group-std", "off-policy-optimal"]
"""none: the reward; global: minus the batch mean; group: minus the mean of the samples of one prompt (GRPO
without its scale); group-std: that, divided by the group's standard deviation (GRPO); off-policy-optimal:
minus the mean of the group weighted by squared ratio and squared norm of the score (VCPO's OPOB)"""

STD_FLOOR = 1e-6
"""Added to the group's standard deviation, as verl does: a group of equal rewards gets advantage 0. The
deviation divides by n, which is defined for one sample; verl's by n - 1, a factor of 1.07 at n = 8."""


def advantages(reward: Array, /, *, baseline: Baseline) -> Array:
    """Advantage of each response from the rewards of its batch.

    Parameters
    ----------
    reward : array, shape (..., prompts, samples)
        Rewards; one row is one group, all samples of one prompt.
    baseline : {"none", "global", "group", "group-std"}
        What is subtracted. Only "none" and "global" leave a mean advantage on a shared prefix: with a group
        baseline centring the score changes nothing there (theory: the lemma of claim ``centering``).

    Returns
    -------
    array, shape (..., prompts, samples)
    """
    xp = namespace(reward)
    match baseline:
        case "none":
            return reward
        case "global":
            return reward - xp.mean(reward, axis=(-2, -1), keepdims=True)
        case "group":
            return reward - xp.mean(reward, axis=-1, keepdims=True)
        case "group-std":
            centered = reward - xp.mean(reward, axis=-1, keepdims=True)
            return centered / (xp.std(reward, axis=-1, keepdims=True) + STD_FLOOR)
        case "off-policy-optimal":
            raise ValueError(
                "the off-policy-optimal baseline needs each response's ratio and score norm beside its "
                "reward; call off_policy_optimal, as the toy does, or choose another baseline"
            )
        case _:
            known = ", ".join(get_args(Baseline))
            raise ValueError(f"unknown baseline {baseline!r}; known: {known}")


def off_policy_optimal(reward: Array, log_ratio: Array, score_norm: Array, /) -> Array:
    r"""Advantages with the baseline of least variance for a ratio-weighted gradient, one group a row.

    .. math:: b^* = \frac{\sum_i w_i^2 \|s_i\|^2 R_i}{\sum_i w_i^2 \|s_i\|^2}

    minimises ``E |w (R - b) s|^2``, with s the score of the whole response in the parameters. Computed from
    logs: a ratio or a norm may overflow or underflow, its share of the group does not.

    Parameters
    ----------
    reward : array, shape (..., samples)
        Rewards of the responses to one prompt.
    log_ratio : array, same shape
        Log of the response's unclipped ratio, nats; -inf weighs nothing.
    score_norm : array, same shape
        Euclidean norm of the gradient of its log-probability.

    Returns
    -------
    array, same shape
        The rewards themselves where no response of the group has a weight; NaN where a ratio or a norm of it
        is NaN or infinite.

    Raises
    ------
    ValueError
        If the shapes differ, or a group has no response.

    References
    ----------
    .. [1] VCPO, arXiv 2602.17616: the off-policy optimal baseline, unclipped ratios, scope "group". Its
       scripts divide by the group's standard deviation as well; that scale is not part of the baseline.
    """
    xp = namespace(reward, log_ratio, score_norm)
    same_shape("off_policy_optimal", reward=reward, log_ratio=log_ratio, score_norm=score_norm)
    if reward.ndim == 0 or reward.shape[-1] == 0:
        raise ValueError(
            f"a baseline needs a group of one response or more, got shape {tuple(reward.shape)}; drop empty "
            "groups first"
        )
    infinity = float("inf")
    # NaN compares false, and so is not known either
    known = (log_ratio < infinity) & (score_norm >= 0) & (score_norm < infinity)
    weighs = known & (score_norm > 0)
    log_norm = xp.log(xp.where(weighs, score_norm, xp.ones_like(score_norm)))
    log_weight = xp.where(weighs, log_ratio + log_norm, xp.full_like(log_norm, -infinity))
    weight = xp.exp(2 * (log_weight - finite_or_zero(xp.max(log_weight, axis=-1, keepdims=True))))
    total = xp.sum(weight, axis=-1, keepdims=True)
    positive = total > 0
    mean = xp.sum(weight * reward, axis=-1, keepdims=True) / xp.where(positive, total, xp.ones_like(total))
    advantage = reward - xp.where(positive, mean, xp.zeros_like(mean))
    whole = xp.all(known, axis=-1, keepdims=True)
    return xp.where(whole, advantage, xp.full_like(advantage, float("nan")))
