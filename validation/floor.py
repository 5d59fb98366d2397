"""Deviation in noise floors, with an interval that repetitions give and nothing else.

A reading is a number per world. Where there are several environments, each is one repetition and the
interval is that of their mean. Where there is one, its seeds are the repetitions: a jackknife over the runs
of the methods and over the reference runs, for both vary. Deviations are averaged as logarithms, since they
span decades.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from theory.estimate import Estimate, difference, mean_estimate
from theory.floor import in_floors
from theory.jackknife import jackknife
from validation.evidence import Evidence, World

LN_FLOORS = "ln floors"
"""Unit of a deviation: 0 is one floor, ln 2 two floors"""
RESAMPLES = 300
"""Of a bootstrap over groups"""


def deviation(world: World, cell: str, /) -> np.ndarray:
    """Deviation of a cell from the on-policy runs in floors, shape (K); mean over all its runs.

    Of the on-policy cell itself: each run from the others.
    """
    if cell == world.on_policy:
        return left_out_deviations(world).mean(axis=-1)
    return in_floors(world.cells[cell].distance, world.floor)


def run_deviations(world: World, cell: str, /) -> np.ndarray:
    """Deviation of each run of a cell in floors, shape (K, S)."""
    distance = world.cells[cell].distance
    return np.stack([in_floors(distance[:, [i]], world.floor) for i in range(distance.shape[1])], axis=-1)


def left_out_deviations(world: World, /) -> np.ndarray:
    """Deviation of each on-policy run from the others, in floors that the others make: shape (K, R).

    Needs at least three reference runs: the two that remain make a floor.
    """
    floor, runs = world.floor, np.arange(world.floor.shape[1])
    parts = []
    for i in runs:
        others = np.delete(runs, i)
        parts.append(in_floors(floor[:, [i]][:, :, others], floor[:, others][:, :, others]))
    return np.stack(parts, axis=-1)


def at_end(world: World, cell: str, /) -> float:
    """Log of the deviation at the last step."""
    return math.log(deviation(world, cell)[-1])


def at_worst(world: World, cell: str, /) -> float:
    """Log of the largest deviation at any compared step."""
    return math.log(deviation(world, cell).max())


def estimate(
    worlds: Iterable[World], reading: Callable[[World], float], /, *, unit: str = LN_FLOORS
) -> Estimate:
    """Evaluate a reading over repetitions.

    Parameters
    ----------
    worlds : iterable of World
        Those of one group are averaged first. Several groups: each is one repetition. One group of one world:
        a jackknife over the runs of the methods and one over the reference runs.
    reading : callable
        A number of one world; NaN leaves the world out.
    unit : str
        Of the reading.

    Returns
    -------
    Estimate
        NaN if no world had a reading.
    """
    found = list(worlds)
    if len(found) == 1:
        return _within(found[0], reading, unit)
    return over_groups(((world.group, reading(world)) for world in found), unit=unit)


def over_groups(values: Iterable[tuple[str, float]], /, *, unit: str) -> Estimate:
    """Mean over groups of the mean within each, given as pairs of group and value; NaN is left out."""
    groups: dict[str, list[float]] = defaultdict(list)
    for group, value in values:
        groups[group].append(value)
    means = [_mean(group) for group in groups.values()]
    return mean_estimate([m for m in means if not math.isnan(m)], unit=unit)


def median_over_groups(
    values: Iterable[tuple[str, float]], /, *, seed: int = 0
) -> tuple[float, float, float]:
    """Median of all values with its 95% interval from drawing groups with replacement; NaN is left out.

    For what is skewed too much for a mean: a note beside the estimate that is judged. NaN for no value.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for group, value in values:
        if not math.isnan(value):
            groups[group].append(value)
    if not groups:
        return math.nan, math.nan, math.nan
    members = list(groups.values())
    rng = np.random.default_rng([seed, 72])
    drawn = [
        np.median(np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(np.concatenate(members))), float(low), float(high)


def of_probes(
    evidence: Evidence, name: str, reading: Callable[[Mapping[str, float]], float], /, *, unit: str
) -> Estimate:
    """Evaluate a reading of an analysis over its repetitions; NaN where the engine has no such analysis."""
    probes = evidence.probes.get(name, ())
    return over_groups(((probe.group, reading(probe.numbers)) for probe in probes), unit=unit)


def _mean(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def _within(world: World, reading: Callable[[World], float], unit: str) -> Estimate:
    runs = np.arange(min(len(c.traces) for n, c in world.cells.items() if n != world.on_policy))
    reference = np.arange(len(world.cells[world.on_policy].traces))
    of_runs = jackknife(lambda i: reading(world.select(i, reference)), [runs])
    of_reference = jackknife(lambda j: reading(world.select(runs, j)), [reference])
    # the two sets of runs are independent: variances add, and Welch says with how many degrees of freedom
    parts = (
        Estimate(value=float(of_runs.value), stderr=float(of_runs.stderr), dof=len(runs) - 1),
        Estimate(value=0.0, stderr=float(of_reference.stderr), dof=len(reference) - 1),
    )
    return dataclasses.replace(difference(*parts), unit=unit)
