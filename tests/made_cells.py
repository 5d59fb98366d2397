"""Evidence with exact numbers by cell, step and run, to see which of them a check reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from made_table import ON_POLICY, among
from tolerances import library

from theory.estimate import Estimate
from theory.records import Trace
from validation import plan
from validation.checks import CHECKS
from validation.evidence import Cell, Evidence, World

STEPS = np.arange(1, 41)
FLOOR = 1e-3 * STEPS
RUNS = 3
Numbers = dict[str, tuple[float, float]]
"""Measured value and that of the control, by reading"""


def cell(floors: Any, *, accuracy: float = 0.6, exact: Any = None, **columns: Any) -> Cell:
    """Runs so many floors from the on-policy ones, all alike; columns are numbers or series."""
    level = np.broadcast_to(np.asarray(floors, dtype=float), STEPS.shape)
    steps = {"step": STEPS} | {name: np.broadcast_to(x, STEPS.shape).copy() for name, x in columns.items()}
    return Cell(
        traces=(Trace(steps=steps),) * RUNS,
        distance=np.broadcast_to((level * FLOOR)[:, None, None], (40, RUNS, 6)),
        accuracy=np.broadcast_to((0.2 + (accuracy - 0.2) * STEPS / 40)[:, None], (40, RUNS)),
        exact=exact or {},
    )


def on_policy(columns: Sequence[Mapping[str, Any]] = ({},) * 6) -> Cell:
    """Six runs a little apart, each with columns of its own."""
    made = [cell(1.0, **each).traces[0] for each in columns]
    return dataclasses.replace(
        cell(1.0),
        traces=tuple(made),
        distance=among(ON_POLICY, FLOOR),
        accuracy=np.broadcast_to((0.3 + 0.5 * STEPS / 40)[:, None], (40, 6)),
    )


def world(
    cells: Mapping[str, Cell], *, environment: int = 0, lr: float = plan.MAIN_LR, **changes: Any
) -> World:
    return World(
        label=f"environment {environment}, lr {lr:g}",
        group=f"environment {environment}",
        lr=lr,
        main=lr == plan.MAIN_LR,
        steps=STEPS,
        cells={plan.ON_POLICY: on_policy(), **cells},
        on_policy=plan.ON_POLICY,
        **changes,
    )


def evidence(*worlds: World, **changes: Any) -> Evidence:
    """Worlds and probes as the checks take them."""
    return Evidence(engine="toy", seed=0, worlds=worlds, rows=None, **changes)


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def same_numbers(claim: str, found: Evidence, expected: Numbers) -> None:
    """Every reading of a claim is there, no other, and its two numbers are those."""
    got = {c.reading: (value(c.measured), value(c.control.measured)) for c in CHECKS[claim].checks(found)}
    assert set(got) == set(expected)
    for reading, numbers in expected.items():
        assert got[reading] == pytest.approx(numbers, rel=library(), abs=1e-12), reading
