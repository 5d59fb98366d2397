"""Results of `check` as they stand in its JSON, read back and put into words for tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERDICTS = ("holds", "fails", "undecided", "not run")
TITLES = {
    "theory": "Closed forms",
    "toy": "Toy: JAX simulator",
    "real": "Real: mini-Qwen3 against vLLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a verdict table, in words."""

    claim: str
    reading: str
    predicted: str
    measured: str
    margin: str
    verdict: str
    control_what: str
    control: str
    control_verdict: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One engine's table."""

    engine: str
    seed: int
    seconds: float
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        """Heading of the table."""
        return TITLES.get(self.engine, self.engine)

    @property
    def caption(self) -> str:
        """The command, its seed and its time."""
        return f"python -m validation check {self.engine} --seed {self.seed}; {self.seconds:.0f} s"


def results_path(store: Path, engine: str, /) -> Path:
    """Where `check` keeps its last result of an engine."""
    return store / f"check-{engine}.json"


def read_results(store: Path, /) -> list[Result]:
    """Read the last result of every engine that has one, theory first.

    Raises
    ------
    ValueError
        If a file is not such a result.
    """
    found = []
    for engine in TITLES:
        path = results_path(store, engine)
        if path.exists():
            try:
                found.append(_result(json.loads(path.read_text(encoding="utf-8"))))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path} is not the result of a check ({type(error).__name__}: {error}); "
                    f"delete it and run check {engine} again"
                ) from None
    return found


def words(number: Mapping[str, Any] | None, /) -> str:
    """``value +- stderr unit`` to three digits; "not measured" where there is none."""
    if number is None or number.get("value") is None:
        return "not measured"
    value, stderr = float(number["value"]), number.get("stderr")
    text = f"{value:.3g}"
    if stderr is not None and stderr > 0 and math.isfinite(stderr):
        text += f" \u00b1 {stderr:.2g}"
    return f"{text} {number.get('unit', '')}".strip()


def _result(data: Mapping[str, Any]) -> Result:
    rows = [
        Row(
            claim=check["claim"],
            reading=check["reading"],
            predicted=words(check["predicted"]),
            measured=words(check["measured"]),
            margin=f"{check['margin']:.3g}",
            verdict=check["verdict"],
            control_what=check["control"]["what"],
            control=words(check["control"]["measured"]),
            control_verdict=check["control"]["verdict"],
            note=check.get("note", ""),
        )
        for check in data["checks"]
    ]
    return Result(engine=data["engine"], seed=data["seed"], seconds=data["seconds"], rows=rows)
