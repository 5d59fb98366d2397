"""Claim ``dlc``: within two floors under a stale sampler, at the end and throughout, with few resyncs."""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import LN_FLOORS, at_end, at_worst, estimate
from validation.plan import DLC, DLC_FREE, DLC_RESPONSE, IS
from validation.syncs import syncs_per_run

TWO_FLOORS = math.log(2)
"""The bound is the claim itself, so no margin is added to it"""
RARELY = 4.0
"""Resyncs in a run of 40 steps, one in ten; article 1 saw one in each of three runs"""


def checks(evidence: Evidence, /) -> list[Check]:
    """End point, worst step and resyncs of DLC as shipped, and with each gate where it was run."""
    found = []
    free = DLC_FREE if evidence.has(DLC_FREE) else IS
    off = "resync off" if free == DLC_FREE else "resync and clip off (stale IS, equal to DLC's weights there)"
    gates = [cell for cell in (DLC, DLC_RESPONSE) if evidence.has(cell)]
    for cell in gates:
        for reading, at in (("end", at_end), ("worst step", at_worst)):
            found.append(
                Check(
                    claim="dlc",
                    reading=f"{cell}: deviation, {reading}",
                    form="at most",
                    predicted=Estimate(value=TWO_FLOORS, unit=LN_FLOORS),
                    margin=0.0,
                    measured=estimate(evidence.main, lambda w, at=at, cell=cell: at(w, cell)),
                    control=Control(what=off, measured=estimate(evidence.main, lambda w, at=at: at(w, free))),
                    source=CLAIMS["dlc"].article,
                )
            )
        found.append(
            Check(
                claim="dlc",
                reading=f"{cell}: resyncs per run",
                form="at most",
                predicted=Estimate(value=RARELY, unit="resyncs"),
                margin=0.0,
                measured=estimate(evidence.main, lambda w, cell=cell: _resyncs(w, cell), unit="resyncs"),
                control=Control(
                    what="sync every step",
                    measured=estimate(evidence.main, lambda w: syncs_per_run(w, w.on_policy), unit="resyncs"),
                ),
                source=CLAIMS["dlc"].article,
            )
        )
    return found


def _resyncs(world: World, cell: str) -> float:
    return float(np.mean([trace.steps["resynced"].sum() for trace in world.cells[cell].traces]))
