"""Claim ``excess``: the distance of score centring from IS grows with the square of lr x steps.

Read cumulatively, ``|D_SC - D_IS| = (t^2/2) |H g|``: the reading that is always positive and has no linear
term. The others are judged in closed form (``check theory``).
"""

from __future__ import annotations

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

QUADRATIC, LINEAR = 4.0, 2.0
RATIO_MARGIN = 0.5
"""A quarter of the way from quadratic to linear; the next order is a share of t = 2"""
COEFFICIENT = 0.1
"""Of the law, after extrapolation to learning rate 0; 6% at most on environments 0, 1 and 20-22"""
CLAIM = "excess"


def checks(evidence: Evidence, /) -> list[Check]:
    """Order of the excess in the learning rate, and its coefficient."""

    def read(name: str, unit: str) -> Estimate:
        return of_probes(evidence, CLAIM, lambda numbers: numbers[name], unit=unit)

    return [
        Check(
            claim=CLAIM,
            reading="cumulative excess at twice the learning rate, over that at once",
            form="within",
            predicted=Estimate(value=QUADRATIC, unit="ratio"),
            margin=RATIO_MARGIN,
            measured=read("ratio", "ratio"),
            control=Control(
                what="the update itself, which is linear", measured=read("ratio of the update", "ratio")
            ),
            source=CLAIMS[CLAIM].article,
            note="equal batches of both corrections, eight seeds, t = 2 and 1",
        ),
        Check(
            claim=CLAIM,
            reading="cumulative excess over (t^2/2) |H g|",
            form="within",
            predicted=Estimate(value=1.0, unit="of the law"),
            margin=COEFFICIENT,
            measured=read("over law", "of the law"),
            control=Control(
                what="H g = 0: equal arms, half of them right",
                measured=read("over law, no curvature", "of the law"),
            ),
            source=CLAIMS[CLAIM].law,
            note="extrapolated to learning rate 0 from t = 2 and 1; H and g of the shared weights",
        ),
    ]
