"""Claim ``resync-is``: the same resync rescues plain importance weighting."""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import LN_FLOORS, at_end, estimate
from validation.plan import IS, IS_RESYNC, SEQ_IS, SEQ_IS_RESYNC

RESCUED, RESCUED_MARGIN = math.log(2.6), math.log(1.5)
"""Article 2: 2.6x with resync; a factor 1.5 is the spread of repeated floors on few seeds"""


def checks(evidence: Evidence, /) -> list[Check]:
    """Deviation at the end with the resync; the control is the same correction without it."""
    pairs = [("IS", IS, IS_RESYNC), ("response-level IS", SEQ_IS, SEQ_IS_RESYNC)]
    return [
        Check(
            claim="resync-is",
            reading=f"{name} with resync, end",
            form="at most",
            predicted=Estimate(value=RESCUED, unit=LN_FLOORS),
            margin=RESCUED_MARGIN,
            measured=estimate(evidence.main, lambda w, cell=rescued: at_end(w, cell)),
            control=Control(
                what="resync off", measured=estimate(evidence.main, lambda w, cell=plain: at_end(w, cell))
            ),
            source=CLAIMS["resync-is"].article,
        )
        for name, plain, rescued in pairs
        if evidence.has(plain, rescued)
    ]
