"""Claim ``noise-floor``: the KL between on-policy runs is a unit, and sampling noise sets it."""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from theory.floor import measured_floor
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import LN_FLOORS, at_end, estimate, left_out_deviations
from validation.plan import HALF_BATCH, PG

FACTOR_TWO = math.log(2)
"""The smallest factor any claim here turns on is two floors, so the unit has to be good to a factor two"""
HALF_MARGIN = math.log(1.5)
"""The law is first order in the spread of the runs; it still has to tell 2 from 1 and from 4"""
EARLY = 10
"""Steps over which the batch law is read: it holds before the policy saturates"""


def checks(evidence: Evidence, /) -> list[Check]:
    """On-policy runs lie at one floor of each other; half the batch, twice the floor."""
    claim = CLAIMS["noise-floor"]
    found = [
        Check(
            claim="noise-floor",
            reading="rms deviation of on-policy runs from each other, end",
            form="at most",
            predicted=Estimate(value=0.0, unit=LN_FLOORS),
            margin=FACTOR_TWO,
            measured=estimate(evidence.main, _spread),
            control=Control(
                what="stale PG in place of on-policy",
                measured=estimate(evidence.main, lambda w: at_end(w, PG)),
            ),
            source=claim.source,
            note="each run judged by the others, in floors the others make",
        )
    ]
    if all(HALF_BATCH in world.batch_floors for world in evidence.main):
        found.append(
            Check(
                claim="noise-floor",
                reading=f"floor at half the batch, in floors, steps 1-{EARLY}",
                form="within",
                predicted=Estimate(value=math.log(2), unit=LN_FLOORS),
                margin=HALF_MARGIN,
                measured=estimate(evidence.main, _half_batch),
                control=Control(
                    what="the same batch: one half of the references against the other",
                    measured=estimate(evidence.main, _same_batch),
                ),
                source=claim.law,
            )
        )
    return found


def _spread(world: World) -> float:
    return math.sqrt(np.mean(np.log(left_out_deviations(world)[-1]) ** 2))


def _half_batch(world: World) -> float:
    return _log_ratio(world, world.batch_floors[HALF_BATCH], world.floor)


def _same_batch(world: World) -> float:
    half = world.floor.shape[1] // 2
    return _log_ratio(world, world.floor[:, :half, :half], world.floor[:, half:, half:])


def _log_ratio(world: World, floor: np.ndarray, reference: np.ndarray) -> float:
    """Mean log ratio of two floors over the early steps."""
    early = world.steps <= EARLY
    return float(np.log(measured_floor(floor[early]) / measured_floor(reference[early])).mean())
