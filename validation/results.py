"""Outcomes of one `check`: the document that --json writes, and what the report needs beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from theory.estimate import Estimate
from validation.atomic import write_file, write_json
from validation.check import Check, Verdict, conclude
from validation.evidence import Evidence
from validation.floor import deviation

CURVES = ("ess_token", "ess_sequence", "k1", "k2", "resynced")
"""Measures of every step that the figures draw"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One engine's checks, judged."""

    engine: str
    seed: int
    seconds: float
    command: str
    checks: tuple[Check, ...]

    def document(self) -> dict[str, Any]:
        """Plain values in the published layout; what was not measured is null."""
        return {
            "engine": self.engine,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "checks": [_row(check) for check in self.checks],
        }

    @property
    def complete(self) -> bool:
        """Whether every check could be run, whatever its verdict."""
        return all(conclude(check).verdict is not Verdict.NOT_RUN for check in self.checks)


def _row(check: Check) -> dict[str, Any]:
    outcome = conclude(check)
    return {
        "claim": check.claim,
        "reading": check.reading,
        "predicted": _estimate(check.predicted),
        "measured": _estimate(check.measured),
        "margin": check.margin,
        "verdict": str(outcome.verdict),
        "control": {
            "what": check.control.what,
            "measured": _estimate(check.control.measured),
            "verdict": str(outcome.control),
        },
        "source": check.source,
    }


def _estimate(value: Estimate | None) -> dict[str, Any]:
    if value is None:
        return {"value": None, "stderr": None, "unit": ""}
    return {"value": value.value, "stderr": value.stderr, "unit": value.unit}


def shown(value: Estimate | None) -> str:
    """Write an estimate for people: log units as factors, the 95% interval in brackets."""
    if value is None or not value.measured:
        return "not measured"
    unit = value.unit
    low, high = value.interval()
    centre = value.value
    if unit.startswith("ln "):
        unit = unit.removeprefix("ln ").replace("steps", "x")
        low, centre, high = (_exp(v) for v in (low, centre, high))
    text = f"{_number(centre)} {unit}".rstrip()
    if math.isnan(low):
        return f"{text} (no interval: too few repetitions)"
    return text if low == high else f"{text} [{_number(low)}, {_number(high)}]"


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _number(value: float) -> str:
    if value == 0 or 1e-2 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.1e}"


def bound(check: Check) -> str:
    """Write what was predicted with its margin: "at most 2 floors", "2 floors within a factor 1.5"."""
    predicted, margin = check.predicted, check.margin
    exact = Estimate(value=predicted.value, unit=predicted.unit)
    if not predicted.unit.startswith("ln "):
        if check.form == "within":
            return f"{shown(exact)} within {_number(margin)}" if margin else shown(exact)
        limit = predicted.value + (margin if check.form == "at most" else -margin)
        return f"{check.form} {shown(Estimate(value=limit, unit=predicted.unit))}"
    if check.form == "within":
        return f"{shown(exact)} within a factor {math.exp(margin):.3g}"
    limit = predicted.value + (margin if check.form == "at most" else -margin)
    return f"{check.form} {shown(Estimate(value=limit, unit=predicted.unit))}"


def save(results: Results, evidence: Evidence | None, folder: Path, /) -> None:
    """Keep what the report needs: checks with their notes, and the curves behind the figures.

    The last results of an engine, and beside them those of every seed, to be compared with each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if evidence is not None:
        table = curves(evidence)
        write_file(folder / f"{results.engine}-curves.parquet", lambda path: pq.write_table(table, path))
    details = [detail(check) for check in results.checks]
    extra = {"command": results.command, "details": details}
    for name in (results.engine, f"{results.engine}-seed-{results.seed}"):
        write_json(folder / f"{name}.json", results.document() | extra)


def detail(check: Check, /) -> dict[str, Any]:
    """Return a check in the words of the report's tables."""
    outcome = conclude(check)
    return {
        "claim": check.claim,
        "reading": check.reading,
        "predicted": bound(check),
        "measured": shown(check.measured),
        "verdict": str(outcome.verdict),
        "reason": outcome.reason,
        "control": {
            "what": check.control.what,
            "measured": shown(check.control.measured),
            "verdict": str(outcome.control),
        },
        "source": check.source,
        "note": check.note,
    }


def curves(evidence: Evidence, /) -> pa.Table:
    """Long table of what the figures draw: world, cell, run, step, column, value.

    Columns are those of `CURVES` per run, and "floors", the cell's deviation, with run -1.
    """
    parts: list[dict[str, Any]] = []

    def add(world: Any, cell: str, run: int, column: str, steps: np.ndarray, values: np.ndarray) -> None:
        n = len(steps)
        parts.append(
            {
                "world": [world.label] * n,
                "main": [world.main] * n,
                "cell": [cell] * n,
                "run": np.full(n, run, dtype=np.int16),
                "column": [column] * n,
                "step": np.asarray(steps, dtype=np.int32),
                "value": np.asarray(values, dtype=np.float64),
            }
        )

    for world in evidence.worlds:
        for name, cell in world.cells.items():
            add(world, name, -1, "floors", world.steps, deviation(world, name))
            add(world, name, -1, "accuracy", world.steps, cell.accuracy.mean(axis=-1))
            for run, trace in enumerate(cell.traces):
                for column in CURVES:
                    if column in trace.steps:
                        add(world, name, run, column, trace.steps["step"], trace.steps[column])
    return pa.concat_tables([pa.table(part) for part in parts])


def load(path: Path, /) -> dict[str, Any] | None:
    """Read what `save` kept of an engine's checks; None where nothing was.

    Raises
    ------
    ValueError
        If the file is not what `save` writes.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{path} is not JSON; delete it and run the check again") from None
    needed = {"engine", "seed", "seconds", "checks", "command", "details"}
    if not isinstance(found, Mapping) or needed - found.keys():
        raise ValueError(f"{path} is not a result of a check; delete it and run the check again")
    return dict(found)


def verdict_counts(checks: Sequence[Check] | Iterable[Check], /) -> dict[str, int]:
    """How many checks came out each way."""
    counts = {str(v): 0 for v in Verdict}
    for check in checks:
        counts[str(conclude(check).verdict)] += 1
    return counts
