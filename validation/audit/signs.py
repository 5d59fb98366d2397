"""What was logged as a log-prob and is above 0: probabilities, losses, or a sentinel among log-probs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from theory.batch import ROUNDING

STRAY = 0.02
"""Share of values of another sign that fills and zeros may put into a column"""
PLACES = 3
"""Places kept of the first tokens, for messages"""


@dataclass(slots=True)
class Tally:
    """Tokens of one kind: how many, in how many responses, and where the first stand."""

    count: int = 0
    rows: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, at: np.ndarray, row: np.ndarray, place: Callable[[int], str], /) -> None:
        """Take the tokens `at` of a block of whole responses, given each token's row and words for it."""
        if at.size:
            self.count += at.size
            self.rows += len(np.unique(row[at]))
            self.places += [place(int(t)) for t in at[: PLACES - len(self.places)]]


class Signs:
    """One column of log-probs: how far it goes, and how often it is above what rounding can make of 0."""

    def __init__(self) -> None:
        self.counted = 0
        """Tokens that count and are numbers"""
        self.negative = 0
        """Those of them below 0"""
        self.below = 0
        """Those of them below 0 by more than `ROUNDING`"""
        self.positive = Tally()
        """Those of them above 0, by however little"""
        self.above = Tally()
        """Those of them above 0 by more than `ROUNDING`"""
        self.least, self.largest = math.inf, -math.inf
        """Range of those above 0, and of all"""

    def add(
        self, values: np.ndarray, usable: np.ndarray, row: np.ndarray, place: Callable[[int], str], /
    ) -> None:
        """Take a block's values, shape (n,), where they count and are numbers.

        Parameters
        ----------
        values, usable, row : ndarray
            Values in nats, whether each is to be looked at, and the response each belongs to; shape (n,).
        place : callable
            Words for where a token stands.
        """
        counted = values[usable]
        self.counted += counted.size
        self.negative += int(np.count_nonzero(counted < 0))
        self.below += int(np.count_nonzero(counted < -ROUNDING))
        largest = float(counted.max(initial=-math.inf))
        self.largest = max(self.largest, largest)
        if largest <= 0:
            return
        positive = np.flatnonzero(usable & (values > 0))
        self.least = min(self.least, float(values[positive].min()))
        self.positive.add(positive, row, place)
        self.above.add(np.flatnonzero(usable & (values > ROUNDING)), row, place)

    @property
    def all_small(self) -> bool:
        """Whether nearly all of the column is above 0, and nothing in it by more than rounding may be.

        Rounding takes some log-probs of near-certain tokens above 0, never all: probabilities of a large
        vocabulary look like this.
        """
        return not self.above.count and self._nearly_all_above

    @property
    def no_log_probs(self) -> bool:
        """Whether the column as a whole is something else.

        Nearly all of it is above 0; or some of it is by more than rounding, hardly any is below, and more is
        above 0 than below.
        """
        mixed = self.below <= STRAY * self.counted and self.positive.count > self.negative
        return self._nearly_all_above or (self.above.count > 0 and mixed)

    @property
    def _nearly_all_above(self) -> bool:
        return self.positive.count > (1 - STRAY) * self.counted

    @property
    def looks_like(self) -> str:
        """What such a column is, by its range."""
        if self.all_small:
            return "probabilities, or losses"
        return "probabilities" if self.largest <= 1 + 1e-6 else "losses"
