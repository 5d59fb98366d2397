"""Claim ``ppo-reference``: what PPO's ratio refers to decides what it survives.

Several updates a batch, lr 2. On an exact engine a ratio to the trainer at the sync ("synced") is the ratio
to the engine; where the sampler is synced every step it is the ratio to the trainer before the batch.
"""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from validation.accuracy import lost, untrained
from validation.check import Check, Control, Form
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import LN_FLOORS, at_end, estimate
from validation.plan import BREAKING, MILD_LR, PPO_PERIODS, STALE, referring

CLAIM = "ppo-reference"
SURVIVES, SURVIVES_MARGIN = math.log(2), math.log(1.5)
"""Two floors, as everywhere; a factor 1.5 is the spread of repeated floors on few seeds"""
BREAKS, BREAKS_MARGIN = math.log(13), math.log(4)
"""Article 2: 13x for PG under FP8; the magnitude is claimed up to a factor four, 3.3 floors still break"""
COLLAPSE = math.log(32)
"""Stale, PPO on the trainer before the batch is worse than SC's 32x; same factor four"""
HELD = 0.9
"""ESS of the lag ratio: a clip against the sampler stops the lag where a tenth of the sample is lost"""
LOST = 0.5
"""Of the on-policy accuracy: what survives does not lose half"""
BEFORE, ENGINE = "before-batch", "engine"
CELLS = (
    *(referring(reference, f"every {n}") for reference, periods in PPO_PERIODS.items() for n in periods),
    *(referring(ENGINE, strength) for strength in BREAKING),
)


def checks(evidence: Evidence, /) -> list[Check]:
    """Mild staleness, a stale sampler, and an engine with noise, by reference."""
    worlds = tuple(w for w in evidence.worlds if w.lr == MILD_LR)
    exact = estimate(worlds, lambda w: at_end(w, referring(BEFORE, "every 1")))
    never = f"every {STALE}"

    def floors(
        reading: str,
        form: Form,
        bound: float,
        margin: float,
        cell: str,
        control: tuple[str, Estimate],
        note="",
    ) -> Check:
        return Check(
            claim=CLAIM,
            reading=reading,
            form=form,
            predicted=Estimate(value=bound, unit=LN_FLOORS),
            margin=margin,
            measured=estimate(worlds, lambda w: at_end(w, cell)),
            control=Control(what=control[0], measured=control[1]),
            source=CLAIMS[CLAIM].article,
            note=note,
        )

    def stale(reference: str) -> Estimate:
        return estimate(worlds, lambda w: at_end(w, referring(reference, never)))

    synced = ("exact engine, sync every step", exact)
    return [
        floors(
            "trainer before the batch, sync every 4 steps",
            "at most",
            SURVIVES,
            SURVIVES_MARGIN,
            referring(BEFORE, "every 4"),
            ("never synced", stale(BEFORE)),
            _periods(worlds, BEFORE),
        ),
        floors(
            "trainer before the batch, never synced",
            "at least",
            COLLAPSE,
            BREAKS_MARGIN,
            referring(BEFORE, never),
            synced,
        ),
        floors(
            "engine, sync every 2 steps",
            "at most",
            SURVIVES,
            SURVIVES_MARGIN,
            referring(ENGINE, "every 2"),
            ("never synced", stale(ENGINE)),
            _periods(worlds, ENGINE),
        ),
        Check(
            claim=CLAIM,
            reading="engine, never synced: least ESS of the lag ratio",
            form="at least",
            predicted=Estimate(value=HELD, unit="share"),
            margin=0.0,
            measured=estimate(worlds, lambda w: _least_ess(w, referring(ENGINE, never)), unit="share"),
            control=Control(
                what="trainer before the batch, never synced",
                measured=estimate(worlds, lambda w: _least_ess(w, referring(BEFORE, never)), unit="share"),
            ),
            source=CLAIMS[CLAIM].law,
            note="the clip bounds the lag",
        ),
        Check(
            claim=CLAIM,
            reading="engine, never synced: on-policy accuracy lost by the end",
            form="at most",
            predicted=Estimate(value=LOST, unit="share"),
            margin=0.0,
            measured=estimate(worlds, lambda w: lost(w, referring(ENGINE, never)), unit="share"),
            control=Control(
                what="no training at all: the accuracy after the first step",
                measured=estimate(worlds, untrained, unit="share"),
            ),
            source=CLAIMS[CLAIM].article,
            note="what bounds the lag stops the learning: the clip keeps the weights near the sampler's",
        ),
        *(
            floors(
                f"engine, sync every step, {strength}",
                "at least",
                BREAKS,
                BREAKS_MARGIN,
                referring(ENGINE, strength),
                synced,
            )
            for strength in BREAKING
        ),
    ]


def _periods(worlds: tuple[World, ...], reference: str) -> str:
    found = []
    for period in next(p for name, p in PPO_PERIODS.items() if name == reference):
        cell = referring(reference, f"every {period}")
        value = estimate(worlds, lambda w, cell=cell: at_end(w, cell)).value
        found.append(f"{'never' if period == STALE else period}: {math.exp(value):.1f}")
    return f"floors at the end by sync period: {', '.join(found)}"


def _least_ess(world: World, cell: str) -> float:
    return float(np.mean([trace.steps["ess_token"].min() for trace in world.cells[cell].traces]))
