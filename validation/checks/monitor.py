"""Claim ``monitor``: the trigger fires no later than a step after the true crossing, and what that costs."""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

LATE = 0.05
"""Share of the runs; the claim says none"""
WITHIN = 1.0
"""Steps between true crossing and firing, on average; the claim's own word"""
BEFORE = 0.95
"""Share of the runs whose accuracy falls"""
FALSE = 0.1
"""Share of the runs: one in ten may sync for nothing"""
CLAIM = "monitor"


def checks(evidence: Evidence, /) -> list[Check]:
    """Late and early firings against the crossing of the exact ESS, on few draws a step."""

    def read(name: str, unit: str) -> Estimate:
        return of_probes(evidence, CLAIM, lambda numbers: numbers[name], unit=unit)

    def total(name: str) -> float:
        values = [p.numbers[name] for p in evidence.probes.get(CLAIM, ())]
        return sum(v for v in values if not math.isnan(v))

    how, crossing = CLAIMS[CLAIM].how, total("runs that cross")
    calm = total("runs that never cross")
    return [
        Check(
            claim=CLAIM,
            reading="share of runs where it fires later than one step after the crossing",
            form="at most",
            predicted=Estimate(value=0.0, unit="share"),
            margin=LATE,
            measured=read("late, monitor", "share"),
            control=Control(what="the plain ESS below 1/2", measured=read("late, plain", "share")),
            source=how,
            note=f"{crossing:g} runs that cross, 256 tokens a step",
        ),
        Check(
            claim=CLAIM,
            reading="steps from the crossing to the firing, mean",
            form="within",
            predicted=Estimate(value=0.0, unit="steps"),
            margin=WITHIN,
            measured=read("delay, monitor", "steps"),
            control=Control(what="no trigger: the end of the run", measured=read("delay, never", "steps")),
            source=how,
            note=f"plain ESS {read('delay, plain', 'steps').value:+.1f} steps",
        ),
        Check(
            claim=CLAIM,
            reading="share of runs where it fires more than two steps early: false alarms",
            form="at most",
            predicted=Estimate(value=0.0, unit="share"),
            margin=FALSE,
            measured=read("early, monitor", "share"),
            control=Control(what="a trigger that fires at once", measured=read("early, at once", "share")),
            source=how,
            note=f"plain ESS {read('early, plain', 'share').value:.2f}; of {calm:g} runs that never cross it "
            f"fired in {total('fired without a crossing, monitor'):g}, the plain ESS in "
            f"{total('fired without a crossing, plain'):g}",
        ),
        Check(
            claim=CLAIM,
            reading="share of runs where it fires before the accuracy falls",
            form="at least",
            predicted=Estimate(value=BEFORE, unit="share"),
            margin=0.0,
            measured=read("before the fall, monitor", "share"),
            control=Control(what="no trigger", measured=read("before the fall, never", "share")),
            source=how,
            note=f"{total('runs whose accuracy falls'):g} runs; plain ESS "
            f"{read('before the fall, plain', 'share').value:.2f}",
        ),
    ]
