"""The runs of a table as the checks read them: one world a sampler, all with the same on-policy runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from theory.experiment import Experiment
from validation.evidence import Cell, World
from validation.gather.compare import held
from validation.plan import ON_POLICY
from validation.table.gather import Measured, Table
from validation.table.rows import CELL_NAMES


def worlds(table: Table, /) -> dict[str, World]:
    """World of each sampler by its name; a cell that lacks a run is left out.

    Cells go by the names the checks know (`rows.CELL_NAMES`).
    """
    reference = _cell(table, table.plan.references)
    assert reference is not None, "a table without its on-policy runs is not built"
    found = {}
    for sampler in dict.fromkeys(cell.sampler for cell in table.plan.cells):
        cells = {ON_POLICY: reference}
        for cell in table.plan.cells:
            if cell.sampler == sampler and (made := _cell(table, cell.experiments)) is not None:
                cells[CELL_NAMES.get(cell.correction, cell.correction)] = made
        found[sampler] = World(
            label=f"{table.plan.preset}, {table.plan.point}, {sampler}",
            group=f"{table.plan.preset}, {sampler}",
            lr=table.plan.references[0].lr,
            main=True,
            steps=table.steps,
            cells=cells,
            on_policy=ON_POLICY,
        )
    return found


def runs_of(table: Table, experiments: Sequence[Experiment], /) -> list[Measured] | None:
    """Return the runs of some experiments; None where one is missing."""
    found = [table.runs.get(e.fingerprint()) for e in experiments]
    whole = [run for run in found if run is not None]
    return whole if len(whole) == len(found) else None


def _cell(table: Table, experiments: Sequence[Experiment]) -> Cell | None:
    runs = runs_of(table, experiments)
    if runs is None:
        return None
    return Cell(
        traces=tuple(run.trace for run in runs),
        distance=np.stack([run.compared["kl"] for run in runs], axis=1),
        accuracy=np.stack([held(run.trace, "accuracy", table.steps) for run in runs], axis=-1),
        folders=tuple(str(run.folder) for run in runs),
    )
