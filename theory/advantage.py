"""Advantages from rewards: which baseline is subtracted, and what is left of it at each prefix."""

from __future__ import annotations

from typing import Literal, get_args

from theory.arrays import Array, namespace

Baseline = Literal["none", "global", "group", "group-std"]
"""none: the reward; global: minus the batch mean; group: minus the mean of the samples of one prompt (GRPO
without its scale); group-std: that, divided by the group's standard deviation (GRPO)"""

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
        case _:
            known = ", ".join(get_args(Baseline))
            raise ValueError(f"unknown baseline {baseline!r}; known: {known}")
