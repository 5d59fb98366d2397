"""What an engine's runs say, in one form for both engines: checks never ask which engine made it.

Suffixes: K compared steps, S runs of a cell, R reference runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from theory.records import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs of one kind in one world."""

    traces: tuple[Trace, ...]
    """One a run, every step"""
    distance: np.ndarray
    """KL of each run to each on-policy reference run, (K, S, R), nats per token on the run's own prefixes"""
    accuracy: np.ndarray
    """Share of held-out responses that are right, (K, S)"""
    exact: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Sums over everything that can be drawn, where the engine has them: name to (K, S)"""
    folders: tuple[str, ...] = ()
    """Where the runs are stored"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Runs that are compared with each other: one environment, one learning rate."""

    label: str
    group: str
    """Worlds of one group share their environment and count as one repetition"""
    lr: float
    main: bool
    steps: np.ndarray
    """Compared steps (K), ascending; the last is the end of the runs"""
    cells: Mapping[str, Cell]
    """By name, the on-policy reference included; its distances are those among its own runs"""
    on_policy: str
    """Name of the reference cell"""
    batch_floors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """KL among on-policy runs with another batch, (K, S, S), by cell name"""

    @property
    def floor(self) -> np.ndarray:
        """KL among the reference runs, (K, R, R)."""
        return self.cells[self.on_policy].distance

    def select(self, runs: np.ndarray, reference: np.ndarray) -> World:
        """Keep some of the methods' runs, paired and so the same in every cell, and of the reference's."""

        def part(name: str, cell: Cell) -> Cell:
            kept = reference if name == self.on_policy else runs
            return dataclasses.replace(
                cell,
                traces=tuple(cell.traces[i] for i in kept),
                distance=cell.distance[:, kept][:, :, reference],
                accuracy=cell.accuracy[:, kept],
                exact={n: x[:, kept] for n, x in cell.exact.items()},
            )

        return dataclasses.replace(self, cells={n: part(n, c) for n, c in self.cells.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Full rows of the three policies at prefixes a sampler visited, float64 (n, V), in nats."""

    logmu: np.ndarray
    logpi_s: np.ndarray
    logpi: np.ndarray
    what: str
    """Which run and step they are from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Numbers of one repetition that come from runs of their own and stand in no table of steps."""

    group: str
    """Probes of one group count as one repetition"""
    numbers: Mapping[str, float]
    """By name; NaN where there was nothing to measure"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that the checks of one engine read."""

    engine: str
    seed: int
    worlds: tuple[World, ...]
    rows: Rows | None
    """None where no run could be asked for its rows"""
    probes: Mapping[str, tuple[Probe, ...]] = dataclasses.field(default_factory=dict)
    """By the name of the analysis; an engine without it has no entry"""

    @property
    def main(self) -> tuple[World, ...]:
        """The worlds at the learning rate where readings at one rate are taken."""
        return tuple(w for w in self.worlds if w.main)

    def has(self, *cells: str) -> bool:
        """Whether every main world has these cells."""
        return bool(self.main) and all(name in world.cells for world in self.main for name in cells)
