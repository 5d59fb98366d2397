"""Cells of the table that are one and the same update: they are run once and shown twice.

Two kinds. *exact*: the update is the same arithmetic, to the last bit. *rounding*: it is the same function of
the same numbers wherever the engine's rows equal the trainer's, which an engine in float32 keeps to 1e-6 nats
(every sync proves it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from theory.corrections import Correction, Ratio
from validation.table.rows import SamplerRow

Kind = Literal["exact", "rounding"]


class Same(NamedTuple):
    """Which row a cell shares its runs with, and how equal they are."""

    row: str
    kind: Kind


def essence(rule: Correction, sampler: SamplerRow, /, *, rounding: bool) -> Correction:
    """Drop from a correction what cannot act with a sampler, one update per batch.

    Parameters
    ----------
    rule : Correction
        A row of the table.
    sampler : SamplerRow
        Its engine and sync period.
    rounding : bool
        Take an engine in float32 for exact.
    """
    exact_engine = rounding and sampler.numerics.kind == "exact"

    def acts(ratio: Ratio) -> Ratio:
        if ratio == "batch" or (ratio == "lag" and not sampler.stale):
            return "none"  # both policies have the same weights: the ratio is 1
        if ratio == "total" and exact_engine:
            return "lag" if sampler.stale else "none"
        return ratio

    ratio = acts(rule.ratio)
    clip_on = ratio if rule.clip_on is None else acts(rule.clip_on)
    found = replace(rule, cite="", ratio=ratio, clip_on=None if clip_on == ratio else clip_on)
    if not sampler.stale:
        found = replace(found, resync_below=0.0)  # synced after every update anyway
    if found.resync_below == 0:
        found = replace(found, resync_level="token")
    if clip_on == "none":
        # every clip of the table has 1 inside
        found = replace(found, clip="none", clip_on=None)
    if found.clip == "none":
        found = replace(found, low=0.0, high=math.inf, dual=None)
    if ratio == "none":
        found = replace(found, lr_power=0.0, level="token")
    points_at_pi = ratio == "lag" or not sampler.stale
    if exact_engine and found.center == "matched" and found.clip == "none" and points_at_pi:
        # qhat proportional to mu w = pi, which is where no centring points as well
        found = replace(found, center="none")
    return found


def representatives(
    rules: Mapping[str, Correction], sampler: SamplerRow, /, *, rounding: bool
) -> dict[str, Same | None]:
    """For each row of the table the one it shares its runs with; None: it has runs of its own.

    Parameters
    ----------
    rules : mapping
        Corrections by name; the first of several equal ones is run.
    sampler : SamplerRow
        Column of the table.
    rounding : bool
        Share cells that are equal up to the rounding of a float32 engine, too.
    """
    found: dict[str, Same | None] = {}
    first: dict[tuple[bool, Correction], str] = {}
    for name, rule in rules.items():
        found[name] = None
        kinds: tuple[tuple[bool, Kind], ...] = ((False, "exact"), (True, "rounding"))
        for loose, kind in kinds if rounding else kinds[:1]:
            key = loose, essence(rule, sampler, rounding=loose)
            owner = first.setdefault(key, name)
            if owner != name and found[name] is None:
                found[name] = Same(owner, kind)
    # a row equal to one that is itself shared: show the one that is run
    for name, same in found.items():
        while same is not None and (further := found[same.row]) is not None:
            same = Same(further.row, "rounding" if "rounding" in (same.kind, further.kind) else "exact")
            found[name] = same
    return found
