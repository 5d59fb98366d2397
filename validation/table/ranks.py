"""Which number ranks the accuracy drop of a checkpoint best: Spearman with a bootstrap over whole runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from theory.estimate import Estimate
from validation.rank_correlation import resampled, spearman

RESAMPLES = 2000
"""The ends of a 95% interval then rest on 50 draws each"""
FEWEST = 5
"""Runs that a rank correlation needs: whole runs are resampled, and of four there are but 35 samples"""


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
    """A rank correlation with its interval; NaN is "not measured"."""

    value: float = math.nan
    low: float = math.nan
    """2.5% of the resamples lie below"""
    high: float = math.nan
    stderr: float = math.nan
    runs: int = 0
    """With at least one checkpoint that was measured"""
    left_out: int = 0
    """Checkpoints where the measure, or the accuracy, was not measured"""


def correlations(
    points: Checkpoints, /, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[dict[str, Correlation], np.ndarray]:
    """Rank correlation of each measure with the accuracy drop.

    Parameters
    ----------
    points : Checkpoints
        Each measure is ranked over the checkpoints where it is no NaN, whatever the others are there.
    seed : int
        Of the resampling.
    resamples : int
        Bootstrap samples of whole runs.

    Returns
    -------
    dict
        By name of the measure; not measured with fewer than `FEWEST` runs.
    array, shape (resamples, M)
        The resampled values, columns in the order of the dict: for differences between them.
    """
    known = {name: ~(np.isnan(x) | np.isnan(points.drop)) for name, x in points.measures.items()}
    runs = {name: len(np.unique(points.run[kept])) for name, kept in known.items()}
    draws = np.full((1, len(known)), np.nan)
    if max(runs.values(), default=0) >= FEWEST:
        draws = resampled(
            points.run,
            lambda i: [spearman(x[i], points.drop[i]) for x in points.measures.values()],
            rng=np.random.default_rng(seed),
            resamples=resamples,
        )
    found = {}
    for j, (name, x) in enumerate(points.measures.items()):
        counts = {"runs": runs[name], "left_out": int((~known[name]).sum())}
        if runs[name] < FEWEST:
            draws[:, j] = np.nan
        column = draws[:, j]
        if np.isnan(column).all():  # too few runs, or a constant, which has no rank
            found[name] = Correlation(**counts)
            continue
        low, high = np.nanquantile(column, (0.025, 0.975))
        found[name] = Correlation(
            value=spearman(x, points.drop),
            low=float(low),
            high=float(high),
            stderr=float(np.nanstd(column)),
            **counts,
        )
    return found, draws


def as_estimate(found: Correlation, /) -> Estimate:
    """Correlation as the checks take it: its bootstrap error for a standard error."""
    return Estimate(value=found.value, stderr=found.stderr, unit="rank correlation")
