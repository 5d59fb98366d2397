"""Runs in the setting with an exit: what the trainer does, what a monitor sees; claim ``invisible``.

Suffixes: S training seeds, K steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from toy.ensemble import Ensemble
from toy.measure import own_prefix_kl
from toy.settings import STALE
from toy.settings import leaving as setting
from toy.simulate import ensemble

SEEDS = 3
RESYNC = 8
CELLS: Mapping[str, tuple[str, int]] = {
    "on-policy": ("pg", 1),
    "stale pg": ("pg", STALE),
    "stale sc": ("sc", STALE),
    "stale is": ("is", STALE),
    f"pg, synced every {RESYNC}": ("pg", RESYNC),
}
"""Correction and sync period"""
COLLAPSING = ("stale pg", "stale sc")
HALF = 0.5
"""Off-support share from which a run counts as collapsed"""
HEALTHY_LOSS = 0.05
"""A run is healthy if its accuracy ends at most this far below the on-policy one"""


def runs(env: int) -> dict[str, Ensemble]:
    """Every cell in one environment."""
    return {
        name: ensemble(setting(env, correction=rule, sync_every=period, seed=12), seeds=SEEDS)
        for name, (rule, period) in CELLS.items()
    }


def invisible(env: int) -> dict[str, float]:
    """Compare what is seen at the step of collapse with the largest that healthy runs show.

    Numbers at a collapse are means over the runs that reach it, and NaN where none does.
    """
    cells = runs(env)
    off = {name: e.measures["off_support"] for name, e in cells.items()}
    accuracy = {name: float(e.measures["accuracy"][:, -1].mean()) for name, e in cells.items()}
    healthy = [name for name in cells if accuracy[name] >= accuracy["on-policy"] - HEALTHY_LOSS]
    own = {name: own_prefix_kl(cells[name]) for name in {*healthy, *COLLAPSING}}
    seen = {name: e.measures["kl_sampler"] for name, e in cells.items()}
    found = {
        "healthy cells": float(len(healthy)),
        "kl seen, healthy": max(float(seen[name].max(1).mean()) for name in healthy),
        "kl own, healthy": max(float(own[name].max(1).mean()) for name in healthy),
        "least ess, healthy": min(float(cells[n].measures["ess_token"].min(1).mean()) for n in healthy),
    }
    for name in cells:
        found |= {
            f"off-support at the end, {name}": float(off[name][:, -1].mean()),
            f"largest off-support, {name}": float(off[name].max(1).mean()),
            f"accuracy, {name}": accuracy[name],
        }
    for name in COLLAPSING:
        step = np.argmax(off[name] >= HALF, axis=1)
        passed = off[name].max(1) >= HALF

        def at(values: np.ndarray, step: np.ndarray = step, passed: np.ndarray = passed) -> float:
            there = np.take_along_axis(values, step[:, None], 1)[passed, 0]
            return float(there.mean()) if len(there) else math.nan

        found |= {
            f"runs, {name}": float(len(passed)),
            f"runs at half, {name}": float(passed.sum()),
            f"step of collapse, {name}": at(np.broadcast_to(cells[name].steps, off[name].shape)),
            f"kl seen, {name}": at(seen[name]),
            f"kl own, {name}": at(own[name]),
            f"ess, {name}": at(cells[name].measures["ess_token"]),
        }
    return found
