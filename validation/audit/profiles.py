"""How large differences are along a row: the shapes that tell one cause from another."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

CAP = 1000.0
"""Largest scaled difference that counts in a mean: one outlier is no profile"""


BINS = 16
"""Parts a row is cut into"""


class Along(NamedTuple):
    """Mean scaled difference along the rows, in quarters and in sixteenths of their length."""

    quarters: np.ndarray
    stderr: np.ndarray
    parts: np.ndarray
    """Shape (16,)"""

    @property
    def growth(self) -> float:
        """Last quarter over the first."""
        return float(self.quarters[-1] / max(self.quarters[0], 1e-9))

    @property
    def z(self) -> float:
        """How many standard errors first and last quarter lie apart."""
        error = math.hypot(float(self.stderr[0]), float(self.stderr[-1]))
        return abs(float(self.quarters[-1] - self.quarters[0])) / error if error > 0 else 0.0

    @property
    def early_share(self) -> float:
        """Share of the excess over the last quarter that stands in the first.

        1/2 for a step in the middle.
        """
        excess = self.quarters[:3] - self.quarters[3]
        total = float(excess.sum())
        return float(excess[0]) / total if total > 0 else 0.0

    @property
    def stepwise(self) -> bool:
        """Whether two levels fit the profile clearly better than any smooth course."""
        two = max(_share_explained(self.parts, np.arange(BINS) >= k) for k in range(2, BINS - 1))
        x = (np.arange(BINS) + 0.5) / BINS
        smooth = [x, x**2, *(np.exp(sign * x / t) for sign in (-1, 1) for t in (0.05, 0.1, 0.2, 0.4))]
        return two > 0.9 and two > max(_share_explained(self.parts, c) for c in smooth) + 0.08


def _share_explained(values: np.ndarray, shape: np.ndarray) -> float:
    """Squared correlation of a profile with a shape."""
    if values.std() == 0 or np.std(shape) == 0:
        return 0.0
    return float(np.corrcoef(values, shape)[0, 1]) ** 2


def along(size: np.ndarray, place: np.ndarray, length: np.ndarray, row: np.ndarray, /) -> Along | None:
    """Quarters of the rows by relative place; None where rows are too short or too few."""
    long_enough = length >= BINS
    if long_enough.sum() < 200:
        return None
    size, row = np.minimum(size[long_enough], CAP), row[long_enough]
    part = np.minimum((BINS * place[long_enough]) // length[long_enough], BINS - 1)
    quarter = part // (BINS // 4)
    count = np.bincount(quarter, minlength=4)
    if (count < 30).any():
        return None
    mean = np.bincount(quarter, weights=size, minlength=4) / count
    parts = np.bincount(part, weights=size, minlength=BINS) / np.maximum(np.bincount(part, minlength=BINS), 1)
    off = size - mean[quarter]
    owner, index = np.unique(row, return_inverse=True)
    cells = np.bincount(index * 4 + quarter, weights=off, minlength=4 * len(owner)).reshape(-1, 4)
    return Along(mean, np.sqrt((cells**2).sum(axis=0)) / count, parts)


class Change(NamedTuple):
    """Where rows change from one size of difference to another."""

    share: float
    """Rows with a clear change"""
    downward: float
    """Share of those that go from large to small"""
    sharpness: float
    """Log ratio right at the change over the log ratio of whole halves: 1 for a step, small for a slope"""
    spread: float
    """Standard deviation of the place of the change, as a share of the row's length"""
    ratio: float
    gain: float
    """Mean share of a row's variance that two levels explain, beyond what they explain in shuffled rows"""
    slope: float
    """Mean share that a straight line explains"""

    @property
    def sudden(self) -> bool:
        """Whether rows change at once: two levels explain more than a slope does."""
        return self.sharpness > 0.6 and self.gain > 1.1 * self.slope


SEARCHED_ROWS = 200


def changes(size: np.ndarray, row: np.ndarray, /) -> Change | None:
    """Best split of each row's sizes into two levels, against what shuffled rows would show."""
    starts = np.flatnonzero(np.append(True, row[1:] != row[:-1])) if len(row) else np.zeros(0, dtype=int)
    ends = np.append(starts[1:], len(row))
    usable = np.flatnonzero(ends - starts >= 24)
    if len(usable) < 6:
        return None
    usable = usable[:: max(1, len(usable) // SEARCHED_ROWS)][:SEARCHED_ROWS]
    rng = np.random.default_rng(0)
    clear, down, sharp, place, ratios, gains, slopes = [], [], [], [], [], [], []
    for i in usable:
        x = np.log1p(np.minimum(size[starts[i] : ends[i]], CAP))
        gain, k = _best_split(x)
        chance = max(_best_split(rng.permutation(x))[0] for _ in range(2))
        clear.append(gain > 2.0 * chance and gain > 0.1)
        gains.append(gain - chance)
        slopes.append(_share_explained(x, np.arange(len(x))))
        if not clear[-1]:
            continue
        n, width = len(x), max(6, len(x) // 8)
        a, b = float(np.expm1(x[:k]).mean()), float(np.expm1(x[k:]).mean())
        near_a, near_b = (
            float(np.expm1(x[max(0, k - width) : k]).mean()),
            float(np.expm1(x[k : k + width]).mean()),
        )
        whole = abs(math.log(max(a, 1e-6) / max(b, 1e-6)))
        sharp.append(abs(math.log(max(near_a, 1e-6) / max(near_b, 1e-6))) / max(whole, 1e-6))
        down.append(a > b)
        place.append(k / n)
        ratios.append(math.exp(whole))
    if not any(clear):
        return Change(0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0)
    return Change(
        float(np.mean(clear)),
        float(np.mean(down)),
        float(np.median(sharp)),
        float(np.std(place)),
        float(np.median(ratios)),
        float(np.mean(gains)),
        float(np.mean(slopes)),
    )


def _best_split(x: np.ndarray) -> tuple[float, int]:
    """Share of the variance two levels explain, and where they meet."""
    n = len(x)
    margin = max(4, n // 10)
    total = np.cumsum(x)
    k = np.arange(margin, n - margin + 1)
    between = total[k - 1] ** 2 / k + (total[-1] - total[k - 1]) ** 2 / (n - k) - total[-1] ** 2 / n
    spread = float(((x - x.mean()) ** 2).sum())
    best = int(np.argmax(between))
    return (float(between[best]) / spread if spread > 0 else 0.0), int(k[best])
