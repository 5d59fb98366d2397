"""Streamed moments: however a batch is cut, the merged state is that of one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from libraries import as_numpy, carry, compiled
from scipy.special import log_softmax
from strategies import floats, log_ratios, masks, rows
from tolerances import OTHER_LIBRARY_FLOAT32, algebra, library

from theory.cumulants import cumulants
from theory.decomposition import kl
from theory.ess import ess_fraction
from theory.moments import (
    MomentState,
    RatioState,
    chi_square,
    cumulants_of,
    kl_k3,
    mean_ratio,
    merge_moments,
    moment_state,
    ratio_state,
    root_mean_square,
)
from theory.records import STEP_COLUMNS
from theory.token_statistics import Statistics, merge_statistics, statistics, step_measures

DTYPES = (np.float64, np.float32)


def plain(state: tuple[Any, ...]) -> list[Any]:
    """Arrays of a state, nested ones included, in order."""
    return [leaf for x in state for leaf in (plain(x) if isinstance(x, tuple) else [x])]


def by_definition(x: np.ndarray) -> list[float]:
    """n, mean and sums of powers of deviations."""
    return [len(x), x.mean(), *(((x - x.mean()) ** k).sum() for k in (2, 3, 4))]


def assert_moments(got: tuple[Any, ...], x: np.ndarray, dtype: Any = np.float64) -> None:
    """Each sum is off by a few eps of n times the largest deviation to its power."""
    reach, tiny = float(np.abs(x).max()) * 2, float(np.finfo(dtype).tiny)  # powers underflow
    for order, value, expected in zip((0, 1, 2, 3, 4), plain(got), by_definition(x), strict=True):
        size = reach if order == 1 else len(x) * reach**order
        assert float(value) == pytest.approx(expected, rel=0, abs=tiny + algebra(size, size, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@given(x=log_ratios())
def test_moments_are_sums_of_powers_of_deviations(xp, dtype, x):
    assert_moments(compiled(xp, moment_state)(carry(xp, x, dtype)), x, dtype)


@given(x=log_ratios(sizes=(7, 32)), data=st.data())
def test_moments_of_shards_merge_to_those_of_one_pass(xp, x, data):
    """Empty shards and shards in any order included."""
    cuts = sorted(data.draw(st.lists(st.sampled_from((0, 3, 7)), min_size=2, max_size=3)))
    states = [compiled(xp, moment_state)(carry(xp, s)) for s in data.draw(st.permutations(np.split(x, cuts)))]
    merged = states[0]
    for state in states[1:]:
        merged = compiled(xp, merge_moments)(merged, state)
    assert_moments(merged, x)


def test_far_apart_shards_merge_without_cancellation():
    """A mean of 1e8 with deviations of 1: raw power sums would lose every digit of the spread."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=1000) + 1e8, rng.normal(size=1000) + 1e8 + 1
    merged = merge_moments(moment_state(x), moment_state(y))
    both = np.concatenate([x, y]) - 1e8
    assert merged.m2 == pytest.approx(((both - both.mean()) ** 2).sum(), rel=library())
    assert merged.m4 == pytest.approx(((both - both.mean()) ** 4).sum(), rel=library())


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@given(x=floats((3, 7), 30.0), mask=masks((3, 7)))
def test_masked_entries_never_matter_whatever_stands_there(xp, junk, x, mask):
    spoiled = carry(xp, np.where(mask, x, junk))
    got = compiled(xp, moment_state)(spoiled, mask=xp.asarray(mask))
    for i in range(3):
        row = MomentState(*(v[i] for v in got))
        if mask[i].any():
            assert_moments(row, x[i][mask[i]])
        else:
            assert not any(float(v) for v in row)


def test_infinite_and_nan_entries_stay_visible(xp):
    """An action the trainer has given up has log w = -inf: its mean is -inf and no cumulant exists."""
    for x, mean in (([-math.inf, 1.0], -math.inf), ([math.inf, 1.0], math.inf), ([math.nan, 1.0], math.nan)):
        state = moment_state(carry(xp, np.array(x)))
        whole = merge_moments(state, moment_state(carry(xp, np.array([2.0, 3.0]))))
        for s, n in ((state, 2), (whole, 4)):
            assert float(s.n) == n
            assert float(s.mean) == pytest.approx(mean, nan_ok=True)
            assert all(math.isnan(float(k)) for k in cumulants_of(s)[1:])


def test_any_axis_can_hold_the_draws(xp):
    x = np.random.default_rng(0).normal(size=(4, 5, 3))
    for axis in (1, -2):
        got = plain(compiled(xp, moment_state, "axis")(carry(xp, x), axis=axis))
        for value, expected in zip(got, moment_state(np.moveaxis(x, 1, -1)), strict=True):
            np.testing.assert_allclose(as_numpy(value), expected, rtol=0, atol=algebra(5 * 3.0**4))


def test_cumulants_of_a_state_are_those_of_the_draws():
    x = np.random.default_rng(0).gamma(2.0, size=500)
    got = cumulants_of(moment_state(x))
    for value, expected in zip(got, cumulants(x), strict=True):
        assert value == pytest.approx(float(expected), rel=library())
    assert got.k3 == pytest.approx(scipy.stats.moment(x, 3), rel=library())
    assert got.k4 == pytest.approx(scipy.stats.kurtosis(x) * x.var() ** 2, rel=library())
    assert all(math.isnan(float(k)) for k in cumulants_of(moment_state(np.zeros(0))))


def test_gaussian_cumulants_by_quadrature():
    """Gauss-Hermite nodes as shards of one draw each, weighted by n: k3 and k4 of a Gaussian are 0."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(20)
    zero = np.zeros_like(nodes)
    each = MomentState(weight / weight.sum(), 0.3 * nodes - 0.1, zero, zero, zero)
    merged = MomentState(*(v[0] for v in each))
    for i in range(1, 20):
        merged = merge_moments(merged, MomentState(*(v[i] for v in each)))
    got = cumulants_of(merged)
    np.testing.assert_allclose(got, [-0.1, 0.09, 0, 0], rtol=0, atol=algebra(1.0))


def test_measures_of_a_ratio_by_hand(xp):
    """w = 1/2, 1, 3: mean 3/2, E(w - 1)^2 = 17/12, ESS (9/2)^2 / (3 * 41/4)."""
    state = ratio_state(carry(xp, np.log([0.5, 1.0, 3.0])))
    mean_log = math.log(1.5) / 3
    assert float(mean_ratio(state.ess)) == pytest.approx(1.5, rel=library())
    assert float(chi_square(state)) == pytest.approx(17 / 12, rel=library())
    assert float(kl_k3(state)) == pytest.approx(0.5 - mean_log, rel=library())
    rms = math.sqrt((math.log(2) ** 2 + math.log(3) ** 2) / 3)
    assert float(root_mean_square(state.moments)) == pytest.approx(rms, rel=library())


@given(row=rows(shapes=((6,),), furthest=4.0))
def test_over_all_actions_k3_is_the_kl_and_chi_square_is_one_over_ess_minus_one(row):
    """Enumerated: each action as often as the sampler draws it, E w = 1, so both are exact."""
    p, log_w = np.exp(row.logpi_s), row.logpi - row.logpi_s
    mean, second = p @ np.exp(log_w), p @ np.exp(2 * log_w)
    off = algebra(second, second, np.abs(log_w))
    assert p @ (np.exp(log_w) - 1 - log_w) == pytest.approx(float(kl(row.logpi_s, row.logpi)), abs=off)
    state = ratio_state(log_w)._replace()
    n = np.asarray(1.0)
    exact = state.ess._replace(n=n, log_sum_w=np.log(mean), log_sum_w2=np.log(second))
    assert float(mean_ratio(exact)) == pytest.approx(1, abs=off)
    moments = MomentState(n, p @ log_w, n * 0, n * 0, n)  # a fourth moment that is not near 0
    assert float(chi_square(RatioState(exact, moments))) == pytest.approx(second / mean**2 - 1, abs=off)
    assert float(kl_k3(RatioState(exact, moments))) == pytest.approx(
        float(kl(row.logpi_s, row.logpi)), abs=off
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("shift", [0.0, -0.02, 1e-5])
def test_k3_and_chi_square_of_a_small_lag_are_those_of_expm1_and_never_negative(xp, dtype, spread, shift):
    """Enumerated draws; differences of numbers near 1 would be rounding from 1e-4 nats down."""
    x = (spread * np.sin(np.arange(1, 500.0)) + shift).astype(dtype)
    wide = x.astype(np.float64)
    e = np.expm1(wide)
    small = wide**2 / 2 + wide**3 / 6 + wide**4 / 24 + wide**5 / 120
    k3 = np.where(np.abs(wide) < 0.02, small, e - wide).mean()
    state = ratio_state(carry(xp, x, dtype), dtype=xp.float64)
    got = [float(kl_k3(state)), float(chi_square(state))]
    assert min(got) >= 0
    rel = max(library(dtype), OTHER_LIBRARY_FLOAT32["rtol"])
    assert got == pytest.approx([k3, (e**2).mean()], rel=rel, abs=1e-300)


@pytest.mark.parametrize("scale", [0.01, 0.04, 0.3, 2.0])
@pytest.mark.parametrize("shift", [0.0, 0.03, -0.049, 1.0])
def test_the_series_stands_only_for_what_is_near_and_to_its_fourth_order(scale, shift):
    """Two draws, so that the fourth order counts: a twelfth of it is 1e-4 of chi-square at 0.04."""
    x = np.array([-scale, scale]) + shift
    state = ratio_state(x)
    want = [(np.expm1(x) - x).mean(), (np.expm1(x) ** 2).mean()]
    assert [float(kl_k3(state)), float(chi_square(state))] == pytest.approx(want, rel=5e-6)


def test_one_outlier_leaves_the_mean_of_a_large_set_its_digits_on_either_side_of_a_merge():
    one = MomentState(*(np.float64(v) for v in (1.0, 1.0, 0.0, 0.0, 0.0)))
    many = MomentState(*(np.float64(v) for v in (1e6, 1e-12, 0.0, 0.0, 0.0)))
    for merged in (merge_moments(one, many), merge_moments(many, one)):
        assert merged.mean == pytest.approx((1 + 1e-6) / (1e6 + 1), rel=0, abs=algebra(1e-6))


def test_deviations_within_the_rounding_of_the_mean_have_their_own_moments(xp):
    """Two neighbouring float32 numbers, one of them twice: their mean is no float32."""
    low = np.float32(100.0)
    x = np.array([low, np.nextafter(low, np.float32(200.0)), low], dtype=np.float32)
    got = moment_state(carry(xp, x, np.float32), dtype=xp.float64)
    dev = x.astype(np.float64) - x.astype(np.float64).mean()
    for order, value in ((2, got.m2), (3, got.m3), (4, got.m4)):
        assert float(value) == pytest.approx((dev**order).sum(), rel=library())


@pytest.mark.parametrize("draws", [131_072, 131_071])
def test_chi_square_of_many_single_precision_ratios_is_not_the_rounding_of_their_sum(xp, draws):
    """Summed in single precision alone it is off by half a percent."""
    x = np.random.default_rng(0).normal(-4.5e-6, 0.003, draws).astype(np.float32)
    got = float(chi_square(ratio_state(carry(xp, x, np.float32), dtype=xp.float64)))
    assert got == pytest.approx((np.expm1(x.astype(np.float64)) ** 2).mean(), rel=library(np.float32))


@pytest.mark.parametrize("largest", [400.0, 999.0, math.inf])
def test_ratios_beyond_any_float_make_both_infinite_and_not_unknown(xp, largest):
    state = ratio_state(carry(xp, np.array([0.0, -0.5, largest])), dtype=xp.float64)
    assert float(chi_square(state)) == math.inf
    assert float(kl_k3(state)) == (pytest.approx(math.exp(400) / 3) if largest == 400 else math.inf)


def test_a_token_the_trainer_excludes_makes_k3_infinite_and_chi_square_one_for_it(xp):
    """w = 0: log w is -inf, and (w - 1)^2 is 1."""
    state = ratio_state(carry(xp, np.array([0.0, -math.inf])), dtype=xp.float64)
    assert float(kl_k3(state)) == math.inf
    assert float(chi_square(state)) == pytest.approx(0.5)


def a_batch(n: int, seed: int = 0) -> list[np.ndarray]:
    """Log-probabilities of n tokens, drawn from softmax rows a step apart."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4))
    noise, moved = 0.1 * rng.normal(size=(2, n, 4))
    return [log_softmax(x, axis=-1)[:, 0] for x in (z + noise, z, z + moved)]


def assert_streamed(xp: Any, n: int, block: int, dtype: Any, *, padded: bool = True) -> None:
    """A pass in blocks over a masked batch, with NaN in the padding, against whole arrays in float64."""
    logs = a_batch(n)
    mask = np.random.default_rng(1).random(n) < (0.8 if padded else 2)
    spoiled = [carry(xp, np.where(mask, x, math.nan), dtype) for x in logs]
    run = compiled(xp, statistics, "block")
    got = run(*spoiled, mask=xp.asarray(mask) if padded else None, block=block)
    mu, pi_s, pi = (x[mask] for x in logs)
    expected = Statistics(ratio_state(pi - pi_s), ratio_state(pi - mu).ess, moment_state(mu - pi_s))
    # each log w is off by eps(dtype) * |log| of up to 8 nats; a sum of n powers by n times that
    off = algebra(8.0 * n, dtype=dtype)
    for value, whole in zip(plain(got), plain(expected), strict=True):
        assert float(value) == pytest.approx(float(whole), rel=0, abs=off)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 64, 1000, 4096])
def test_a_streamed_pass_is_one_pass(block, dtype):
    assert_streamed(np, 1000, block, dtype)


def test_a_streamed_pass_is_one_pass_in_every_library(xp):
    assert_streamed(xp, 20, 8, np.float64, padded=False)
    if xp.__name__ != "jax.numpy":  # dropping the padding gives shapes that depend on data: not under jit
        assert_streamed(xp, 20, 8, np.float64)


def test_the_terms_of_a_pass_are_the_ratios_they_are_called():
    """By hand: one token with mu = 1/2, pi_s = 1/4, pi = 1/8."""
    state = statistics(*(np.log([p]) for p in (0.5, 0.25, 0.125)))
    assert state.lag.moments.mean == pytest.approx(math.log(1 / 2), rel=library())
    assert state.lag.ess.log_sum_w == pytest.approx(math.log(1 / 2), rel=library())
    assert state.total.log_sum_w == pytest.approx(math.log(1 / 4), rel=library())
    assert state.discrepancy.mean == pytest.approx(math.log(2), rel=library())


def test_shapes_do_not_matter_and_batches_merge():
    logs = [x.reshape(10, 60) for x in a_batch(600)]
    whole = statistics(*logs)
    halves = [statistics(*(x[part] for x in logs)) for part in (slice(0, 3), slice(3, 10))]
    for value, expected in zip(plain(merge_statistics(*halves)), plain(whole), strict=True):
        assert float(value) == pytest.approx(float(expected), rel=library(), abs=algebra(8.0))


def test_the_figures_of_a_step_carry_the_names_of_its_columns():
    logs = a_batch(500)
    got = step_measures(statistics(*logs))
    assert set(got) <= set(STEP_COLUMNS)
    log_w = logs[2] - logs[1]
    assert got["ess_token"] == pytest.approx(float(ess_fraction(log_w)), rel=library())
    assert got["ess_total"] == pytest.approx(float(ess_fraction(logs[2] - logs[0])), rel=library())
    assert got["mean_w"] == pytest.approx(np.exp(log_w).mean(), rel=library())
    assert got["lag_rms"] == pytest.approx(np.sqrt((log_w**2).mean()), rel=library())
    assert got["discrepancy_rms"] == pytest.approx(np.sqrt(((logs[0] - logs[1]) ** 2).mean()), rel=library())
    assert got["k2"] == pytest.approx(log_w.var(), rel=library())


def test_a_batch_without_tokens_is_not_measured():
    empty = np.zeros((2, 0))
    assert all(math.isnan(x) for x in step_measures(statistics(empty, empty, empty)).values())
    logs = a_batch(5)
    masked = step_measures(statistics(*logs, mask=np.zeros(5, dtype=bool)))
    assert all(math.isnan(x) for x in masked.values())


def test_what_cannot_be_summarised_is_refused():
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"one shape, got mu \(2, 3\), pi_s \(3, 2\)"):
        statistics(x, x.T, x)
    with pytest.raises(ValueError, match="at least one token, got 0"):
        statistics(x, x, x, block=0)
