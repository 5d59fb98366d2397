"""Claims ``off-support`` and ``invisible``: where a collapse shows, and where it does not."""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from theory.floor import measured_floor
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.floor import LN_FLOORS
from validation.gather.compare import held
from validation.table.claims.bench import Bench, over_runs
from validation.table.gather import Measured

COLLAPSE, COLLAPSE_MARGIN = 0.9, 0.4
"""Article 2: about 90% at the two collapses. Half of all tokens still counts: most of what is said is new"""
KEPT = 0.11
"""Article 2: at or below 11% with the resync"""
HEALTHY = math.log(2)
"""Two floors: on-policy runs are at one, and single ones were seen at two"""


def checks(bench: Bench, /) -> list[Check]:
    """Shares of collapsed and of synced runs, and both distances of the collapsed ones."""
    collapsed = [run for s in bench.stale() for _, _, run in bench.runs(s) if bench.collapsed(run)]
    free = [run for s in bench.stale() for _, _, run in bench.runs(s, resync=False) if bench.collapsed(run)]
    synced = [run for s in bench.stale() for _, _, run in bench.runs(s, resync=True)]
    on_policy = [bench.table.runs[e.fingerprint()] for e in bench.table.plan.references]
    most = np.fmax.reduce([_largest(bench, run) for run in synced], initial=math.nan)
    note = f"{len(collapsed)} runs of stale samplers ended below half of the on-policy accuracy"

    def share(runs: list[Measured]) -> Estimate | None:
        return over_runs([_largest(bench, run) for run in runs], "share")

    return [
        Check(
            claim="off-support",
            reading="largest share in runs that collapsed",
            form="at least",
            predicted=Estimate(value=COLLAPSE, unit="share"),
            margin=COLLAPSE_MARGIN,
            measured=share(collapsed),
            control=Control(what="on-policy runs", measured=share(on_policy)),
            source=CLAIMS["off-support"].article,
            note=note,
        ),
        Check(
            claim="off-support",
            reading="largest share in stale runs with a resync",
            form="at most",
            predicted=Estimate(value=KEPT, unit="share"),
            margin=0.0,
            measured=share(synced),
            control=Control(what="runs without one that collapsed", measured=share(free)),
            source=CLAIMS["off-support"].article,
            note=f"{len(synced)} runs; most in one: {most:.3f}",
        ),
        Check(
            claim="invisible",
            reading="collapsed runs: distance on the sampler's prefixes, end",
            form="at most",
            predicted=Estimate(value=HEALTHY, unit=LN_FLOORS),
            margin=0.0,
            measured=over_runs([_log_distance(bench, run, "kl_prefixes") for run in collapsed], LN_FLOORS),
            control=Control(
                what="the same runs, on their own prefixes",
                measured=over_runs([_log_distance(bench, run, "kl") for run in collapsed], LN_FLOORS),
            ),
            source=CLAIMS["invisible"].article,
            note=note,
        ),
    ]


def _largest(bench: Bench, run: Measured) -> float:
    """Return the largest share at any compared step; NaN where it was never measured, without a warning."""
    return float(np.fmax.reduce(held(run.trace, "off_support", bench.table.steps)))


def _log_distance(bench: Bench, run: Measured, column: str) -> float:
    """Log of the last known distance to the on-policy runs, in units of the same distance among them."""
    among = np.stack(
        [bench.table.runs[e.fingerprint()].compared[column] for e in bench.table.plan.references], axis=1
    )
    ratio = run.compared[column].mean(-1) / measured_floor(among)
    known = ratio[~np.isnan(ratio)]
    return math.log(known[-1]) if len(known) else math.nan
