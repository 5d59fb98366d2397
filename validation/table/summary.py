"""The table as one document of plain values: a row a cell, a series a run, correlations, verdicts.

Suffixes: K compared steps, S runs of a cell, R on-policy runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from theory.crossing import first_below, gaussian_var
from theory.floor import in_floors, measured_floor
from validation.evidence import World
from validation.floor import deviation, run_deviations
from validation.gather.compare import held
from validation.plan import ON_POLICY
from validation.provenance import code_digest, versions
from validation.results import detail
from validation.table.gather import Measured, Table
from validation.table.judge import checks_of
from validation.table.ranks import Checkpoints, correlations
from validation.table.rows import CELL_NAMES
from validation.table.worlds import runs_of, worlds

FORMAT = 1
SUSTAINED = 3
"""Steps in a row below one half that count as a crossing that stays: a single token can dip a batch"""
SERIES = ("ess_token", "ess_sequence", "kl_sampler", "reward")
"""Measures of every step kept for the curves"""


def document(table: Table, /, *, command: str, seconds: float) -> dict[str, Any]:
    """Return the whole table in plain values; what was not measured is NaN, which JSON writes as null.

    Parameters
    ----------
    table : Table
        All runs.
    command : str
        What made it, as it can be typed again.
    seconds : float
        Wall time of this sitting.
    """
    by_sampler = worlds(table)
    plan, first = table.plan, table.plan.references[0]
    any_world = next(iter(by_sampler.values()))
    found = [_cell(table, by_sampler[c.sampler], c) for c in plan.cells]
    points = checkpoints(table, any_world)
    ranks, draws = correlations(points)
    return {
        "format": FORMAT,
        "command": command,
        "seconds": round(seconds, 1),
        "run_seconds": round(sum(run.seconds for run in table.runs.values()), 1),
        "preset": plan.preset,
        "point": plan.point,
        "variant": plan.variant,
        "engine": getattr(first.environment, "sampler", "vllm"),
        "lr": first.lr,
        "baseline": first.baseline,
        "updates": first.steps,
        "batch": [first.prompts, first.samples],
        "seeds": list(plan.seeds),
        "references": [e.seed for e in plan.references],
        "code": code_digest(plan.engine),
        "versions": versions(),
        "steps": table.steps.tolist(),
        "on_policy": _on_policy(table, any_world),
        "cells": found,
        "ranks": {
            "checkpoints": len(points.drop),
            "runs": len(np.unique(points.run)),
            "measures": {name: dataclasses.asdict(c) for name, c in ranks.items()},
            "order": _order(list(ranks), draws),
        },
        "checks": [detail(check) for check in checks_of(table, by_sampler, points)],
    }


def checkpoints(table: Table, world: World, /) -> Checkpoints:
    """Collect the compared weights of all runs that are no on-policy reference, each run once."""
    reference = world.cells[ON_POLICY].accuracy.mean(axis=-1)
    skip = {e.fingerprint() for e in table.plan.references}
    run, drop, columns = [], [], {"off-support": [], "deviation": [], "KL on the sampler's prefixes": []}
    healthy = _prefix_floor(table)
    for i, (fingerprint, made) in enumerate(table.runs.items()):
        if fingerprint in skip:
            continue
        run.append(np.full(len(table.steps), i))
        drop.append(reference - held(made.trace, "accuracy", table.steps))
        columns["off-support"].append(held(made.trace, "off_support", table.steps))
        columns["deviation"].append(in_floors(made.compared["kl"][:, None], world.floor))
        columns["KL on the sampler's prefixes"].append(made.compared["kl_prefixes"].mean(-1) / healthy)
    return Checkpoints(
        run=np.concatenate(run),
        drop=np.concatenate(drop),
        measures={name: np.concatenate(parts) for name, parts in columns.items()},
    )


def _prefix_floor(table: Table) -> np.ndarray:
    """KL among the on-policy runs on their samplers' prefixes, mean over ordered pairs, (K)."""
    runs = [table.runs[e.fingerprint()] for e in table.plan.references]
    return measured_floor(np.stack([run.compared["kl_prefixes"] for run in runs], axis=1))


def _on_policy(table: Table, world: World) -> dict[str, Any]:
    accuracy = world.cells[ON_POLICY].accuracy
    n = world.floor.shape[-1]
    runs = [table.runs[e.fingerprint()] for e in table.plan.references]
    return {
        "accuracy": accuracy.mean(-1).tolist(),
        "accuracy_spread": accuracy.std(-1, ddof=1).tolist(),
        "floor": measured_floor(world.floor).tolist(),
        "floor_on_prefixes": _prefix_floor(table).tolist(),
        "off_support": np.mean([held(r.trace, "off_support", table.steps) for r in runs], axis=0).tolist(),
        # each judged by the others, of which two must be left
        "deviation": deviation(world, ON_POLICY).tolist() if n > 2 else [math.nan] * len(table.steps),
    }


def _cell(table: Table, world: World, cell: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "sampler": cell.sampler,
        "correction": cell.correction,
        "same": None if cell.same is None else {"row": cell.same.row, "kind": cell.same.kind},
    }
    runs = runs_of(table, cell.experiments)
    if runs is None:
        return row | {"measured": False, "runs": []}
    name = CELL_NAMES.get(cell.correction, cell.correction)
    floors = deviation(world, name)
    each = run_deviations(world, name)
    steps = [run.trace.steps for run in runs]
    return row | {
        "measured": True,
        "end": float(floors[-1]),
        "worst": float(floors.max()),
        "worst_step": int(table.steps[floors.argmax()]),
        "accuracy": _mean(held(run.trace, "accuracy", table.steps)[-1] for run in runs),
        "off_support": _mean(held(run.trace, "off_support", table.steps)[-1] for run in runs),
        "off_support_most": max(float(held(r.trace, "off_support", table.steps).max()) for r in runs),
        "resyncs": _mean(float(s["resynced"].sum()) for s in steps),
        "ess_token": _mean(float(s["ess_token"][-1]) for s in steps),
        "ess_token_least": min(float(s["ess_token"].min()) for s in steps),
        "ess_sequence": _mean(float(s["ess_sequence"][-1]) for s in steps),
        "ess_sequence_least": min(float(s["ess_sequence"].min()) for s in steps),
        "prefixes": float(np.mean([r.compared["kl_prefixes"][-1] for r in runs]) / _prefix_floor(table)[-1]),
        "discrepancy": _mean(float(s["discrepancy_rms"].mean()) for s in steps),
        "runs": [_run(table, run, each[:, i]) for i, run in enumerate(runs)],
    }


def _run(table: Table, run: Measured, floors: np.ndarray) -> dict[str, Any]:
    steps = run.trace.steps
    token, sequence = steps["ess_token"], steps["ess_sequence"]
    return {
        "seed": run.experiment.seed,
        "fingerprint": run.experiment.fingerprint(),
        "stopped": run.stopped,
        "floors": floors.tolist(),
        "accuracy": held(run.trace, "accuracy", table.steps).tolist(),
        "off_support": held(run.trace, "off_support", table.steps).tolist(),
        "prefixes": (run.compared["kl_prefixes"].mean(-1) / _prefix_floor(table)).tolist(),
        "crossing": {
            "token": _step(first_below(token)),
            "token_sustained": _step(first_below(token, sustained=SUSTAINED)),
            "sequence": _step(first_below(sequence)),
            "sequence_sustained": _step(first_below(sequence, sustained=SUSTAINED)),
            "gaussian": _step(first_below(gaussian_var(steps["k2"]))),
        },
        "resynced": steps["step"][steps["resynced"] == 1].tolist(),
        "series": {name: steps[name].tolist() for name in SERIES if name in steps},
    }


def _step(value: float) -> int | str:
    """Write a crossing as JSON can hold it."""
    if math.isnan(value):
        return "not measured"
    return "never" if math.isinf(value) else int(value)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _order(names: Sequence[str], draws: np.ndarray) -> list[dict[str, Any]]:
    """Differences of the correlations, first measure minus each other one, with bootstrap intervals."""
    found = []
    for j in range(1, len(names)):
        gap = draws[:, 0] - draws[:, j]
        low, high = np.nanquantile(gap, (0.025, 0.975)) if not np.isnan(gap).all() else (math.nan, math.nan)
        found.append({"first": names[0], "second": names[j], "low": float(low), "high": float(high)})
    return found
