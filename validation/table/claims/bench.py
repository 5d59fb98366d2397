"""What the claims of the table read: worlds by sampler, and single runs with what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from theory.estimate import Estimate, mean_estimate
from validation.evidence import World
from validation.gather.compare import held
from validation.plan import ON_POLICY
from validation.table.gather import Measured, Table
from validation.table.ranks import Checkpoints
from validation.table.rows import CELL_NAMES, SAMPLERS
from validation.table.worlds import runs_of

COLLAPSED_BELOW = 0.5
"""Share of the on-policy accuracy at the end below which a run counts as collapsed; article 2: .122/.465"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the claims of the table are judged on: the table with all that was worked out of it once.

    A `World` is one sampler; a claim that compares samplers, or picks single runs by what became of them,
    asks here.
    """

    table: Table
    worlds: Mapping[str, World]
    points: Checkpoints

    def has(self, sampler: str, *corrections: str) -> bool:
        """Whether these cells were measured."""
        world = self.worlds.get(sampler)
        return world is not None and all(cell_name(c) in world.cells for c in corrections)

    def stale(self) -> list[str]:
        """Samplers that lag for a whole run."""
        return [s for s in self.worlds if SAMPLERS[s].sync_every > self.table.steps[-1]]

    def runs(self, sampler: str, *, resync: bool | None = None) -> Iterator[tuple[str, int, Measured]]:
        """Each run of a sampler once, with its correction and its place in the cell.

        With `resync` those whose correction syncs by its ESS, or those whose does not.
        """
        for cell in self.table.plan.cells:
            if cell.sampler != sampler or cell.same is not None:
                continue
            rule = cell.experiments[0].correction
            if resync is not None and (rule.resync_below > 0) != resync:
                continue
            for i, run in enumerate(runs_of(self.table, cell.experiments) or []):
                yield cell.correction, i, run

    def collapsed(self, run: Measured) -> bool:
        """Whether a run has lost its accuracy by the end."""
        reference = next(iter(self.worlds.values())).cells[ON_POLICY].accuracy[-1].mean()
        return bool(held(run.trace, "accuracy", self.table.steps)[-1] < COLLAPSED_BELOW * reference)


def cell_name(correction: str) -> str:
    """Name of a correction's cell in a world."""
    return CELL_NAMES.get(correction, correction)


def over_runs(values: list[float], unit: str) -> Estimate | None:
    """Mean over single runs; None where there is none."""
    known = [v for v in values if not np.isnan(v)]
    return mean_estimate(known, unit=unit) if known else None
