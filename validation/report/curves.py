"""The stored curves behind the figures: one long table an engine, read back as rows of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Curves of one engine at the learning rate where its readings are taken."""

    engine: str
    table: pa.Table

    def series(self, cell: str, column: str, /) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (K) and one row a run or world (R, K); NaN where a run has no such step.

        Both are empty where the engine has no such cell or column.
        """
        wanted = (pc.field("cell") == cell) & (pc.field("column") == column) & pc.field("main")
        found = self.table.filter(wanted)
        if found.num_rows == 0:
            return np.empty(0), np.empty((0, 0))
        step, value = (found.column(name).to_numpy() for name in ("step", "value"))
        names = zip(found.column("world").to_pylist(), found.column("run").to_pylist(), strict=True)
        runs: dict[tuple[str, int], int] = {}
        row = np.array([runs.setdefault(name, len(runs)) for name in names])
        steps, place = np.unique(step, return_inverse=True)
        rows = np.full((len(runs), len(steps)), np.nan)
        rows[row, place] = value
        return steps, rows


def read_curves(folder: Path, engine: str, /) -> Curves | None:
    """Read what the last `check` of an engine kept; None where it kept none.

    Raises
    ------
    ValueError
        If the file is not such a table.
    """
    path = folder / f"{engine}-curves.parquet"
    if not path.exists():
        return None
    try:
        table = pq.read_table(path, columns=["world", "main", "cell", "run", "column", "step", "value"])
    except (pa.ArrowInvalid, KeyError):
        raise ValueError(f"{path} is not a table of curves; delete it and run check {engine} again") from None
    return Curves(engine=engine, table=table)
