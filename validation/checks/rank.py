"""Claim ``rank``: the off-support share ranks the accuracy drop better than the deviation does.

A checkpoint is a stale cell of a world at one of a few steps, mean over its runs. Spearman's coefficients
over all checkpoints, with a bootstrap over environments: checkpoints of one environment are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import RESAMPLES, deviation
from validation.plan import CORRECTIONS
from validation.rank_correlation import resampled, spearman

SHARE, DEVIATION = 0.80, 0.74
"""Article 2"""
MARGIN = 0.1
"""Of a coefficient; the two of the article lie .06 apart"""
CHECKPOINTS = 4
"""Evenly over the run, the end included"""
UNIT = "Spearman"
CLAIM = "rank"


class Table(NamedTuple):
    """Checkpoints of all worlds, each array (n,)."""

    group: np.ndarray
    """Number of the environment"""
    drop: np.ndarray
    """On-policy accuracy less the checkpoint's"""
    share: np.ndarray
    deviation: np.ndarray
    """Floors"""


def checks(evidence: Evidence, /) -> list[Check]:
    """Both coefficients and their difference."""
    table = _table(evidence)
    rng = np.random.default_rng([evidence.seed, 71])
    shuffled = table._replace(share=rng.permutation(table.share), deviation=rng.permutation(table.deviation))
    half = table._replace(share=shuffled.share)
    note = f"{len(table.drop)} checkpoints; 95% bootstrap over environments"
    source = CLAIMS[CLAIM].article
    rows = [
        ("off-support share against accuracy drop", SHARE, MARGIN, _of_share, shuffled),
        ("deviation in floors against accuracy drop", DEVIATION, MARGIN, _of_deviation, shuffled),
        ("off-support share less deviation", 0.0, 0.0, _gap, half),
    ]
    return [
        Check(
            claim=CLAIM,
            reading=reading,
            form="at least",
            predicted=Estimate(value=predicted, unit=UNIT),
            margin=margin,
            measured=_bootstrap(table, statistic, rng),
            control=Control(what="checkpoints shuffled", measured=_bootstrap(off, statistic, rng)),
            source=source,
            note=note,
        )
        for reading, predicted, margin, statistic, off in rows
    ]


def _table(evidence: Evidence) -> Table:
    groups = list(dict.fromkeys(w.group for w in evidence.worlds))
    rows = [
        (groups.index(world.group), *values)
        for world in evidence.worlds
        for name in world.cells
        if name in CORRECTIONS
        for values in _checkpoints(world, name)
    ]
    return Table(*np.array(rows).T)


def _checkpoints(world: World, name: str) -> list[tuple[float, float, float]]:
    cell = world.cells[name]
    at = np.arange(1, CHECKPOINTS + 1) * len(world.steps) // CHECKPOINTS - 1
    drop = world.cells[world.on_policy].accuracy.mean(axis=-1) - cell.accuracy.mean(axis=-1)
    share = np.mean([trace.steps["off_support"][world.steps - 1] for trace in cell.traces], axis=0)
    floors = deviation(world, name)
    return [(drop[i], share[i], floors[i]) for i in at]


def _of_share(table: Table) -> float:
    return spearman(table.share, table.drop)


def _of_deviation(table: Table) -> float:
    return spearman(table.deviation, table.drop)


def _gap(table: Table) -> float:
    return _of_share(table) - _of_deviation(table)


def _bootstrap(table: Table, statistic: Callable[[Table], float], rng: np.random.Generator) -> Estimate:
    """Coefficient with its spread over environments drawn with replacement."""
    values = resampled(
        table.group,
        lambda i: statistic(Table(*(column[i] for column in table))),
        rng=rng,
        resamples=RESAMPLES,
    )
    groups = len(np.unique(table.group))
    return Estimate(value=statistic(table), stderr=float(np.std(values, ddof=1)), unit=UNIT, dof=groups - 1)
