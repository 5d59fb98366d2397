"""Claim ``centering``: what centring the score removes of the numerics' bias, and what it leaves."""

from __future__ import annotations

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

MOST = 0.5
"""Share of PG's bias; "removes most" is more than half, so no margin is added"""
EXACT = 0.05
"""Of the term: the identity is exact, and 650,000 responses read it to a few per mille"""
NEXT_ORDER = 0.2
"""Of the term: at .3 nats of noise the next order is of that size; 14% at most on environments 0, 1, 20-22"""
SHARED = "group baseline on a shared prefix (one-step bandit), where PG and SC agree"
UNIT = "of the term"
CLAIM = "centering"


def checks(evidence: Evidence, /) -> list[Check]:
    """Both terms against their closed forms, and the share of the bias, without and with a baseline."""

    def read(name: str, unit: str) -> Estimate:
        return of_probes(evidence, CLAIM, lambda numbers: numbers[name], unit=unit)

    apart = max(
        (p.numbers["largest difference, shared prefix"] for p in evidence.probes.get(CLAIM, ())), default=0.0
    )
    return [
        Check(
            claim=CLAIM,
            reading="removed by centring, along (mu.A)(mu - pi), raw rewards",
            form="within",
            predicted=Estimate(value=1.0, unit=UNIT),
            margin=EXACT,
            measured=read("removed over law", UNIT),
            control=Control(what=SHARED, measured=read("removed over law, shared prefix", UNIT)),
            source=CLAIMS[CLAIM].law,
            note=f"on the shared prefix the two runs differ by {apart:.0e} in any weight: rounding",
        ),
        Check(
            claim=CLAIM,
            reading="bias that centring leaves, along H delta",
            form="within",
            predicted=Estimate(value=1.0, unit=UNIT),
            margin=NEXT_ORDER,
            measured=read("left over law", UNIT),
            control=Control(what="full IS, pi/mu, which removes it", measured=read("left by full IS", UNIT)),
            source=CLAIMS[CLAIM].law,
            note="first order in the noise; the margin is the next",
        ),
        *(
            Check(
                claim=CLAIM,
                reading=f"share of PG's bias that centring removes, {what}",
                form="at least",
                predicted=Estimate(value=MOST, unit="share"),
                margin=0.0,
                measured=read(f"removed share, {baseline}", "share"),
                control=Control(what=SHARED, measured=read("removed share, shared prefix", "share")),
                source=CLAIMS[CLAIM].article,
                note=note,
            )
            for baseline, what, note in (
                ("none", "raw rewards", "the mean advantage left in every prefix is what centring removes"),
                (
                    "group",
                    "group baseline",
                    "the boundary: a baseline takes most of the mean advantage away, and H delta stays",
                ),
            )
        ),
    ]
