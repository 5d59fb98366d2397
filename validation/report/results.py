"""Results of `check` as they were kept, put into words for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.results import load

VERDICTS = ("holds", "fails", "undecided", "not run")
TITLES = {
    "theory": "Closed forms",
    "toy": "Toy: JAX simulator",
    "real": "Real: mini-Qwen3 against vLLM",
}
CHECKS = "checks"
"""Folder inside the one of the runs where `check` keeps its last results"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One engine's table."""

    engine: str
    seed: int
    seconds: float
    command: str
    rows: Sequence[Mapping[str, Any]]
    """Words: claim, reading, predicted, measured, verdict, reason, control, source, note"""

    @property
    def title(self) -> str:
        """Heading of the table."""
        return TITLES.get(self.engine, self.engine)

    @property
    def caption(self) -> str:
        """The command, its seed and its time."""
        return f"{self.command} (seed {self.seed}, {self.seconds:.0f} s)"


def read_results(runs: Path, /) -> list[Result]:
    """Read the last results of every engine that has some, theory first.

    Raises
    ------
    ValueError
        If a file is not the result of a check.
    """
    found = []
    for engine in TITLES:
        data = load(runs / CHECKS / f"{engine}.json")
        if data is not None:
            found.append(
                Result(
                    engine=data["engine"],
                    seed=data["seed"],
                    seconds=data["seconds"],
                    command=data["command"],
                    rows=data["details"],
                )
            )
    return found
