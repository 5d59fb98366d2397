"""How large differences are by step, and what they do over the steps: flat, onset, drop, drift or bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.profiles import CAP


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
