"""Which number ranks the accuracy drop of a checkpoint best: Spearman with a bootstrap over whole runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from theory.estimate import Estimate

RESAMPLES = 2000
"""The ends of a 95% interval then rest on 50 draws each"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Numbers of the compared weights of all runs, one entry a checkpoint (N)."""

    run: np.ndarray
    """Which run it is of: checkpoints of one run are not independent"""
    drop: np.ndarray
    """Accuracy of the on-policy runs at that step minus its own, share"""
    measures: dict[str, np.ndarray]
    """By name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """A rank correlation with its interval."""

    value: float
    low: float
    """2.5% of the resamples lie below"""
    high: float
    stderr: float


NOTHING = Correlation(value=float("nan"), low=float("nan"), high=float("nan"), stderr=float("nan"))


def spearman(x: np.ndarray, y: np.ndarray, /) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side is constant.

    Parameters
    ----------
    x, y : array, shape (N,)
        Of one length, finite or infinite; NaN gives NaN.
    """
    if np.isnan(x).any() or np.isnan(y).any() or len(x) < 2:
        return float("nan")
    a, b = rankdata(x), rankdata(y)
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else float("nan")


def correlations(
    points: Checkpoints, /, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[dict[str, Correlation], np.ndarray]:
    """Rank correlation of each measure with the accuracy drop.

    Parameters
    ----------
    points : Checkpoints
        Entries with a NaN are left out.
    seed : int
        Of the resampling.
    resamples : int
        Bootstrap samples of whole runs.

    Returns
    -------
    dict
        By name of the measure.
    array, shape (resamples, M)
        The resampled values, columns in the order of the dict: for differences between them.
    """
    kept = ~np.isnan(np.stack([points.drop, *points.measures.values()])).any(axis=0)
    drop, run = points.drop[kept], points.run[kept]
    columns = {name: values[kept] for name, values in points.measures.items()}
    members = [np.flatnonzero(run == r) for r in np.unique(run)]
    if not members:
        return dict.fromkeys(columns, NOTHING), np.full((1, len(columns)), np.nan)
    generator = np.random.default_rng(seed)
    draws = np.empty((resamples, len(columns)))
    for i in range(resamples):
        picked = np.concatenate([members[j] for j in generator.integers(len(members), size=len(members))])
        draws[i] = [spearman(x[picked], drop[picked]) for x in columns.values()]
    found = {}
    for j, (name, x) in enumerate(columns.items()):
        column = draws[:, j]
        if np.isnan(column).all():  # a constant has no rank
            found[name] = NOTHING
            continue
        low, high = np.nanquantile(column, (0.025, 0.975))
        found[name] = Correlation(
            value=spearman(x, drop), low=float(low), high=float(high), stderr=float(np.nanstd(column))
        )
    return found, draws


def as_estimate(found: Correlation, /) -> Estimate:
    """Correlation as the checks take it: its bootstrap error for a standard error."""
    return Estimate(value=found.value, stderr=found.stderr, unit="rank correlation")
