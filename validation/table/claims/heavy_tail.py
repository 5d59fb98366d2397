"""Claim ``heavy-tail``: ESS crosses one half before a Gaussian of the same variance would."""

from __future__ import annotations

import math

import numpy as np

from theory.crossing import first_below, gaussian_var
from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.table.claims.bench import Bench, over_runs
from validation.table.gather import Measured

EARLIER = math.log(11 / 14)
"""Article 1: step 11 against 14; the margin reaches up to "not later": 1"""
SUSTAINED = {"first": 1, "sustained": 3}
"""A single token can dip a batch of 3,300 below one half: the crossing that stays is read as well"""


def checks(bench: Bench, /) -> list[Check]:
    """Crossing over its Gaussian prediction with stale IS; the control is SC, skewed to the left."""
    found = []
    for name, run_length in SUSTAINED.items():
        weighted = [r for s in bench.stale() for c, _, r in bench.runs(s) if c == "is"]
        centred = [r for s in bench.stale() for c, _, r in bench.runs(s) if c == "sc"]
        logs = [_log_gap(run, run_length) for run in weighted]
        known = [x for x in logs if not math.isnan(x)]
        found.append(
            Check(
                claim="heavy-tail",
                reading=f"stale IS: {name} crossing over the Gaussian's",
                form="at most",
                predicted=Estimate(value=EARLIER, unit="ln steps"),
                margin=-EARLIER,
                measured=over_runs(logs, "ln steps"),
                control=Control(
                    what="SC, whose log ratio is skewed to the left",
                    measured=over_runs([_log_gap(run, run_length) for run in centred], "ln steps"),
                ),
                source=CLAIMS["heavy-tail"].article,
                note=f"earlier in {sum(x < 0 for x in known)}, equal in {sum(x == 0 for x in known)} of "
                f"{len(known)} runs that cross either way",
            )
        )
    return found


def _log_gap(run: Measured, sustained: int) -> float:
    """Log of crossing over predicted crossing; "never" is one step past the end, and twice never is NaN."""
    steps = run.trace.steps
    own = first_below(steps["ess_token"], sustained=sustained)
    gaussian = first_below(gaussian_var(steps["k2"]), sustained=sustained)
    if np.isinf(own) and np.isinf(gaussian):
        return math.nan
    past = steps["step"][-1] + 1
    return math.log(min(own, past) / min(gaussian, past))
