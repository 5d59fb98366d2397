"""Claim ``off-support``: the trainer leaves the initial policy's support at a collapse, and not with resync.

The share is of the trainer's own tokens with an initial probability below 1e-3.
"""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import estimate
from validation.plan import DLC, IS_RESYNC, PG, PG_RESYNC, SC, SC_RESYNC

COLLAPSE, COLLAPSE_MARGIN = 0.9, 0.4
"""Article 2: about 90%; half of all tokens is still a collapse by any reading"""
RISE = math.log(0.9 / 0.14)
RISE_MARGIN = math.log(2)
"""Article 2: about 90% against at most 14% before; a rise within a factor two of that counts"""
LOW = math.log(2)
"""Over on-policy, with resync: less than half of the least rise that counts above"""
UNIT = "ln x"
CLAIM = "off-support"


def checks(evidence: Evidence, /) -> list[Check]:
    """Size of the share at a collapse, its rise over on-policy, and both with resync."""
    main = evidence.main
    claim = CLAIMS[CLAIM]
    halves = Control(
        what="half of the on-policy runs against the other half", measured=estimate(main, _halves, unit=UNIT)
    )
    top = max((w.lr for w in evidence.worlds if PG in w.cells), default=math.nan)
    highest = [w for w in evidence.worlds if w.lr == top]
    found = [
        Check(
            claim=CLAIM,
            reading=f"share at the end, stale PG at the highest learning rate, {top:g}",
            form="at least",
            predicted=Estimate(value=COLLAPSE, unit="share"),
            margin=COLLAPSE_MARGIN,
            measured=estimate(highest, lambda w: _share(w, PG), unit="share"),
            control=Control(
                what="on-policy", measured=estimate(highest, lambda w: _share(w, w.on_policy), unit="share")
            ),
            source=claim.article,
            note="by learning rate: " + ", ".join(_by_rate(evidence)),
        )
    ]
    found += [
        Check(
            claim=CLAIM,
            reading=f"share over that of on-policy runs, end, stale {cell}",
            form="at least",
            predicted=Estimate(value=RISE, unit=UNIT),
            margin=RISE_MARGIN,
            measured=estimate(main, lambda w, cell=cell: _rise(w, cell), unit=UNIT),
            control=halves,
            source=claim.article,
        )
        for cell in (PG, SC)
    ]
    found += [
        Check(
            claim=CLAIM,
            reading=f"share over that of on-policy runs, end, {cell}",
            form="at most",
            predicted=Estimate(value=LOW, unit=UNIT),
            margin=0.0,
            measured=estimate(main, lambda w, cell=cell: _rise(w, cell), unit=UNIT),
            control=Control(
                what="resync off: stale PG", measured=estimate(main, lambda w: _rise(w, PG), unit=UNIT)
            ),
            source=claim.article,
            note=f"largest share of any run and step {_largest(main, cell):.3f}",
        )
        for cell in (PG_RESYNC, SC_RESYNC, IS_RESYNC, DLC)
        if evidence.has(cell)
    ]
    return found


def _shares(world: World, cell: str) -> np.ndarray:
    """Share of each run and step, (S, K)."""
    return np.stack([trace.steps["off_support"] for trace in world.cells[cell].traces])


def _share(world: World, cell: str) -> float:
    return float(_shares(world, cell)[:, -1].mean())


def _rise(world: World, cell: str) -> float:
    return math.log(_share(world, cell) / _share(world, world.on_policy))


def _halves(world: World) -> float:
    last = _shares(world, world.on_policy)[:, -1]
    half = len(last) // 2
    return math.log(last[:half].mean() / last[half:].mean())


def _largest(worlds: tuple[World, ...], cell: str) -> float:
    return max((float(_shares(w, cell).max()) for w in worlds), default=math.nan)


def _by_rate(evidence: Evidence) -> list[str]:
    rates = sorted({w.lr for w in evidence.worlds})
    return [
        f"{np.mean([_share(w, PG) for w in evidence.worlds if w.lr == lr]):.3f} at {lr:g}" for lr in rates
    ]
