"""Claim ``staleness-lr``: the deviation depends on staleness x lr only, up to the finite-lr correction.

Compared at equal total time lr x steps, in KL beyond the floor of each learning rate's own on-policy runs. A
period of N steps deviates as ``N (N - 1)`` and not as N^2 (`theory.feedback.period_deviation`), and KL goes
with its square.
"""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from theory.floor import measured_floor
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import over_groups
from validation.plan import EQUAL_PRODUCT, MAIN_LR, PG, SC, scheduled

AGREE = math.log(1.5)
"""ln KL: half of the least that doubling one factor of the product changes, ln 4, is .69; a factor 1.5 is
well inside"""
TOTAL = 64.0
"""lr x steps at which the runs are compared: two periods"""
UNIT = "ln KL"
CLAIM = "staleness-lr"
BASE = min(EQUAL_PRODUCT)


def checks(evidence: Evidence, /) -> list[Check]:
    """Each learning rate against the smallest, period shortened as much as the rate is raised."""
    found = []
    for rule in (PG, SC):
        doubled = _against_base(evidence, rule, MAIN_LR, EQUAL_PRODUCT[BASE])
        for lr, period in sorted(EQUAL_PRODUCT.items()):
            if lr == BASE:
                continue
            found.append(
                Check(
                    claim=CLAIM,
                    reading=f"{rule}: lr {lr:g} every {period} against lr {BASE:g} every "
                    f"{EQUAL_PRODUCT[BASE]}, KL beyond the floor",
                    form="within",
                    predicted=Estimate(value=_finite(period), unit=UNIT),
                    margin=AGREE,
                    measured=_against_base(evidence, rule, lr, period),
                    control=Control(
                        what=f"unequal products: lr {MAIN_LR:g} every {EQUAL_PRODUCT[BASE]}", measured=doubled
                    ),
                    source=CLAIMS[CLAIM].law,
                    note=f"after lr x steps = {TOTAL:g}; KLs at the floor are left out",
                )
            )
    return found


def _finite(period: int) -> float:
    """Ln of the ratio that the law's N (N - 1) leaves between periods of one product."""

    def share(n: int) -> float:
        return (n - 1) / n

    return 2 * math.log(share(period) / share(EQUAL_PRODUCT[BASE]))


def _excess(world: World, cell: str) -> float:
    """Ln of the KL to on-policy beyond what on-policy runs have among themselves; NaN at the floor."""
    at = int(np.searchsorted(world.steps, round(TOTAL / world.lr)))
    beyond = float(world.cells[cell].distance[at].mean() - measured_floor(world.floor[at]))
    return math.log(beyond) if beyond > 0 else math.nan


def _against_base(evidence: Evidence, rule: str, lr: float, period: int) -> Estimate:
    """Difference to the base within each environment."""
    worlds = {(w.group, w.lr): w for w in evidence.worlds}
    cell, base = scheduled(rule, period), scheduled(rule, EQUAL_PRODUCT[BASE])
    pairs = []
    for (group, at), world in worlds.items():
        other = worlds.get((group, BASE))
        if at == lr and other is not None and cell in world.cells and base in other.cells:
            pairs.append((group, _excess(world, cell) - _excess(other, base)))
    return over_groups(pairs, unit=UNIT)
