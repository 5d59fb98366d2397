"""What was logged as a log-prob and is above 0: probabilities, losses, or a sentinel among log-probs."""

from __future__ import annotations

import math

import numpy as np

from theory.batch import ROUNDING

STRAY = 0.02
"""Share of values below 0 that fills may put into a column of something else"""


class Signs:
    """One column of log-probs: how far it goes, and how often it is above what rounding can make of 0."""

    def __init__(self) -> None:
        self.counted = self.above = self.below = 0
        """Tokens that count and are numbers; those of them with more than `ROUNDING` or less than its like"""
        self.largest = -math.inf
        self.rows = 0
        """Responses with a token above"""
        self.places: list[str] = []
        """The first tokens above"""

    def add(self, values: np.ndarray, usable: np.ndarray, /) -> np.ndarray:
        """Take a block's values where they count and are numbers; return the places of those above."""
        counted = values[usable]
        self.counted += counted.size
        self.below += int(np.count_nonzero(counted < -ROUNDING))
        largest = float(counted.max(initial=-math.inf))
        self.largest = max(self.largest, largest)
        if largest <= ROUNDING:
            return np.zeros(0, dtype=np.int64)
        at = np.flatnonzero(usable & (values > ROUNDING))
        self.above += at.size
        return at

    @property
    def no_log_probs(self) -> bool:
        """Whether the column as a whole is something else: values above 0, and hardly any below."""
        return self.above > 0 and self.below <= STRAY * self.counted

    @property
    def looks_like(self) -> str:
        """What such a column is, by its range."""
        return "probabilities" if self.largest <= 1 + 1e-6 else "losses"
