"""The claims of the articles on the table: those within one sampler, and those that compare samplers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from validation.check import Check
from validation.checks import dlc, ess_half, noise_floor, resync_is, split, stale
from validation.evidence import Evidence, World
from validation.plan import IS, PG, SC
from validation.table.claims import (
    floor_constant,
    heavy_tail,
    infra,
    off_support,
    ppo_reference,
    quantised,
    rank,
)
from validation.table.claims.bench import Bench
from validation.table.gather import Table
from validation.table.ranks import Checkpoints

WITHIN = (
    (noise_floor, (PG,)),
    (ess_half, (PG,)),
    (stale, (PG, SC, IS)),
    (dlc, (IS,)),
    (resync_is, ()),
)
"""Checks of one stale sampler, with the cells they cannot do without"""
FEWEST_REFERENCES = 4
"""One on-policy run is judged by the others, a jackknife drops another, and two must be left for a floor"""
ACROSS = (floor_constant, heavy_tail, quantised, ppo_reference, off_support, rank, infra)


def checks_of(table: Table, worlds: Mapping[str, World], points: Checkpoints, /) -> list[Check]:
    """Judge what the table has the cells for, in the order of the claims; nothing with too few references."""
    from validation.claims import CLAIMS

    if len(table.plan.references) < FEWEST_REFERENCES:
        return []
    bench = Bench(table=table, worlds=worlds, points=points)
    found: list[Check] = []
    if table.rows is not None:
        found += split.checks(Evidence(engine="real", seed=0, worlds=(), rows=table.rows))
    for sampler in bench.stale():
        evidence = Evidence(engine="real", seed=0, worlds=(worlds[sampler],), rows=None)
        for module, cells in WITHIN:
            if evidence.has(*cells):
                found += [
                    dataclasses.replace(check, reading=f"{sampler}: {check.reading}")
                    for check in module.checks(evidence)
                ]
    for module in ACROSS:
        found += module.checks(bench)
    order = list(CLAIMS)
    return sorted(found, key=lambda check: order.index(check.claim))
