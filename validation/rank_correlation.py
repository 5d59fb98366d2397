"""Spearman's rank correlation, and its spread over groups drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import rankdata


def spearman(x: np.ndarray, y: np.ndarray, /) -> float:
    """Spearman's rank correlation, ties at their mean rank.

    Parameters
    ----------
    x, y : array, shape (N,)
        Of one length, finite or infinite; pairs with a NaN are left out.

    Returns
    -------
    float
        NaN for fewer than two pairs, or where one side is constant.
    """
    kept = ~(np.isnan(x) | np.isnan(y))
    if kept.sum() < 2:
        return float("nan")
    a, b = rankdata(x[kept]), rankdata(y[kept])
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else float("nan")


def resampled(
    group: np.ndarray,
    statistic: Callable[[np.ndarray], float | list[float]],
    /,
    *,
    rng: np.random.Generator,
    resamples: int,
) -> np.ndarray:
    """Evaluate a statistic on whole groups drawn with replacement: members of one are not independent.

    Parameters
    ----------
    group : array, shape (N,)
        Which group each entry is of.
    statistic : callable
        Takes the places of the drawn entries and returns M numbers, or one.
    rng : Generator
        Draws.
    resamples : int
        How many times.

    Returns
    -------
    array, shape (resamples,) or (resamples, M)
    """
    members = [np.flatnonzero(group == g) for g in np.unique(group)]
    n = len(members)
    return np.array(
        [statistic(np.concatenate([members[i] for i in rng.integers(n, size=n)])) for _ in range(resamples)]
    )
