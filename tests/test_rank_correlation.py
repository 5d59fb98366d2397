"""Spearman's coefficient against scipy and by its properties; draws of whole groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from strategies import floats
from tolerances import algebra, library

from validation.rank_correlation import resampled, spearman

PAIRS = st.sampled_from((2, 5, 12)).flatmap(lambda n: st.tuples(floats((n,), 20.0), floats((n,), 20.0)))
"""Short and with ties, constants included"""


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b


@given(PAIRS)
def test_growing_maps_of_either_side_change_nothing(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = (np.round(side, 6) for side in pair)  # so that no map makes two values one
    value = spearman(x, y)
    for mapped in (x**3, 3 * x + 7, np.exp(x)):
        if len(np.unique(mapped)) == len(np.unique(x)):
            assert same(spearman(mapped, y), value)
            assert same(spearman(y, mapped), spearman(y, x))


@given(PAIRS)
def test_it_is_odd_symmetric_and_within_one(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    value = spearman(x, y)
    if math.isnan(value):
        assert len(np.unique(x)) == 1 or len(np.unique(y)) == 1
        return
    assert abs(value) <= 1 + algebra(1.0)
    assert spearman(-x, y) == pytest.approx(-value, abs=algebra(1.0))
    assert spearman(y, x) == value


@given(PAIRS)
def test_it_is_scipys(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    if len(np.unique(x)) > 1 and len(np.unique(y)) > 1:
        oracle: Any = stats.spearmanr(x, y)
        assert spearman(x, y) == pytest.approx(oracle.statistic, rel=library(), abs=library())


@given(PAIRS, st.integers(0, 3))
def test_pairs_with_a_nan_on_either_side_are_left_out(pair: tuple[np.ndarray, np.ndarray], lost: int) -> None:
    x, y = pair
    n = len(x)
    more_x = np.concatenate([x, np.full(lost, np.nan), np.arange(lost)])
    more_y = np.concatenate([y, np.arange(lost), np.full(lost, np.nan)])
    order = np.random.default_rng(n + lost).permutation(len(more_x))
    assert spearman(more_x[order], more_y[order]) == pytest.approx(spearman(x, y), nan_ok=True)


def test_ties_have_their_mean_rank() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    value = spearman(np.array([0.0, 5.0, 5.0, 9.0]), np.arange(4.0))
    assert value == pytest.approx(math.sqrt(0.9), abs=algebra(1.0))


def test_infinities_are_the_last_and_the_first() -> None:
    assert spearman(np.array([-np.inf, 0.0, np.inf]), np.array([1.0, 2.0, 3.0])) == 1


def test_whole_groups_are_drawn() -> None:
    group = np.array([7, 3, 3, 9, 9, 9])
    sizes = {3: 2, 7: 1, 9: 3}
    seen: set[tuple[int, ...]] = set()

    def statistic(places: np.ndarray) -> list[float]:
        counts = np.bincount(places, minlength=6)
        for name in sizes:
            assert len(set(counts[group == name])) == 1  # each member as often as the others
        drawn = tuple(int(counts[group == name][0]) for name in sizes)
        assert sum(drawn) == 3
        seen.add(drawn)
        return [float(n) for n in drawn]

    values = resampled(group, statistic, rng=np.random.default_rng(0), resamples=300)
    assert values.shape == (300, 3)
    assert len(seen) == 10  # every multiset of three out of three
    # each group is drawn once on average: binomial of 3 draws at 1/3
    assert np.abs(values.mean(0) - 1).max() < 4 * math.sqrt(2 / 3 / 300)


def test_a_statistic_of_one_number_gives_one_column() -> None:
    values = resampled(np.arange(4), lambda i: float(i[0]), rng=np.random.default_rng(1), resamples=50)
    assert values.shape == (50,)
    assert set(values) == {0.0, 1.0, 2.0, 3.0}
