"""A table made up by formula so that the right verdict of every claim is known, and no two cells are alike.

Suffixes: K compared steps, R on-policy runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from theory.arrays import log_softmax
from theory.experiment import Experiment
from theory.records import Trace
from validation.check import Check
from validation.evidence import Rows
from validation.store import Store
from validation.table.gather import Measured, Table
from validation.table.judge import checks_of
from validation.table.plan import REFERENCES, TablePlan, mini_plan
from validation.table.ranks import Checkpoints
from validation.table.rows import CORRECTIONS, SAMPLERS
from validation.table.worlds import worlds

STEPS = np.arange(1, 41)
COMPARED = np.arange(5, 41, 5)
OWN = COMPARED * 1e-3
"""Floor on the runs' own prefixes, nats per token"""
PREFIXES = COMPARED * 7e-3
"""Floor on the samplers' prefixes"""
RUN = np.array([-0.03, -0.01, 0.04])
"""Relative offset of the runs of a cell"""
ON_POLICY = np.array([-0.03, -0.02, -0.01, 0.01, 0.02, 0.03])
"""Relative offset of the on-policy runs; both sum to 0, so that means are the numbers that went in"""
LEARNT = 0.7
"""Accuracy of the on-policy runs at the end"""
UNTRAINED = 0.3
NEVER = (90, 90)


def learning(end: float) -> np.ndarray:
    """Accuracy at the compared steps, (K)."""
    return UNTRAINED + (end - UNTRAINED) * COMPARED / COMPARED[-1]


def grown(factor: float) -> np.ndarray:
    """Course over all steps from 1 to a factor."""
    return factor ** ((STEPS - 1) / 39)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the runs of a cell are like; a pair: two steps that dip, and those that stay."""

    end: float = 1.3
    """Floors"""
    at: Mapping[int, float] = field(default_factory=dict)
    """Floors at some compared steps, where they are not on the way to the end"""
    prefixes: float = 1.2
    """Floors at the end on the sampler's prefixes"""
    accuracy: float = 0.68
    share: float | None = None
    """Largest off-support share, at step 35; None: it follows the accuracy that is lost"""
    token: tuple[int, int] = NEVER
    sequence: tuple[int, int] = NEVER
    gaussian: tuple[int, int] = NEVER
    resyncs: int = 0
    engine: float = 1.1
    """Last discrepancy over the first"""
    lag: float = 30.0
    """Last lag over the first"""
    tag: float = 1.0
    """Factor on nearly every number, another one in each cell"""

    @property
    def floors(self) -> np.ndarray:
        """Deviation at the compared steps, (K)."""
        course = self.end ** (COMPARED / COMPARED[-1])
        return self.tag * np.array([self.at.get(int(s), x) for s, x in zip(COMPARED, course, strict=True)])

    @property
    def accuracies(self) -> np.ndarray:
        """Share of right answers at the compared steps, (K)."""
        return self.tag * learning(self.accuracy)

    @property
    def shares(self) -> np.ndarray:
        """Off-support share at the compared steps, (K); not largest at the end."""
        course = 0.03 * np.exp(5.8 * (learning(LEARNT) - learning(self.accuracy)))
        if self.share is not None:
            course = self.share * COMPARED / COMPARED[-2]
        return self.tag * np.where(COMPARED[-2] >= COMPARED, course, 0.97 * course[-2])

    def steps(self, later: int, offset: float) -> dict[str, np.ndarray]:
        """Columns of a run that crosses so many steps later, with a relative offset of what is measured."""

        def dips(pair: tuple[int, int]) -> np.ndarray:
            first, stays = pair[0] + later, pair[1] + later
            return (first == STEPS) | (first + 1 == STEPS) | (stays <= STEPS)

        def measured(values: np.ndarray) -> np.ndarray:
            found = dict(zip(COMPARED, values * (1 + offset), strict=True))
            return np.array([found.get(step, np.nan) for step in STEPS])

        return {
            "step": STEPS,
            "ess_token": np.where(dips(self.token), 0.3, 0.9),
            "ess_sequence": np.where(dips(self.sequence), 0.2, 0.8),
            "ess_total": np.full(40, 0.1),
            "k1": np.full(40, -0.05),
            "k2": np.where(dips(self.gaussian), 1.2, 0.1),
            "resynced": ((STEPS > 10) & (10 + self.resyncs >= STEPS)).astype(float),
            "synced": ((STEPS == 1) | ((STEPS > 11) & (15 + self.resyncs >= STEPS))).astype(float),
            "discrepancy_rms": 0.05 * grown(self.tag * self.engine),
            "lag_rms": 0.02 * grown(self.tag * self.lag),
            "off_support": measured(self.shares),
            "accuracy": measured(self.accuracies),
        }


GONE = {"accuracy": 0.06, "prefixes": 1.5, "engine": 4.0}
"""A collapse that the sampler's prefixes do not show"""
KEPT = {"lag": 2.0, "accuracy": 0.66}
"""What a resync leaves"""
STALE: dict[str, dict[str, Any]] = {
    "pg": {**GONE, "end": 700.0, "accuracy": 0.02},
    "ppo": {**GONE, "end": 500.0, "accuracy": 0.03},
    "ppo-synced": {"end": 5.0, "accuracy": 0.6},
    "ppo-engine": {"end": 1.5, "accuracy": 0.55},
    "is": {**GONE, "end": 115.0, "at": {5: 1.2}, "token": (8, 11), "sequence": (3, 6), "gaussian": (12, 15)},
    "is+resync": {**KEPT, "end": 1.6, "resyncs": 3},
    "seq-is": {**GONE, "end": 90.0, "at": {5: 1.3}, "token": (17, 20), "sequence": (7, 12)},
    "seq-is+resync": {**KEPT, "end": 1.7, "resyncs": 4},
    "sc": {**GONE, "end": 32.0, "accuracy": 0.08, "token": (20, 25), "gaussian": (12, 15)},
    "is-sc": {"end": 2.0, "accuracy": 0.5},
    "dlc": {**KEPT, "end": 1.3, "at": {25: 1.6}, "resyncs": 1},
    "dlc-free": {**GONE, "end": 20.0, "at": {20: 25.0}, "accuracy": 0.1},
}
"""Under a sampler that lags for the whole run; rows that are not here are as they come"""
BOTH: dict[str, dict[str, Any]] = STALE | {
    "is": STALE["is"] | {"token": (7, 10), "gaussian": (11, 14)},
    "seq-is": STALE["seq-is"] | {"sequence": (8, 13)},
    "dlc": STALE["dlc"] | {"resyncs": 2},
}
"""Under one that rounds as well"""
MILD: dict[str, dict[str, Any]] = {"pg": {"end": 6.0}, "ppo": {"end": 7.0}, "ppo-engine": {"end": 1.5}}
ROUNDED: dict[str, dict[str, Any]] = {
    "pg": {"end": 13.0, "accuracy": 0.72},
    "ppo-engine": {"end": 20.0, "accuracy": 0.71},
    "sc": {"end": 1.25, "accuracy": LEARNT},
    "ppo": {"end": 12.0, "accuracy": 0.72},
    "ppo-synced": {"end": 11.0, "accuracy": 0.72},
    "dlc-free": {"end": 10.0, "accuracy": 0.73},
}
BY_SAMPLER = {"stale-64": STALE, "fp8+stale": BOTH}

Kinds = Mapping[tuple[str, str], Kind]


def good() -> dict[tuple[str, str], Kind]:
    """What the articles claim, of every cell by sampler and correction."""
    found = {}
    for sampler, row in SAMPLERS.items():
        special = BY_SAMPLER.get(sampler, ROUNDED if row.numerics.kind != "exact" else MILD)
        for name in CORRECTIONS:
            kind: dict[str, Any] = {"end": 1.05} if sampler == "reference" else special.get(name, {})
            found[sampler, name] = Kind(**kind, tag=1 + 2e-4 * len(found))
    return found


GOOD: Kinds = good()


def changed(changes: Mapping[tuple[str, str], Mapping[str, Any]], kinds: Kinds = GOOD) -> Kinds:
    """Replace some fields of some cells."""
    return {**kinds, **{cell: dataclasses.replace(kinds[cell], **change) for cell, change in changes.items()}}


def plan_of(
    *,
    samplers: tuple[str, ...] = tuple(SAMPLERS),
    corrections: tuple[str, ...] = tuple(CORRECTIONS),
    references: tuple[int, ...] = REFERENCES,
    seeds: tuple[int, ...] = (20, 21, 22),
) -> TablePlan:
    """Plan cells that share no runs, so that each can be another."""
    whole = mini_plan(samplers=samplers, corrections=("pg",), references=references, seeds=seeds)
    cells = tuple(
        dataclasses.replace(
            cell,
            correction=name,
            experiments=tuple(dataclasses.replace(e, correction=CORRECTIONS[name]) for e in cell.experiments),
        )
        for cell in whole.cells
        for name in corrections
    )
    return dataclasses.replace(whole, cells=cells)


def among(offsets: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """KL among on-policy runs, (K, R, R), whose mean over pairs is the floor."""
    pairs = (1 + offsets[:, None] + offsets) * (1 - np.eye(len(offsets)))
    return floor[:, None, None] * pairs


def reference_steps(run: int) -> dict[str, np.ndarray]:
    """Columns of an on-policy run: no discrepancy but for rounding, a lag of one update."""
    kind = Kind(accuracy=LEARNT, token=(30, 35), gaussian=(31, 36))
    return kind.steps(0, ON_POLICY[run] / 5) | {
        "synced": np.ones(40),
        "discrepancy_rms": 1e-6 * (1 + run) * (1 + 0.1 * (17 + run == STEPS)),
        "lag_rms": 0.02 * (1 + run) * (1 - 0.1 * (23 + run == STEPS)),
    }


def keep_references(root: Path, plan: TablePlan, *, surplus: float = 0.001, rounding: float = 1.0) -> None:
    """Write the on-policy runs; the surprisal of their tokens is so much above the entropy of the rows.

    In nats, .0005 more from run to run; `rounding` multiplies their discrepancies.
    """
    for run, experiment in enumerate(plan.references):
        entropy = np.linspace(0.2, 1.4, 12)
        drawn = entropy + surplus + 5e-4 * run + 0.1 * np.resize([1.0, -1.0], 12)
        tokens = {"entropy": entropy, "logmu": -drawn, "logpi_s": -drawn - 0.3, "logpi": -drawn + 0.4}
        steps = reference_steps(run)
        steps["discrepancy_rms"] = rounding * steps["discrepancy_rms"]
        with Store(root).write("real", experiment) as writer:
            writer.finish([Trace(steps=steps, tokens=tokens)])


def rows() -> Rows:
    """Rows of an engine, the trainer at its weights and now: all three differ."""
    rng = np.random.default_rng(5)
    mu, pi_s, pi = (log_softmax(2 * rng.normal(size=(60, 12))) for _ in range(3))
    return Rows(logmu=mu, logpi_s=pi_s, logpi=pi, what="made-up rows")


def table_of(
    root: Path,
    kinds: Kinds = GOOD,
    *,
    plan: TablePlan | None = None,
    missing: Sequence[tuple[str, str]] = (),
    far_apart: bool = False,
    with_rows: bool = True,
) -> Table:
    """Build a table whose on-policy runs were kept under `root`.

    Cells in `missing` lack their last run; with `far_apart` half of the on-policy runs lie far from all.
    """
    plan = plan or plan_of()
    runs: dict[str, Measured] = {}

    def add(experiment: Experiment, trace: Trace, own: np.ndarray, theirs: np.ndarray) -> None:
        runs[experiment.fingerprint()] = Measured(
            experiment=experiment,
            trace=trace,
            compared={"kl": own, "kl_prefixes": theirs},
            stopped=None,
            seconds=1.0,
            folder=Store(root).folder("real", experiment),
            digest=experiment.fingerprint(),
        )

    offsets = ON_POLICY[: len(plan.references)]
    far = np.where(np.arange(len(offsets)) % 2, 20.0, 0.05)[:, None] if far_apart else 1.0
    own, theirs = far * among(offsets, OWN), among(offsets[::-1], PREFIXES)
    for i, experiment in enumerate(plan.references):
        stored = Store(root).find("real", experiment, tables=("steps",))
        assert stored is not None, "write the on-policy runs with keep_references first"
        add(experiment, stored.traces[0], own[:, i], theirs[:, i])
    for cell in plan.cells:
        name = cell.sampler, cell.correction
        kind, last = kinds[name], len(cell.experiments) - (name in missing)
        for i, experiment in enumerate(cell.experiments[:last]):
            spread = 1 + RUN[i] + ON_POLICY[None, : len(offsets)]
            course = kind.tag * kind.prefixes ** (COMPARED / COMPARED[-1])
            distances = (
                (floor * x)[:, None] * spread for floor, x in ((OWN, kind.floors), (PREFIXES, course))
            )
            add(experiment, Trace(steps=kind.steps(i, RUN[i] / 5)), *distances)
    return Table(plan=plan, steps=COMPARED, runs=runs, rows=rows() if with_rows else None)


def unmeasured() -> Checkpoints:
    """Too few runs for a rank: for the claims that read none, since ranks take seconds."""
    nothing = np.full(2, np.nan)
    return Checkpoints(
        run=np.arange(2), drop=nothing, measures={"off-support": nothing, "deviation": nothing}
    )


def judged(table: Table, points: Checkpoints | None = None) -> list[Check]:
    """Verdicts as the command line has them; ranks from some points, or not measured."""
    return checks_of(table, worlds(table), unmeasured() if points is None else points)
