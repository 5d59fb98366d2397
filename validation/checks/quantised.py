"""Claim ``quantised``: on a noisy engine PG leaves the floor, the corrections do not, and SC learns as much.

Stand-ins for quantisation, frozen and synced every step: noise of the logits, noise of all weights.
"""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.accuracy import lost, untrained
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import LN_FLOORS, at_end, estimate, left_out_deviations
from validation.plan import MILD_LR, QUANTISED, STRENGTHS, quantised

CLAIM = "quantised"
FAR, FAR_MARGIN = math.log(13), math.log(4)
"""Article 2: PG 13x under FP8; deviations grow with batch, learning rate and strength, so the magnitude is
claimed up to a factor four"""
NEAR, NEAR_MARGIN = math.log(2), math.log(1.5)
"""Two floors; a factor 1.5 is the spread of repeated floors on few seeds"""
SAME = 0.05
"""Of the on-policy accuracy; article 2: 46.5% both"""
CORRECTIONS = tuple(name for name in QUANTISED if name != "pg")


def checks(evidence: Evidence, /) -> list[Check]:
    """Deviation at the end per strength and correction, and SC's accuracy."""
    worlds = tuple(w for w in evidence.worlds if w.lr == MILD_LR)
    claim = CLAIMS[CLAIM]
    exact = estimate(worlds, _on_policy)
    found = []
    for strength in STRENGTHS:
        plain = quantised("pg", strength)
        uncorrected = estimate(worlds, lambda w, cell=plain: at_end(w, cell))
        found.append(
            Check(
                claim=CLAIM,
                reading=f"PG at the end, {strength}",
                form="at least",
                predicted=Estimate(value=FAR, unit=LN_FLOORS),
                margin=FAR_MARGIN,
                measured=uncorrected,
                control=Control(what="exact engine (on-policy runs, each by the others)", measured=exact),
                source=claim.article,
            )
        )
        for name in CORRECTIONS:
            cell = quantised(name, strength)
            found.append(
                Check(
                    claim=CLAIM,
                    reading=f"{name} at the end, {strength}",
                    form="at most",
                    predicted=Estimate(value=NEAR, unit=LN_FLOORS),
                    margin=NEAR_MARGIN,
                    measured=estimate(worlds, lambda w, cell=cell: at_end(w, cell)),
                    control=Control(what="correction off: PG", measured=uncorrected),
                    source=claim.article,
                )
            )
        centred = quantised("sc", strength)
        found.append(
            Check(
                claim=CLAIM,
                reading=f"on-policy accuracy that SC loses, {strength}",
                form="at most",
                predicted=Estimate(value=SAME, unit="share"),
                margin=0.0,
                measured=estimate(worlds, lambda w, cell=centred: lost(w, cell), unit="share"),
                control=Control(
                    what="no training at all: the accuracy after the first step",
                    measured=estimate(worlds, untrained, unit="share"),
                ),
                source=claim.article,
            )
        )
    return found


def _on_policy(world: World) -> float:
    deviations = left_out_deviations(world)[-1]
    return float(sum(math.log(d) for d in deviations) / len(deviations))
