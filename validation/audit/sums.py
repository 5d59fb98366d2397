"""Exact sums over a whole log, block by block: what the numbers of the report are made of.

Ratios are never averaged and never clipped on the way: an ESS is that of the pooled sums (`theory.ess`). The
tables
keep sums per bucket; merging two of them adds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from theory.ess import EssState, ess_from_state
from theory.moments import (
    RatioState,
    cumulants_of,
    kl_k3,
    mean_ratio,
    merge_ratios,
    ratio_state,
    root_mean_square,
)
from theory.token_statistics import BLOCK

FLOOR = -1000.0
"""Log-probs below it are a writer's stand-in for minus infinity (vLLM floors at -9999), not a probability.
What is as far above 0 is no loss and no probability either: sums of its powers leave the floats"""

PROBABILITY_EDGES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""Upper edges of the probability buckets, by the engine's probability"""
POSITION_EDGES = tuple(round(2 ** (k / 2)) for k in range(1, 41))
"""Upper edges of the position buckets, in tokens: two per octave up to a million"""
HISTOGRAM_EDGE = 4.0
HISTOGRAM_BINS = 81
"""log ratios from -4 to 4 nats; what lies beyond is in the outermost bins"""
_LARGEST_LOG = 300.0
"""Cap of a log ratio in the linear sums of the tables; the pooled sums have none"""


def in_use(column: np.ndarray, /) -> np.ndarray:
    """Return true where a log-prob is of a size that one can have, even with its sign lost."""
    return (column > FLOOR) & (column < -FLOOR)


class RatioSums:
    """Pooled state of one log ratio over tokens, with what only a report needs of it."""

    def __init__(self) -> None:
        self.n = 0
        self.state: RatioState | None = None
        self.absolute = 0.0
        self.largest = 0.0
        self.histogram = np.zeros(HISTOGRAM_BINS, dtype=np.int64)

    def add(self, x: np.ndarray, /) -> None:
        """Take log ratios of shape (n,)."""
        if x.size == 0:
            return
        self.n += x.size
        for start in range(0, x.size, BLOCK):
            new = ratio_state(x[start : start + BLOCK])
            self.state = new if self.state is None else merge_ratios(self.state, new)
        size = np.abs(x)
        self.absolute += float(size.sum())
        self.largest = max(self.largest, float(size.max()))
        half = (HISTOGRAM_BINS - 1) / 2
        bins = np.clip(np.rint(x * (half / HISTOGRAM_EDGE)) + half, 0, HISTOGRAM_BINS - 1).astype(np.int64)
        self.histogram += np.bincount(bins, minlength=HISTOGRAM_BINS)

    @property
    def ess(self) -> float:
        """ESS share, raw and pooled; NaN for no tokens."""
        return math.nan if self.state is None else float(ess_from_state(self.state.ess))

    @property
    def mean_ratio(self) -> float:
        """Mean of the ratio itself; infinite where it overflows."""
        return self._measure(lambda s: mean_ratio(s.ess))

    @property
    def mean(self) -> float:
        """Mean of the log ratio, nats."""
        return self._measure(lambda s: cumulants_of(s.moments).k1)

    @property
    def variance(self) -> float:
        """Variance of the log ratio, nats squared."""
        return self._measure(lambda s: cumulants_of(s.moments).k2)

    @property
    def rms(self) -> float:
        """Root mean square of the log ratio, nats."""
        return self._measure(lambda s: root_mean_square(s.moments))

    @property
    def k3(self) -> float:
        """Estimate E[w - 1 - log w] of the KL divergence, nats."""
        return self._measure(kl_k3)

    def _measure(self, of: Callable[[RatioState], Any]) -> float:
        if self.state is None:
            return math.nan
        with np.errstate(
            over="ignore"
        ):  # a broken log can hold ratios beyond any float; infinite is the answer
            return float(of(self.state))


TABLE_COLUMNS = ("n", "sum_abs_d", "sum_d", "sum_d2", "sum_r", "sum_r2")


class Table:
    """Sums of d = log mu - log reference per bucket, buckets numbered from 0 and growing as needed."""

    def __init__(self) -> None:
        self.sums = np.zeros((0, len(TABLE_COLUMNS)))

    def add(self, bucket: np.ndarray, columns: np.ndarray, /) -> None:
        """Add `columns` (6, n), in the order of TABLE_COLUMNS, to buckets (n,)."""
        if bucket.size == 0:
            return
        size = max(int(bucket.max()) + 1, len(self.sums))
        grown = np.zeros((size, len(TABLE_COLUMNS)))
        grown[: len(self.sums)] = self.sums
        for j in range(len(TABLE_COLUMNS)):
            grown[:, j] += np.bincount(bucket, weights=columns[j], minlength=size)
        self.sums = grown


class KeyedTable:
    """A `Table` whose buckets are found by a key: a step, a version gap, a word."""

    MOST_KEYS = 100_000

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}
        self.table = Table()

    def add(self, keys: np.ndarray, columns: np.ndarray, /) -> None:
        """Add rows to the buckets of their keys; keys beyond the bound share the last bucket."""
        names, inverse = np.unique(keys, return_inverse=True)
        places = []
        for name in names.tolist():
            if name not in self.index and len(self.index) >= self.MOST_KEYS:
                name = next(reversed(self.index))
            places.append(self.index.setdefault(name, len(self.index)))
        self.table.add(np.array(places, dtype=np.int64)[inverse], columns)

    def rows(self) -> list[tuple[Any, np.ndarray]]:
        """Keys in order with their sums."""
        return [(k, self.table.sums[i]) for k, i in sorted(self.index.items()) if i < len(self.table.sums)]


def ess_of_sums(n: float, total: float, square: float, /) -> float:
    """ESS share of `n` weights from the sums of the weights and of their squares.

    NaN for no weights, and for ones so small that the sums are 0 in any float.
    """
    if not (n > 0 and total > 0 and square > 0):
        return math.nan
    with np.errstate(divide="ignore"):
        state = EssState(np.float64(n), np.log(total), np.log(square), np.log(total))
    return float(ess_from_state(state))


def describe(sums: np.ndarray, /) -> dict[str, float]:
    """Figures of one bucket."""
    n, absolute, total, square, ratio, ratio2 = (float(v) for v in sums)
    if n == 0:
        return {"tokens": 0}
    return {
        "tokens": int(n),
        "mean_abs_d": absolute / n,
        "mean_d": total / n,
        "rms_d": math.sqrt(square / n),
        "mean_ratio": ratio / n,
        "ess_token": ess_of_sums(n, ratio, ratio2),
    }


class TokenTable(NamedTuple):
    """Per-token columns of one block for the tables."""

    columns: np.ndarray
    """Shape (6, n), in the order of TABLE_COLUMNS"""
    ratio: np.ndarray


def token_columns(d: np.ndarray, /) -> TokenTable:
    """Columns of TABLE_COLUMNS for tokens with difference `d`, and their ratio exp(-d)."""
    ratio = np.exp(np.minimum(-d, _LARGEST_LOG))
    columns = np.stack([np.ones_like(d), np.abs(d), d, d * d, ratio, ratio * ratio])
    return TokenTable(columns, ratio)


MISMATCH_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "logmu": "engine",
        "logpi_s": "trainer at the sampler's weights",
        "logpi": "trainer now",
    }
)
