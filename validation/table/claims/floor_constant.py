"""Claim ``floor-constant``: the engine's discrepancy stays as it is while lag grows."""

from __future__ import annotations

import math

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.table.claims.bench import Bench, over_runs
from validation.table.gather import Measured
from validation.table.rows import SAMPLERS

CONSTANT = math.log(1.5)
"""Last quarter of a run over its first. Public counter-examples move by factors of two and more"""
UNIT = "ln ratio"


def checks(bench: Bench, /) -> list[Check]:
    """Growth of the rms discrepancy of an FP8 engine, synced and stale; the control is that of the lag."""
    found = []
    for sampler in bench.worlds:
        if SAMPLERS[sampler].numerics.kind != "fp8":
            continue
        healthy = [run for _, _, run in bench.runs(sampler) if not bench.collapsed(run)]
        lagging = [r for s in bench.stale() for _, _, r in bench.runs(s, resync=False)]
        values = [_growth(run, "discrepancy_rms") for run in healthy]
        found.append(
            Check(
                claim="floor-constant",
                reading=f"{sampler}: rms discrepancy, last quarter over first",
                form="within",
                predicted=Estimate(value=0.0, unit=UNIT),
                margin=CONSTANT,
                measured=over_runs(values, UNIT),
                control=Control(
                    what="rms lag of stale samplers without resync",
                    measured=over_runs([_growth(run, "lag_rms") for run in lagging], UNIT),
                ),
                source=CLAIMS["floor-constant"].article,
                note=_note(bench, sampler, healthy),
            )
        )
    return found


def _note(bench: Bench, sampler: str, healthy: list[Measured]) -> str:
    broken = [_growth(run, "discrepancy_rms") for _, _, run in bench.runs(sampler) if bench.collapsed(run)]
    text = f"{len(healthy)} runs that kept their accuracy"
    if broken:
        text += f"; in the {len(broken)} that collapsed up to {math.exp(max(broken)):.2g}x"
    return text


def _growth(run: Measured, column: str) -> float:
    values = run.trace.steps[column]
    n = max(1, len(values) // 4)
    first, last = float(values[:n].mean()), float(values[-n:].mean())
    return math.log(last / first) if first > 0 and last > 0 else math.nan
