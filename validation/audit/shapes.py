"""The shapes of a log's numerics, computed once for the detectors of engine and weight faults."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from validation.audit.course import Course, Series, by_step, course
from validation.audit.evidence import Evidence
from validation.audit.profiles import Along, Change, along, changes
from validation.audit.unequal_rows import Rows, unequal_rows

LEAST_TOKENS = 100


class Mixed(NamedTuple):
    """Whether bad rows stand beside good ones in the same step."""

    within: float
    """Variance of badness within steps over that of all rows: 0 if steps are wholly bad or good"""
    share_by_step: Series


class Shapes:
    """Scaled differences on live tokens of pure numerics, and their course over steps, rows and places."""

    def __init__(self, evidence: Evidence, /) -> None:
        self.evidence = evidence
        self.use = evidence.numerics
        self.size = evidence.scaled()

    @property
    def enough(self) -> bool:
        """Whether there are tokens to judge by."""
        return int(self.use.sum()) >= LEAST_TOKENS

    @cached_property
    def series(self) -> Series:
        """Scaled difference by step."""
        e = self.evidence
        return by_step(self.size[self.use], e.step[self.use], e.row[self.use])

    @cached_property
    def course(self) -> Course:
        """What it does over the steps."""
        return course(self.series)

    @cached_property
    def along(self) -> Along | None:
        """Scaled difference along the rows."""
        e, use = self.evidence, self.use
        return along(self.size[use], e.position[use], e.length[use], e.row[use])

    @cached_property
    def changes(self) -> Change | None:
        """Changes within rows."""
        return changes(self.size[self.use], self.evidence.row[self.use])

    @cached_property
    def rows(self) -> Rows | None:
        """Rows that stand out."""
        return unequal_rows(self.evidence, self.size, self.use)

    @cached_property
    def mixed(self) -> Mixed | None:
        """How bad rows are spread over the steps."""
        found = self.rows
        if found is None:
            return None
        step = self.evidence.rows["step"][found.row]
        bad = found.bad.astype(float)
        share = by_step(bad, step, found.row)
        names, index = np.unique(step, return_inverse=True)
        mean = np.bincount(index, weights=bad) / np.bincount(index)
        whole = float(bad.var())
        within = float(np.mean((mean * (1 - mean))[index])) / whole if whole > 0 else 1.0
        return Mixed(within if len(names) > 1 else 1.0, share)

    @property
    def by_rows(self) -> bool:
        """Whether rows of one step differ, so that steps cannot be the cause."""
        return self.mixed is not None and self.mixed.within > 0.35

    def tokens_of(self, rows: np.ndarray, /) -> np.ndarray:
        """Live numerics tokens of the given rows."""
        return self.use & np.isin(self.evidence.row, rows)
