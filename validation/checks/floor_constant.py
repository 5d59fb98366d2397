"""Claim ``floor-constant``: engine discrepancy stays about constant in training while lag grows."""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import estimate
from validation.plan import IS, NOISY, NOISY_STALE
from validation.results import shown

FLAT = 0.1
"""Of the lag's slope: a tenth of what it is set against"""
ABOUT = math.log(1.25)
"""ln: "approximately constant" is read as a quarter more or less over the run"""
ENDS = 5
"""Steps averaged at either end of the run"""
DISCREPANCY = "discrepancy_rms"
UNIT = "of the lag's slope"
CLAIM = "floor-constant"


def checks(evidence: Evidence, /) -> list[Check]:
    """Slopes under a stale sampler, and the discrepancy of a synced one, whose policy does move."""
    claim = CLAIMS[CLAIM]
    return [
        Check(
            claim=CLAIM,
            reading="slope of rms discrepancy over slope of rms lag, stale sampler",
            form="within",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=FLAT,
            measured=estimate(evidence.main, lambda w: _slope(w, NOISY_STALE, DISCREPANCY), unit=UNIT),
            control=Control(
                what="in place of the discrepancy, the lag of a stale run with an exact engine",
                measured=estimate(evidence.main, _slope_of_lag, unit=UNIT),
            ),
            source=claim.article,
            note="exact only between syncs: what the sampler holds does not change",
        ),
        Check(
            claim=CLAIM,
            reading="slope of rms discrepancy, synced every step, over slope of the stale lag",
            form="within",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=FLAT,
            measured=estimate(evidence.main, lambda w: _slope(w, NOISY, DISCREPANCY), unit=UNIT),
            control=Control(
                what="in place of the discrepancy, the lag of a stale run with an exact engine",
                measured=estimate(evidence.main, _slope_of_lag, unit=UNIT),
            ),
            source=claim.article,
        ),
        Check(
            claim=CLAIM,
            reading="rms discrepancy at the end over the start, synced every step",
            form="within",
            predicted=Estimate(value=0.0, unit="ln x"),
            margin=ABOUT,
            measured=estimate(evidence.main, _change, unit="ln x"),
            control=Control(
                what="the lag of the stale run in place of the discrepancy",
                measured=estimate(evidence.main, _change_of_lag, unit="ln x"),
            ),
            source=claim.article,
            note="frozen logit noise of .3 nats; had it scaled with the entropy of each prefix: "
            f"{shown(estimate(evidence.main, _change_of_scaled, unit='ln x'))}",
        ),
    ]


def _mean(world: World, cell: str, column: str) -> np.ndarray:
    return np.mean([trace.steps[column] for trace in world.cells[cell].traces], axis=0)


def _slope(world: World, cell: str, column: str) -> float:
    """Slope of a column over the steps, by that of the noisy stale run's lag."""
    steps = world.cells[cell].traces[0].steps["step"]
    lag = np.polyfit(steps, _mean(world, NOISY_STALE, "lag_rms"), 1)[0]
    return float(np.polyfit(steps, _mean(world, cell, column), 1)[0] / lag)


def _slope_of_lag(world: World) -> float:
    return _slope(world, IS, "lag_rms")


def _ends(series: np.ndarray) -> float:
    return math.log(series[-ENDS:].mean() / series[:ENDS].mean())


def _change(world: World) -> float:
    return _ends(_mean(world, NOISY, DISCREPANCY))


def _change_of_lag(world: World) -> float:
    return _ends(_mean(world, NOISY_STALE, "lag_rms"))


def _change_of_scaled(world: World) -> float:
    scaled = world.cells[NOISY].exact.get("discrepancy if noise scaled with entropy")
    return math.nan if scaled is None else _ends(scaled.mean(axis=-1))
