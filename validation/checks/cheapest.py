"""Claim ``cheapest``: some pair of correction and sync rule keeps two floors with the fewest syncs.

The pair is chosen on all environments but one and judged on that one, in turn: a frontier read off the same
runs it is judged by would always look good.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import LN_FLOORS, at_worst, estimate, over_groups
from validation.plan import CORRECTIONS, PERIODS, PG, SCHEDULED, scheduled
from validation.syncs import syncs_per_run

TWO_FLOORS = math.log(2)
"""At every step; the bound is the claim itself"""
RARELY = 4.0
"""Syncs after the first in 40 steps, one in ten: what `dlc` counts as rare"""
CLAIM = "cheapest"


class Point(NamedTuple):
    """A pair in one environment."""

    worst: float
    """Ln of the worst deviation, floors"""
    syncs: float
    """Per run, after the first"""


def checks(evidence: Evidence, /) -> list[Check]:
    """Deviation and syncs of the pair that was cheapest elsewhere.

    An environment without one is left out of the means, and counted in the note.
    """
    worlds = evidence.main
    points = {w.group: {name: _point(w, name) for name in _pairs(w)} for w in worlds}
    chosen = {group: _cheapest([p for g, p in points.items() if g != group]) for group in points}
    picked = {group: points[group][name] for group, name in chosen.items() if name is not None}
    note = _frontier(list(points.values()))
    without = len(chosen) - len(picked)
    return [
        Check(
            claim=CLAIM,
            reading="worst deviation of the pair that was cheapest in the other environments",
            form="at most",
            predicted=Estimate(value=TWO_FLOORS, unit=LN_FLOORS),
            margin=0.0,
            measured=over_groups(((g, p.worst) for g, p in picked.items()), unit=LN_FLOORS),
            control=Control(
                what="no correction, never synced", measured=estimate(worlds, lambda w: at_worst(w, PG))
            ),
            source=CLAIMS[CLAIM].how,
            note=f"chosen: {', '.join(dict.fromkeys(name for name in chosen.values() if name)) or 'none'}; "
            f"left out, {without} of {len(chosen)} environments: no pair was within two floors in the others",
        ),
        Check(
            claim=CLAIM,
            reading="its syncs per run",
            form="at most",
            predicted=Estimate(value=RARELY, unit="syncs"),
            margin=0.0,
            measured=over_groups(((g, p.syncs) for g, p in picked.items()), unit="syncs"),
            control=Control(
                what="sync every step",
                measured=estimate(worlds, lambda w: syncs_per_run(w, w.on_policy), unit="syncs"),
            ),
            source=CLAIMS[CLAIM].how,
            note=f"frontier over all environments: {note}",
        ),
    ]


def _pairs(world: World) -> list[str]:
    """Cells that are a correction with a sync rule: gates, schedules, or never."""
    names = [*CORRECTIONS, *(scheduled(rule, period) for rule in SCHEDULED for period in PERIODS)]
    return [name for name in names if name in world.cells]


def _point(world: World, name: str) -> Point:
    return Point(at_worst(world, name), syncs_per_run(world, name))


def _mean(points: list[dict[str, Point]], name: str) -> Point:
    return Point(*(float(np.mean(column)) for column in zip(*(p[name] for p in points), strict=True)))


def _cheapest(points: list[dict[str, Point]]) -> str | None:
    """Fewest syncs among the pairs within two floors on average; None if there is none."""
    if not points:
        return None
    shared = [name for name in points[0] if all(name in p for p in points)]
    means = {name: _mean(points, name) for name in shared}
    within = [name for name in shared if means[name].worst <= TWO_FLOORS]
    return min(within, key=lambda name: (means[name].syncs, means[name].worst), default=None)


def _frontier(points: list[dict[str, Point]]) -> str:
    """Pairs that none beats in both deviation and syncs, by syncs."""
    if not points:
        return "nothing was run"
    means = {name: _mean(points, name) for name in points[0] if all(name in p for p in points)}
    best, found = math.inf, []
    for name, point in sorted(means.items(), key=lambda item: (item[1].syncs, item[1].worst)):
        if point.worst < best:
            best = point.worst
            found.append(f"{name}: {point.syncs:.1f} syncs, {math.exp(point.worst):.2f} floors")
    return "; ".join(found)
