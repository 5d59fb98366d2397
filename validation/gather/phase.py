"""Phase diagrams of the toy: where each correction holds, by learning rate and sync period.

A cell is an ensemble at one learning rate, period and correction, in one environment; it is compared with
on-policy runs of an exact engine at the same learning rate. Read at the last step.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from theory.corrections import Correction, correction
from theory.experiment import Experiment, Numerics
from theory.floor import in_floors
from toy.measure import kl_between
from toy.settings import STALE, setting_s
from toy.simulate import ensemble
from validation.atomic import write_file
from validation.derived import derived
from validation.plan import LOGIT_NOISE, QUANTILE, environments
from validation.provenance import module_digest

LRS = (1.0, 2.0, 4.0, 8.0, 16.0)
PERIODS = (1, 2, 4, 8, 16, STALE)
CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {
        "pg": correction("pg"),
        "ppo, on the engine": correction("ppo", ppo_ref="engine"),
        "sc": correction("sc"),
        "is": correction("is"),
        "is-sc": correction("is-sc"),
        "dlc": correction("dlc"),
    }
)
"""PPO on the trainer before each batch is PG with one update per batch, so PPO stands here with the engine as
its reference"""
SEEDS = 3
ENVIRONMENTS = 2


class Diagram(NamedTuple):
    """Measures at the end of the runs, each (corrections, LRS, PERIODS), mean over environments."""

    deviation: np.ndarray
    """ln floors"""
    accuracy: np.ndarray
    """Of what on-policy runs reach at the same learning rate, ratio"""
    off_support: np.ndarray
    """Share"""


class Row(NamedTuple):
    """All cells of one environment at one learning rate: they share their on-policy runs."""

    env: int
    lr: float


def rows(seed: int) -> Iterator[Row]:
    """All rows, one environment after the other."""
    return itertools.starmap(Row, itertools.product(environments(seed)[:ENVIRONMENTS], LRS))


def gather(root: Path, seed: int, *, on_row: Callable[[], None] = lambda: None) -> Diagram:
    """Run or read all cells.

    Parameters
    ----------
    root : Path
        Folder of the toy's runs; what was computed is kept there.
    seed : int
        Which environments: those of ``check toy --seed``.
    on_row : callable
        Called after each row of cells.
    """

    def one(row: Row) -> np.ndarray:
        columns = derived(
            root, "phase", module_digest(__name__), *map(str, row), compute=lambda: _compute(row)
        )
        on_row()
        return np.stack([columns[name] for name in Diagram._fields])

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        values = np.stack(list(pool.map(one, rows(seed))))
    # (environments, rates, measures, corrections, periods): the environments are averaged
    shape = (-1, len(LRS), len(Diagram._fields), len(CORRECTIONS), len(PERIODS))
    return Diagram(*values.reshape(shape).mean(axis=0).transpose(1, 2, 0, 3))


def _compute(row: Row) -> dict[str, np.ndarray]:
    def at(run: int, rule: str | Correction, **changes: Any) -> Experiment:
        return setting_s(row.env, quantile=QUANTILE, lr=row.lr, correction=rule, seed=run, **changes)

    noise = Numerics(kind="gaussian", scale=LOGIT_NOISE)
    reference = [ensemble(at(run, "pg"), seeds=SEEDS) for run in (42, 43)]
    last = reference[0].experiment.steps
    among = np.block([[kl_between(a, b, steps=[last])[0] for b in reference] for a in reference])
    right = np.mean([runs.measures["accuracy"][:, -1] for runs in reference])
    found: dict[str, list[float]] = {name: [] for name in Diagram._fields}
    for rule, period in itertools.product(CORRECTIONS.values(), PERIODS):
        runs = ensemble(at(41, rule, sync_every=period, numerics=noise), seeds=SEEDS)
        to_reference = np.concatenate([kl_between(runs, b, steps=[last])[0] for b in reference], axis=-1)
        found["deviation"].append(math.log(in_floors(to_reference, among)))
        found["accuracy"].append(float(runs.measures["accuracy"][:, -1].mean() / right))
        found["off_support"].append(float(runs.measures["off_support"][:, -1].mean()))
    return {name: np.array(values) for name, values in found.items()}


def save(diagram: Diagram, path: Path, /) -> None:
    """Keep a diagram for the report: a long table of correction, lr, period and the measures."""
    grid = list(itertools.product(CORRECTIONS, LRS, PERIODS))
    names, lrs, periods = zip(*grid, strict=True)
    columns = {name: values.reshape(-1) for name, values in zip(Diagram._fields, diagram, strict=True)}
    table = pa.table({"correction": names, "lr": lrs, "sync_every": periods} | columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda temporary: pq.write_table(table, temporary))
