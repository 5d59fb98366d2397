"""Claim ``forecast``: the first steps of a run predict its crossing step, with an interval.

Judged on runs of environments the predictor has never seen; a forecast is made once the sample ESS is below a
level, from the steps until then. The three Gaussian predictors stand beside it on the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import over_groups
from validation.monitor_trial import Forecasted, forecast_one
from validation.plan import IS, PG, SC, SEQ_IS

MADE_AT = 0.7
"""Sample ESS; at .6 the intervals of the trial were too narrow, at .8 little was known"""
NEAR = 1.0
"""Steps"""
MOST = 0.9
COVERAGE, COVERAGE_MARGIN = 0.9, 0.05
"""Shares; both from the claim: within a step in at least 90%, coverage of the 90% interval 85% to 95%"""
SOON = 2
"""Steps ahead up to which the trial found one step within reach"""
CELLS = (PG, SC, IS, SEQ_IS)
"""Stale all along: a forecast needs a lag that nothing interrupts"""
CLAIM = "forecast"

Case = tuple[str, Forecasted]
"""Environment and forecast"""


def checks(evidence: Evidence, /) -> list[Check]:
    """Share within a step, near and at all, and what the interval covers."""
    cases = _cases(evidence)
    soon = [case for case in cases if case[1].crossing - case[1].made <= SOON]
    late = [case for case in cases if case[1].crossing - case[1].made > SOON]
    end = max((float(w.steps[-1]) for w in evidence.worlds), default=math.nan)

    def share(of: list[Case], hit: Callable[[Forecasted], bool]) -> Estimate:
        return over_groups(((group, float(hit(case))) for group, case in of), unit="share")

    return [
        Check(
            claim=CLAIM,
            reading=f"share of forecasts within one step of the crossing, made at ESS {MADE_AT:g}",
            form="at least",
            predicted=Estimate(value=MOST, unit="share"),
            margin=0.0,
            measured=share(cases, _near),
            control=Control(
                what="a Gaussian whose sigma goes on growing as in the same first steps",
                measured=share(cases, _square_near),
            ),
            source=CLAIMS[CLAIM].how,
            note=_beside(cases) + _ahead(cases),
        ),
        Check(
            claim=CLAIM,
            reading=f"the same, crossings at most {SOON} steps ahead",
            form="at least",
            predicted=Estimate(value=MOST, unit="share"),
            margin=0.0,
            measured=share(soon, _near),
            control=Control(what=f"crossings more than {SOON} steps ahead", measured=share(late, _near)),
            source=CLAIMS[CLAIM].how,
            note=f"{len(soon)} forecasts; {_beside(soon)}",
        ),
        Check(
            claim=CLAIM,
            reading="share of crossings inside the 90% interval",
            form="within",
            predicted=Estimate(value=COVERAGE, unit="share"),
            margin=COVERAGE_MARGIN,
            measured=share(cases, lambda case: case.low <= case.crossing <= case.high),
            control=Control(
                what="the point forecast as an interval",
                measured=share(cases, lambda case: abs(case.step - case.crossing) < 0.5),
            ),
            source=CLAIMS[CLAIM].how,
            note=f"mean width {_width(cases, end):.1f} steps, cut at the end of the run; median "
            f"{_median_width(cases):g}",
        ),
    ]


def _cases(evidence: Evidence) -> list[Case]:
    found = []
    for world in evidence.worlds:
        for name in CELLS:
            if name not in world.cells:
                continue
            for seed, trace in enumerate(world.cells[name].traces):
                case = forecast_one(trace.steps, MADE_AT, seed=seed)
                if case is not None:
                    found.append((world.group, case))
    return found


def _near(case: Forecasted) -> bool:
    return abs(case.step - case.crossing) <= NEAR


def _square_near(case: Forecasted) -> bool:
    return abs(case.square - case.crossing) <= NEAR


def _beside(cases: list[Case]) -> str:
    """Count how often the Gaussian predictors are within a step on the same runs."""
    if not cases:
        return "no run crossed after a forecast could be made"
    near = {
        name: np.mean([abs(getattr(case, name) - case.crossing) <= NEAR for _, case in cases])
        for name in ("square", "var", "kl")
    }
    return (
        f"{len(cases)} runs; within a step: extrapolated {near['square']:.2f}; as measured at each step, and "
        f"so knowing the run to its end: var {near['var']:.2f}, KL {near['kl']:.2f}"
    )


def _ahead(cases: list[Case]) -> str:
    """Where the boundary lies: share by the steps that were still to come."""
    parts = []
    for low, high in ((1, 2), (3, 4), (5, 8), (9, math.inf)):
        hits = [_near(case) for _, case in cases if low <= case.crossing - case.made <= high]
        if hits:
            name = f"{low}-{high}" if math.isfinite(high) else f"{low} or more"
            parts.append(f"{name} steps ahead {np.mean(hits):.2f} of {len(hits)}")
    return "; " + ", ".join(parts) if parts else ""


def _width(cases: list[Case], end: float) -> float:
    return (
        float(np.mean([min(c.high, end + 1) - min(c.low, end + 1) for _, c in cases])) if cases else math.nan
    )


def _median_width(cases: list[Case]) -> float:
    return float(np.median([c.high - c.low for _, c in cases])) if cases else math.nan
