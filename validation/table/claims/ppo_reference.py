"""Claim ``ppo-reference``: PPO clipped against the sampler survives staleness, breaks under rounding."""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.check import Check, Control, Form
from validation.claims import CLAIMS
from validation.floor import LN_FLOORS, at_end, estimate
from validation.table.claims.bench import Bench

TWO_FLOORS = math.log(2)
"""survives: stays below; breaks: goes above. The articles give no figure for this PPO"""


def checks(bench: Bench, /) -> list[Check]:
    """Read the clip against the engine under each sampler; when stale, beside the clip before the batch."""
    found = []
    for sampler in [s for s in bench.worlds if s.startswith("stale")]:
        if bench.has(sampler, "ppo-engine", "pg"):
            before = "ppo" if bench.has(sampler, "ppo") else "pg"
            found.append(
                _check(
                    bench, sampler, "at most", (sampler, before), "clip against the trainer before the batch"
                )
            )
    for sampler in ("fp8", "int4", "e2m1", "weight-noise"):
        if bench.has(sampler, "ppo-engine"):
            found.append(_check(bench, sampler, "at least", ("reference", "ppo-engine"), "exact engine"))
    return found


def _check(bench: Bench, sampler: str, form: Form, off: tuple[str, str], what: str) -> Check:
    claim = CLAIMS["ppo-reference"]
    there = bench.has(*off)
    return Check(
        claim=claim.id,
        reading=f"{sampler}: PPO clipped against the engine, end",
        form=form,
        predicted=Estimate(value=TWO_FLOORS, unit=LN_FLOORS),
        margin=0.0,
        measured=estimate([bench.worlds[sampler]], lambda w: at_end(w, "ppo-engine")),
        control=Control(
            what=what,
            measured=estimate([bench.worlds[off[0]]], lambda w: at_end(w, off[1])) if there else None,
        ),
        source=claim.article,
    )
