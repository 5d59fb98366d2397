"""The tail index against arviz-stats and against laws whose tail is known, and its defined cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from libraries import as_numpy, carry, compiled
from tolerances import MONTE_CARLO_Z, library

from theory.tail import FEWEST_IN_TAIL, k_hat, k_hat_of_tail, tail_draws

QUADRATURE = 1e-9
"""The log-likelihood of m draws is a sum of m logs: its rounding is m eps, m at most a few hundred here,
times the slope of the posterior; the oracle drops weights below 10 eps besides"""


def arviz(log_w: np.ndarray) -> float:
    """Oracle: the Pareto fit of arviz-stats on the same tail."""
    n = len(log_w)
    return array_stats._ps_tail(log_w.copy(), n, tail_draws(n), tail="right", log_weights=True)[1]


@pytest.mark.parametrize("n", [30, 225, 226, 1000, 8192])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_tail_index_equals_that_of_arviz_on_the_same_tail(n, spread):
    log_w = spread * np.random.default_rng(n).normal(size=n)
    assert k_hat(log_w) == pytest.approx(arviz(log_w), rel=0, abs=QUADRATURE)


@pytest.mark.parametrize(("dtype", "off"), [(np.float64, QUADRATURE), (np.float32, library(np.float32))])
def test_every_library_fits_the_same_tail(xp, dtype, off):
    log_w = np.random.default_rng(0).laplace(scale=0.4, size=400)
    got = float(compiled(xp, k_hat)(carry(xp, log_w, dtype)))
    assert got == pytest.approx(arviz(log_w), abs=off)


@pytest.mark.parametrize("kept", [299, 280, 150, 31, 24, 0])
def test_masked_draws_never_matter_whatever_stands_there(xp, kept):
    """Rows keep different numbers, so their tails and quadratures differ in size."""
    rng = np.random.default_rng(kept)
    log_w = rng.normal(size=(2, 300))
    mask = np.zeros((2, 300), dtype=bool)
    mask[0, rng.permutation(300)[:kept]] = True
    mask[1] = True
    spoiled = carry(xp, np.where(mask, log_w, math.nan))
    got = as_numpy(compiled(xp, k_hat)(spoiled, mask=xp.asarray(mask)))
    expected = [arviz(log_w[0][mask[0]]) if kept >= 25 else math.nan, arviz(log_w[1])]
    np.testing.assert_allclose(got, expected, rtol=0, atol=QUADRATURE)


def test_any_axis_can_hold_the_draws(xp):
    log_w = np.random.default_rng(2).normal(size=(2, 120, 3))
    mask = np.random.default_rng(3).random(log_w.shape) < 0.8
    expected = k_hat(np.moveaxis(log_w, 1, -1), mask=np.moveaxis(mask, 1, -1))
    got = compiled(xp, k_hat, "axis")(carry(xp, log_w), mask=xp.asarray(mask), axis=1)
    np.testing.assert_allclose(as_numpy(got), expected, rtol=0, atol=QUADRATURE)


def test_tail_index_does_not_depend_on_the_scale_of_the_ratio():
    log_w = np.random.default_rng(0).normal(size=500)
    assert k_hat(log_w + 300) == pytest.approx(k_hat(log_w), abs=QUADRATURE)


def laplace_quantiles(b: float, n: int) -> np.ndarray:
    """n log ratios spread over a Laplace law as evenly as draws can be: no sampling error."""
    p = (np.arange(n) + 0.5) / n
    return b * np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p)))


@pytest.mark.parametrize("b", [0.25, 0.4028, 0.6, 1.0])
def test_laplace_log_ratios_have_a_pareto_tail_of_index_b(b):
    """exp of an exponential tail of scale b is exactly Pareto of index b beyond the median."""
    n = 100_000
    m = tail_draws(n)
    prior = 10 * abs(0.5 - b) / (m + 10)
    # mid-quantiles end at 1 - 1/2n: the fit misses the last half draw, an error of order (1 + b) log(m)/m
    ends = (1 + b) * math.log(m) / m
    assert k_hat(laplace_quantiles(b, n)) == pytest.approx(b, abs=prior + 2 * ends)


def test_gaussian_log_ratios_have_a_lighter_tail_than_any_pareto_of_the_failure_law():
    """At ESS 1/2 (variance ln 2) the index is far below the 1/2 at which E w^2 ceases to exist."""
    log_w = math.sqrt(math.log(2)) * np.random.default_rng(0).normal(size=100_000)
    stderr = 1 / math.sqrt(tail_draws(100_000))
    assert k_hat(log_w) < 0.5 - MONTE_CARLO_Z * stderr


def test_tail_index_recovers_the_shape_of_a_pareto_law():
    shape, n = 0.5, 200_000
    w = np.random.default_rng(1).pareto(1 / shape, size=n)
    # asymptotic error of the fit: (1 + k)/sqrt(m), m = 1342 draws in the tail
    stderr = (1 + shape) / np.sqrt(tail_draws(n))
    print(f"k-hat {k_hat(np.log(w)):.3f} +- {stderr:.3f}")
    assert abs(k_hat(np.log(w)) - shape) < MONTE_CARLO_Z * stderr


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_huge_ratios_have_a_huge_index_and_do_not_overflow(xp, dtype):
    """A tail of log ratios c apart has index c: k-hat grows with their spread, far beyond exp's range."""
    draws = np.random.default_rng(0).normal(size=400)
    run = compiled(xp, k_hat)
    mild, wide, wider = (float(run(carry(xp, spread * draws, dtype))) for spread in (1.0, 1e4, 1e6))
    assert mild < 0.7 < wide
    # beyond e^60 of spread only the differences of logs are left, and they scale; the prior adds 5/(m + 10)
    assert wider == pytest.approx(100 * wide, rel=1 / tail_draws(400))


@pytest.mark.parametrize(
    "log_w",
    [
        np.zeros(20),
        np.zeros(0),
        np.zeros(400),
        np.full(400, -np.inf),
        np.r_[np.zeros(399), np.inf],
        np.full(400, np.nan),
        np.r_[np.random.default_rng(0).normal(size=399), np.nan],
    ],
    ids=["too few", "none", "equal", "all zero", "infinite", "unknown", "one unknown"],
)
def test_tail_index_is_nan_where_no_tail_can_be_fitted(xp, log_w):
    assert math.isnan(float(compiled(xp, k_hat)(carry(xp, log_w))))
    everything = xp.asarray(np.ones(len(log_w), dtype=bool))
    assert math.isnan(float(compiled(xp, k_hat)(carry(xp, log_w), mask=everything)))


def test_zero_ratios_below_the_tail_do_no_harm(xp):
    log_w = np.random.default_rng(0).normal(size=400)
    zeros = np.sort(log_w)
    zeros[:200] = -np.inf
    assert float(compiled(xp, k_hat)(carry(xp, zeros))) == pytest.approx(float(k_hat(log_w)), abs=QUADRATURE)


def test_the_tail_is_a_fifth_of_few_draws_and_three_roots_of_many():
    assert [tail_draws(n) for n in (0, 24, 25, 100, 225, 10_000)] == [0, 4, 5, 20, 45, 300]
    assert tail_draws(25) == FEWEST_IN_TAIL


def test_tail_selected_elsewhere_gives_the_same_index(xp):
    log_w = np.sort(np.random.default_rng(3).normal(size=400))
    m = tail_draws(400)
    selected = compiled(xp, k_hat_of_tail)(carry(xp, log_w[-m:]), carry(xp, log_w[-m - 1]))
    assert float(selected) == pytest.approx(float(compiled(xp, k_hat)(carry(xp, log_w))), abs=QUADRATURE)
