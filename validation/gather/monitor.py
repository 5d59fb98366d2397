"""The monitor on fresh, heavy-tailed toy runs, with the machinery of `validation.monitor_trial`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from toy.settings import setting_s
from validation.monitor_trial import WATCHED, Watched, watch_runs
from validation.plan import QUANTILE

SAMPLES = 4
"""Responses per prompt: 256 tokens a step, so few that heavy tails are missed. On environments 0-2 and 20-24
the plain ESS was late by more than a step in 22% of the runs with 4, in 9% with 16"""
LRS = (2.0, 4.0)
SEEDS = 3
EARLY = 2
"""Steps before the crossing from which on a firing counts as a false alarm"""


def monitor(env: int) -> dict[str, float]:
    """Compare the firing of monitor and plain ESS with the exact crossing, over one environment's runs."""
    runs = [
        run
        for lr in LRS
        for rule in WATCHED
        for run in watch_runs(env, QUANTILE, lr, rule, seeds=SEEDS, samples=SAMPLES)
    ]
    crossing = [run for run in runs if math.isfinite(run.crossing)]
    falling = [run for run in runs if math.isfinite(run.fall)]
    calm = [run for run in runs if not math.isfinite(run.crossing)]
    steps = setting_s().steps
    found = {
        "runs that cross": float(len(crossing)),
        "runs that never cross": float(len(calm)),
        "runs whose accuracy falls": float(len(falling)),
    }
    triggers = (("monitor", _monitor), ("plain", _plain), ("at once", _at_once), ("never", _never))
    for name, fired in triggers:
        found |= {
            f"late, {name}": _mean(crossing, lambda run, fired=fired: fired(run) > run.crossing + 1),
            f"delay, {name}": _mean(crossing, lambda run, fired=fired: min(fired(run), steps) - run.crossing),
            f"early, {name}": _mean(crossing, lambda run, fired=fired: fired(run) < run.crossing - EARLY),
            f"before the fall, {name}": _mean(falling, lambda run, fired=fired: fired(run) <= run.fall),
            f"fired without a crossing, {name}": float(sum(math.isfinite(fired(run)) for run in calm)),
        }
    return found


def _monitor(run: Watched) -> float:
    return run.monitor


def _plain(run: Watched) -> float:
    return run.plain


def _at_once(run: Watched) -> float:
    return 1.0


def _never(run: Watched) -> float:
    return math.inf


def _mean(runs: list[Watched], of: Callable[[Watched], float]) -> float:
    return float(np.mean([of(run) for run in runs])) if runs else math.nan
