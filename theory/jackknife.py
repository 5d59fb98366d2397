"""Delete-one jackknife over several independent groups of runs: an error for any ratio of their averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Jackknifed(NamedTuple):
    """A statistic with its standard error, arrays of one shape."""

    value: Any
    stderr: Any


def jackknife(statistic: Callable[..., Any], groups: Sequence[Any], /) -> Jackknifed:
    """Evaluate a statistic of several groups and its error from leaving out one member at a time.

    Parameters
    ----------
    statistic : callable
        Takes one array of members a group, in order, and returns a number or an array.
    groups : sequence of arrays
        Members of each group (seeds, environments, ...), independent of each other and between groups. A
        group of one member cannot be varied: the error is then NaN, not zero.

    Returns
    -------
    Jackknifed

    References
    ----------
    .. [1] B. Efron, C. Stein, "The jackknife estimate of variance", Ann. Statist. 9, 1981.
    """
    members = [np.asarray(group) for group in groups]
    value = np.asarray(statistic(*members), dtype=float)
    variance = np.zeros_like(value)
    for g, group in enumerate(members):
        n = len(group)
        if n < 2:
            variance = variance + np.nan
            continue
        left_out = np.stack(
            [statistic(*members[:g], np.delete(group, i), *members[g + 1 :]) for i in range(n)]
        )
        # groups vary independently, so their variances add
        variance = variance + (n - 1) / n * np.sum((left_out - left_out.mean(0)) ** 2, axis=0)
    return Jackknifed(value, np.sqrt(variance))
