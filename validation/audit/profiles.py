"""How large differences are by step, along a row, and from row to row.

The shapes that tell one cause from another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.evidence import Evidence

CAP = 1000.0
"""Largest scaled difference that counts in a mean: one outlier is no profile"""


class Series(NamedTuple):
    """A size by step, with the error of each value over rows."""

    step: np.ndarray
    value: np.ndarray
    stderr: np.ndarray
    tokens: np.ndarray


def by_step(size: np.ndarray, step: np.ndarray, row: np.ndarray, /) -> Series:
    """Mean size per step; steps that are not known or have hardly any token are left out."""
    known = step != UNKNOWN
    size, step, row = np.minimum(size[known], CAP), step[known], row[known]
    names, inverse = np.unique(step, return_inverse=True)
    count = np.bincount(inverse, minlength=len(names))
    mean = np.bincount(inverse, weights=size, minlength=len(names)) / np.maximum(count, 1)
    off = size - mean[inverse]
    # rows are the units that vary independently: sum the deviations per row first
    owner, row_index = np.unique(row, return_inverse=True)
    per_row = np.bincount(row_index, weights=off, minlength=len(owner))
    step_of_row = np.zeros(len(owner), dtype=np.int64)
    step_of_row[row_index] = inverse
    by_rows = np.bincount(step_of_row, weights=per_row**2, minlength=len(names))
    by_tokens = np.bincount(inverse, weights=off**2, minlength=len(names))
    variance = np.maximum(by_rows, by_tokens)
    enough = count >= 16
    stderr = np.sqrt(variance) / np.maximum(count, 1)
    return Series(names[enough], mean[enough], stderr[enough], count[enough])


Shape = Literal["flat", "onset", "drift", "bursts", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a series does over the steps."""

    shape: Shape
    ratio: float = 1.0
    """High level over low level"""
    at: float = math.nan
    """First step of the high (or, for a drop, the low) level"""
    where: tuple[int, ...] = ()
    """Steps of a burst"""
    z: float = 0.0


def course(series: Series, /, *, least_ratio: float = 1.4) -> Course:
    """Name the shape of a series: flat, one jump up or down, a drift, or bursts that come and go."""
    value, stderr = series.value, np.maximum(series.stderr, 1e-12)
    n = len(value)
    if n < 2:
        return Course(shape="flat")
    weight = 1 / (stderr**2 + (0.03 * value) ** 2 + 1e-12)
    mean = float((weight * value).sum() / weight.sum())
    chi2 = float((((value - mean) / np.sqrt(stderr**2 + (0.03 * mean) ** 2)) ** 2).sum())
    excess = (chi2 - (n - 1)) / math.sqrt(2 * (n - 1))
    high = float(np.quantile(value, 0.9)) if n >= 5 else float(value.max())
    low = float(np.quantile(value, 0.1)) if n >= 12 else float(value.min())
    line = _line_fit(series.step, value, np.log(np.maximum(value, 1e-3 * high)))
    jump = _jump_fit(np.log(np.maximum(value, 1e-3 * high)))
    if excess > 6 and jump.ratio > 1.6 and jump.fit > max(0.85, line + 0.08):
        shape: Shape = "onset" if value[-1] > value[0] else "drop"
        return Course(shape=shape, ratio=jump.ratio, at=float(series.step[jump.at]), z=excess)
    low = max(low, 1e-9)
    if excess < 6 or high / low < least_ratio:
        burst = _single_burst(series)
        return burst if burst is not None and n >= 4 else Course(shape="flat", z=excess)
    level = np.log(np.maximum(value, 1e-3 * high))
    cut = (math.log(max(low, 1e-3 * high)) + math.log(high)) / 2
    above = level > cut
    switches = int((above[1:] != above[:-1]).sum())
    ratio = float(value[above].mean() / max(value[~above].mean(), 1e-3 * high)) if (~above).any() else 1.0
    if switches >= 2 and ratio > 1.8 and line < 0.6 and _returns(value, stderr, above):
        return Course(shape="bursts", ratio=ratio, where=tuple(int(s) for s in series.step[above]), z=excess)
    if switches == 1 and jump.fit > line + 0.08 and jump.ratio > 1.6:
        shape = "onset" if above[-1] else "drop"
        return Course(shape=shape, ratio=jump.ratio, at=float(series.step[jump.at]), z=excess)
    if line > 0.5 and value[-max(n // 4, 1) :].mean() > value[: max(n // 4, 1)].mean():
        ends = max(n // 4, 1)
        return Course(
            shape="drift", ratio=float(value[-ends:].mean() / max(value[:ends].mean(), 1e-9)), z=excess
        )
    if switches == 1 and jump.ratio > 1.6:
        shape = "onset" if above[-1] else "drop"
        return Course(shape=shape, ratio=jump.ratio, at=float(series.step[jump.at]), z=excess)
    return Course(shape="flat", z=excess)


def _single_burst(series: Series) -> Course | None:
    """One or two steps out of many that stand out while quantiles do not see them."""
    value, stderr = series.value, series.stderr
    typical = float(np.median(value))
    out = (value > 2.2 * typical) & (value - typical > 8 * np.maximum(stderr, 0.03 * typical))
    if not out.any() or out.sum() > len(value) // 3 or out[-1]:
        return None
    ratio = float(value[out].mean() / max(typical, 1e-9))
    return Course(shape="bursts", ratio=ratio, where=tuple(int(s) for s in series.step[out]), z=8.0)


def _returns(value: np.ndarray, stderr: np.ndarray, above: np.ndarray) -> bool:
    """Whether a high step is followed by a low one beyond their errors."""
    for k in np.flatnonzero(above[:-1] & ~above[1:]):
        if value[k] - value[k + 1] > 4 * math.hypot(float(stderr[k]), float(stderr[k + 1])):
            return True
    return False


def _line_fit(step: np.ndarray, value: np.ndarray, level: np.ndarray) -> float:
    """Share of the variance that a straight line explains, of the values or of their logs."""
    if len(step) < 3:
        return 1.0
    x = step.astype(float) - step.mean()
    fits = []
    for y in (value, level):
        spread = float(np.var(y))
        slope = float((x * (y - y.mean())).sum() / (x * x).sum())
        fits.append(1 - float(np.mean((y - y.mean() - slope * x) ** 2)) / spread if spread > 0 else 1.0)
    return max(fits)


class _Jump(NamedTuple):
    at: int
    fit: float
    ratio: float


def _jump_fit(level: np.ndarray) -> _Jump:
    """Best split of a series of logs into two levels."""
    n, spread = len(level), float(np.var(level))
    best = _Jump(1, -math.inf, 1.0)
    for k in range(1, n):
        before, after = level[:k], level[k:]
        left = (before.size * before.var() + after.size * after.var()) / n
        fit = 1 - float(left) / spread if spread > 0 else 0.0
        if fit > best.fit:
            best = _Jump(k, fit, math.exp(abs(float(after.mean() - before.mean()))))
    return best


BINS = 16


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


class Rows(NamedTuple):
    """Rows that stand out from the others by the size of their differences."""

    row: np.ndarray
    """Row numbers"""
    score: np.ndarray
    """Mean scaled difference of each"""
    bad: np.ndarray
    """Which stand out"""
    low: float
    """Median score of the ordinary rows"""


LEAST_RATIO = 3.0


def unequal_rows(evidence: Evidence, size: np.ndarray, use: np.ndarray, /) -> Rows | None:
    """Rows whose mean difference no chance could give, if rows fall into two kinds.

    None if they are one kind.
    """
    row, x = evidence.row[use], np.minimum(size[use], CAP)
    if not len(row):
        return None
    names, index = np.unique(row, return_inverse=True)
    count = np.bincount(index)
    if len(names) < 6:
        return None
    score = np.bincount(index, weights=x) / count
    # what rows would show if tokens were dealt out at random
    rng = np.random.default_rng(0)
    shuffled = np.concatenate([np.bincount(index, weights=rng.permutation(x)) / count for _ in range(4)])
    order = np.sort(np.log(np.maximum(score, 1e-6)))
    cut = _valley(order)
    bad = np.log(np.maximum(score, 1e-6)) > cut
    if not bad.any() or bad.all():
        return None
    low, high = float(np.median(score[~bad])), float(np.median(score[bad]))
    # with two kinds of rows the spread is far wider than that of dealt tokens
    wide = float(np.std(np.log(np.maximum(score, 1e-6)))) > 2.5 * float(
        np.std(np.log(np.maximum(shuffled, 1e-6)))
    )
    if high < LEAST_RATIO * low or not wide:
        return None
    return Rows(names, score, bad, low)


def _valley(order: np.ndarray) -> float:
    """Split of sorted values into two groups with the least variance within."""
    n = len(order)
    total = np.cumsum(order)
    k = np.arange(1, n)
    between = total[k - 1] ** 2 / k + (total[-1] - total[k - 1]) ** 2 / (n - k)
    best = int(k[np.argmax(between)])
    return float((order[best - 1] + order[best]) / 2)
