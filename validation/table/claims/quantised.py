"""Claim ``quantised``: under a rounding engine corrections stay near the floor, PG does not."""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import World
from validation.floor import LN_FLOORS, at_end, estimate
from validation.plan import ON_POLICY
from validation.table.claims.bench import Bench, cell_name
from validation.table.rows import SAMPLERS

NEAR = math.log(2)
"""The articles' line between at the floor and off it: two floors"""
LEAVES, LEAVES_MARGIN = math.log(13), math.log(4)
"""Article 2: PG 13x. Floors depend on batch and learning rate, so a factor four is left; 3.2 floors count"""
ACCURACY_MARGIN = 0.05
"""Share; 1.7 standard errors of the difference of two means of three runs on 512 responses"""
CORRECTED = ("tis", "is", "seq-is", "sc", "mis", "icepop", "dlc")
ENGINES = ("fp8", "e2m1", "int4", "weight-noise")


def checks(bench: Bench, /) -> list[Check]:
    """Three readings an engine that rounds; the control of each has the effect off, or the other one on."""
    found = []
    for sampler in ENGINES:
        if sampler in bench.worlds:
            found += _of(bench, sampler)
    return found


def _of(bench: Bench, sampler: str) -> list[Check]:
    world, claim = bench.worlds[sampler], CLAIMS["quantised"]
    there = [c for c in CORRECTED if bench.has(sampler, c)]
    exact_and_stale = [s for s in bench.stale() if SAMPLERS[s].numerics.kind == "exact"]
    stale = bench.worlds[exact_and_stale[0]] if exact_and_stale else None
    exact = bench.worlds.get("reference")

    def worst(w: World) -> float:
        return max(at_end(w, cell_name(c)) for c in there)

    def gap(w: World, cell: str) -> float:
        return float(w.cells[cell].accuracy[-1].mean() - w.cells[ON_POLICY].accuracy[-1].mean())

    found = []
    if there:
        found.append(
            Check(
                claim=claim.id,
                reading=f"{sampler}: the worst of {', '.join(there)}, end",
                form="at most",
                predicted=Estimate(value=NEAR, unit=LN_FLOORS),
                margin=0.0,
                measured=estimate([world], worst),
                control=Control(
                    what="the same corrections, exact engine, stale",
                    measured=estimate([stale], worst)
                    if stale is not None and all(cell_name(c) in stale.cells for c in there)
                    else None,
                ),
                source=claim.article,
            )
        )
    if bench.has(sampler, "pg"):
        found.append(
            Check(
                claim=claim.id,
                reading=f"{sampler}: PG at the end",
                form="at least",
                predicted=Estimate(value=LEAVES, unit=LN_FLOORS),
                margin=LEAVES_MARGIN,
                measured=estimate([world], lambda w: at_end(w, "pg")),
                control=Control(
                    what="exact engine",
                    measured=estimate([exact], lambda w: at_end(w, "pg"))
                    if exact is not None and bench.has("reference", "pg")
                    else None,
                ),
                source=claim.article,
            )
        )
    if bench.has(sampler, "sc"):
        found.append(
            Check(
                claim=claim.id,
                reading=f"{sampler}: accuracy with SC minus on-policy, end",
                form="within",
                predicted=Estimate(value=0.0, unit="share"),
                margin=ACCURACY_MARGIN,
                measured=estimate([world], lambda w: gap(w, "sc"), unit="share"),
                control=Control(
                    what="stale PG, which loses it",
                    measured=estimate([stale], lambda w: gap(w, "pg"), unit="share")
                    if stale is not None and "pg" in stale.cells
                    else None,
                ),
                source=claim.article,
            )
        )
    return found
