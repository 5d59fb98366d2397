"""Claim ``feedback``: bias moves the trainer, which enlarges the lag, as the loop matrices say."""

from __future__ import annotations

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

NEXT_ORDER = 0.05
"""ln: the largest error of any step; the neglected order and the noise of eight seeds stayed below .036 on
environments 0, 1 and 20-22"""
UNIT = "ln of the law"
CLAIM = "feedback"


def checks(evidence: Evidence, /) -> list[Check]:
    """Lag norm per step of each loop, and PG's growth over the straight line."""

    def read(name: str, unit: str = UNIT) -> Estimate:
        return of_probes(evidence, CLAIM, lambda numbers: numbers[name], unit=unit)

    loops = {
        "pg": "PG, M = -Abar F",
        "sc": "SC, M = 0: a straight line",
        "is": "IS, M = H",
    }
    found = [
        Check(
            claim=CLAIM,
            reading=f"lag norm per step, largest error from step 5 on: {what}",
            form="at most",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=NEXT_ORDER,
            measured=read(f"largest error, {rule}"),
            control=Control(what="sync every step", measured=read("largest error, synced")),
            source=CLAIMS[CLAIM].law,
            note="shared weights, raw rewards, lr x steps up to 4",
        )
        for rule, what in loops.items()
    ]
    found.append(
        Check(
            claim=CLAIM,
            reading="growth of PG's lag over the straight line, end, less that of its loop matrix",
            form="within",
            predicted=Estimate(value=0.0, unit="ln"),
            margin=NEXT_ORDER,
            measured=of_probes(evidence, CLAIM, lambda n: n["growth"] - n["growth by law"], unit="ln"),
            control=Control(
                what="no feedback: the growth of SC's lag over its straight line",
                measured=of_probes(
                    evidence, CLAIM, lambda n: n["growth, sc"] - n["growth by law"], unit="ln"
                ),
            ),
            source=CLAIMS[CLAIM].law,
            note="positive feedback: with raw rewards the mean advantage is negative nearly everywhere",
        )
    )
    return found
