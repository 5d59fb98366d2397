"""Rows that stand out from the others by the size of their differences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.profiles import CAP


class Rows(NamedTuple):
    """Scores of rows, and which of them stand out."""

    row: np.ndarray
    """Row numbers"""
    score: np.ndarray
    """Mean scaled difference of each"""
    bad: np.ndarray
    """Which stand out"""
    low: float
    """Median score of the ordinary rows"""


LEAST_RATIO = 3.0


def unequal_rows(evidence: Evidence, size: np.ndarray, use: np.ndarray, /) -> Rows | None:
    """Rows whose mean difference no chance could give, if rows fall into two kinds.

    None if they are one kind.
    """
    row, x = evidence.row[use], np.minimum(size[use], CAP)
    if not len(row):
        return None
    names, index = np.unique(row, return_inverse=True)
    count = np.bincount(index)
    if len(names) < 6:
        return None
    score = np.bincount(index, weights=x) / count
    # what rows would show if tokens were dealt out at random
    rng = np.random.default_rng(0)
    shuffled = np.concatenate([np.bincount(index, weights=rng.permutation(x)) / count for _ in range(4)])
    order = np.sort(np.log(np.maximum(score, 1e-6)))
    cut = _valley(order)
    bad = np.log(np.maximum(score, 1e-6)) > cut
    if not bad.any() or bad.all():
        return None
    low, high = float(np.median(score[~bad])), float(np.median(score[bad]))
    # with two kinds of rows the spread is far wider than that of dealt tokens
    wide = float(np.std(np.log(np.maximum(score, 1e-6)))) > 2.5 * float(
        np.std(np.log(np.maximum(shuffled, 1e-6)))
    )
    if high < LEAST_RATIO * low or not wide:
        return None
    return Rows(names, score, bad, low)


def _valley(order: np.ndarray) -> float:
    """Split of sorted values into two groups with the least variance within."""
    n = len(order)
    total = np.cumsum(order)
    k = np.arange(1, n)
    between = total[k - 1] ** 2 / k + (total[-1] - total[k - 1]) ** 2 / (n - k)
    best = int(k[np.argmax(between)])
    return float((order[best - 1] + order[best]) / 2)
