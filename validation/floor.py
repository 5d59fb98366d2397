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
from collections.abc import Callable, Iterable

import numpy as np

from theory.estimate import Estimate, difference, mean_estimate
from theory.floor import in_floors
from theory.jackknife import jackknife
from validation.evidence import World

LN_FLOORS = "ln floors"
"""Unit of a deviation: 0 is one floor, ln 2 two floors"""


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
    groups: dict[str, list[World]] = defaultdict(list)
    for world in worlds:
        groups[world.group].append(world)
    if len(groups) == 1 and all(len(g) == 1 for g in groups.values()):
        return _within(next(iter(groups.values()))[0], reading, unit)
    means = [_mean([reading(world) for world in group]) for group in groups.values()]
    return mean_estimate([m for m in means if not math.isnan(m)], unit=unit)


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
