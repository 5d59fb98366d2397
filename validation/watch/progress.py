"""A run as far as it is known: what every source of it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from theory.crossing import first_below
from theory.forecast import Forecast, forecast
from theory.resync import FAILURE_THRESHOLD

SYNCS = ("resynced", "pushed")


class Progress(NamedTuple):
    """A run as far as it is known."""

    title: str
    state: str
    """running, done, or growing (a file says no more)"""
    steps: tuple[Mapping[str, float], ...]
    """Each with "step" and the measures it has; "pushed" where the sampler got new weights after it"""
    total: int | None
    """Steps it will have; None: not known"""
    unread: str = ""
    """How much of it could not be read, and why; empty where all was"""
    notes: tuple[str, ...] = ()
    """What else the figures do not say"""

    @property
    def crossed(self) -> float:
        """First step with the token ESS below one half; inf: none, NaN: not measured."""
        if not self.steps:
            return math.nan
        return first_below(self.series("ess_token"), steps=self.series("step"))

    def series(self, name: str) -> np.ndarray:
        """One measure by step, NaN where a step lacks it."""
        return np.array([s.get(name, math.nan) for s in self.steps])

    def lag(self) -> np.ndarray:
        """Count the updates since the last push at each step."""
        out, held = [], 0
        for step in self.steps:
            held += 1
            out.append(held)
            held = 0 if any(step.get(name, 0) for name in SYNCS) else held
        return np.array(out)

    def outlook(self) -> Forecast | None:
        """Lag at which the token ESS will cross one half; None where it has, or too little is known."""
        ess, lag = self.series("ess_token"), self.lag()
        seen = np.isfinite(ess)
        if seen.sum() < 2 or lag[-1] < 2 or ess[-1] < FAILURE_THRESHOLD:
            return None
        # steps without a reading stay: a push may lie between them
        return forecast(np.where(seen, ess, math.nan), lag=lag)


class Source(Protocol):
    """Where progress comes from."""

    def poll(self) -> Progress:
        """Read what is new and return all there is."""
        ...
