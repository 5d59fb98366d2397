"""ESS of a ratio: bounds, what must not matter, defined cases, closed forms, and the Gaussian law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libraries import as_numpy, carry, compiled
from strategies import floats, log_ratios, masks
from tolerances import MONTE_CARLO_Z, algebra, eps, library

from theory.ess import (
    EssState,
    ess_fraction,
    ess_from_state,
    ess_state,
    merge_states,
    response_ess,
    response_log_ratio,
)

DTYPES = (np.float64, np.float32)


def ess_by_definition(log_w: np.ndarray) -> float:
    """(sum w)^2 / (n sum w^2) of weights scaled so that the largest is 1."""
    w = np.exp(log_w - log_w.max())
    return w.sum() ** 2 / (len(w) * (w**2).sum())


def off(log_w: np.ndarray, dtype=np.float64) -> float:
    """Relative error of ESS: each log w is rounded to eps * |log w|, and ESS moves by 2 + 2 of that."""
    return algebra(4.0, 4 * np.abs(log_w), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(log_w=log_ratios())
def test_ess_is_a_share_between_one_over_n_and_one(xp, dtype, log_w):
    share = float(compiled(xp, ess_fraction)(carry(xp, log_w, dtype)))
    assert 1 / len(log_w) * (1 - eps(dtype)) <= share <= 1
    assert share == pytest.approx(ess_by_definition(log_w), rel=off(log_w, dtype))


@given(log_w=log_ratios(), scale=st.floats(-300, 300, allow_subnormal=False))
def test_ess_ignores_the_scale_of_the_ratio(log_w, scale):
    moved = ess_fraction(log_w + scale)
    assert moved == pytest.approx(ess_fraction(log_w), rel=off(np.abs(log_w) + abs(scale)))


@given(log_w=log_ratios(), seed=st.integers(0, 2**32 - 1))
def test_ess_ignores_the_order_of_the_draws(log_w, seed):
    shuffled = np.random.default_rng(seed).permutation(log_w)
    assert ess_fraction(shuffled) == pytest.approx(ess_fraction(log_w), rel=off(log_w))


@given(log_w=log_ratios(sizes=(7, 32)), data=st.data())
def test_ess_of_shards_merges_to_ess_of_all(xp, log_w, data):
    """However the draws are cut, empty shards included, and whatever order the shards arrive in."""
    cuts = sorted(data.draw(st.lists(st.sampled_from((0, 3, 7)), min_size=2, max_size=3)))
    shards = np.split(log_w, cuts)
    states = [compiled(xp, ess_state)(carry(xp, s)) for s in data.draw(st.permutations(shards))]
    merged = states[0]
    for state in states[1:]:
        merged = compiled(xp, merge_states)(merged, state)
    whole = compiled(xp, ess_state)(carry(xp, log_w))
    for got, expected in zip(merged, whole, strict=True):
        assert float(got) == pytest.approx(float(expected), rel=library(), abs=off(log_w))
    assert float(merged.n) == len(log_w)
    assert float(ess_from_state(merged)) == pytest.approx(ess_by_definition(log_w), rel=off(log_w))


def test_ess_of_one_draw_a_shard_is_the_ess_of_all(xp):
    log_w = np.linspace(-3, 2, 9)
    states = compiled(xp, ess_state)(carry(xp, log_w[:, None]))
    merged = EssState(*(x[0] for x in states))
    for i in range(1, 9):
        merged = compiled(xp, merge_states)(merged, EssState(*(x[i] for x in states)))
    assert float(ess_from_state(merged)) == pytest.approx(ess_by_definition(log_w), rel=off(log_w))
    assert float(merged.log_max_w) == 2


JUNK = (math.nan, math.inf, -math.inf, 1e300)


@pytest.mark.parametrize("dtype", DTYPES)
@given(log_w=floats((3, 7), 60.0), mask=masks((3, 7)), junk=st.sampled_from(JUNK))
def test_masked_draws_never_matter_whatever_stands_there(xp, dtype, log_w, mask, junk):
    spoiled = np.where(mask, log_w, junk if dtype is np.float64 else np.float32(min(junk, 3e38)))
    got = as_numpy(compiled(xp, ess_fraction)(carry(xp, spoiled, dtype), mask=xp.asarray(mask)))
    for share, x, keep in zip(got, log_w, mask, strict=True):
        if keep.any():
            assert share == pytest.approx(ess_by_definition(x[keep]), rel=off(x, dtype))
        else:
            assert math.isnan(share)


@given(log_w=floats((2, 3, 7), 8.0), mask=masks((2, 3, 7)), junk=st.sampled_from(JUNK))
def test_padding_never_matters_to_responses_either(xp, log_w, mask, junk):
    spoiled, keep = carry(xp, np.where(mask, log_w, junk)), xp.asarray(mask)
    for geometric in (False, True):
        got = as_numpy(compiled(xp, response_ess, "geometric")(spoiled, mask=keep, geometric=geometric))
        for share, responses, kept in zip(got, log_w, mask, strict=True):
            seen = [x[k] for x, k in zip(responses, kept, strict=True) if k.any()]
            whole = np.array([x.mean() if geometric else x.sum() for x in seen])
            if len(whole):
                assert share == pytest.approx(ess_by_definition(whole), rel=off(np.abs(log_w).sum(-1)))
            else:
                assert math.isnan(share)


def test_a_response_without_tokens_has_ratio_one_and_is_no_draw(xp):
    log_w = carry(xp, np.array([[1.0, 2.0], [math.nan, math.nan]]))
    mask = xp.asarray(np.array([[True, True], [False, False]]))
    np.testing.assert_array_equal(as_numpy(response_log_ratio(log_w, mask=mask)), [3, 0])
    np.testing.assert_array_equal(as_numpy(response_log_ratio(log_w, mask=mask, geometric=True)), [1.5, 0])
    assert float(response_ess(log_w, mask=mask)) == 1  # 1/2 or less if the empty response counted


def test_without_a_mask_every_token_of_a_response_counts(xp):
    log_w = carry(xp, np.array([[1.0, 2.0, 6.0], [0.0, 0.0, -3.0]]))
    np.testing.assert_array_equal(as_numpy(response_log_ratio(log_w)), [9, -3])
    np.testing.assert_array_equal(as_numpy(response_log_ratio(log_w, geometric=True)), [3, -1])


@pytest.mark.parametrize(
    ("log_w", "expected"),
    [
        ([0.0], 1.0),
        ([5.0] * 12, 1.0),
        ([-math.inf, 0.0, -math.inf, -math.inf], 1 / 4),  # one draw has all the weight
        ([0.0, 0.0, -math.inf, -math.inf], 1 / 2),
        ([math.log(3), 0.0], 16 / 20),  # (3 + 1)^2 / (2 (9 + 1))
        ([1000.0, 1000.0, -1000.0], 2 / 3),  # exp overflows, ESS does not
        ([-math.inf, -math.inf], 0.0),
        ([math.inf, 0.0, 0.0], 1 / 3),
        ([math.inf, math.inf, 0.0, 0.0], 1 / 4),
        ([math.nan, 0.0], math.nan),
        ([math.nan, math.inf], math.nan),
        ([], math.nan),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ess_of_known_ratios(xp, dtype, log_w, expected):
    x = np.array(log_w, dtype=np.float64)
    got = float(compiled(xp, ess_fraction)(carry(xp, x, dtype)))
    assert got == pytest.approx(expected, rel=off(x[np.isfinite(x)], dtype), nan_ok=True)


def test_ess_takes_any_axis_and_keeps_the_others(xp, rng):
    x = rng.normal(size=(4, 3, 5))
    keep = rng.random(size=x.shape) < 0.7
    for axis in (0, -2):
        got = as_numpy(compiled(xp, ess_fraction, "axis")(carry(xp, x), mask=xp.asarray(keep), axis=axis))
        last = ess_fraction(np.moveaxis(x, axis, -1), mask=np.moveaxis(keep, axis, -1))
        np.testing.assert_allclose(got, last, rtol=algebra(4.0))
    empty = as_numpy(compiled(xp, ess_fraction, "axis")(carry(xp, np.zeros((4, 0, 5))), axis=1))
    assert empty.shape == (4, 5)
    assert np.isnan(empty).all()


def test_the_gaussian_law_is_exp_of_minus_the_variance():
    """By Gauss-Hermite quadrature, whose nodes are draws with weights: no sampling error at all."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(60)
    for sigma in (0.1, 0.5, math.sqrt(math.log(2)), 1.2):
        log_w = sigma * nodes - sigma**2 / 2
        n = 1e6  # a node of probability p stands for n p draws
        first, second = (np.log(n * np.sum(weight * np.exp(k * log_w)) / weight.sum()) for k in (1, 2))
        state = EssState(n=np.asarray(n), log_sum_w=first, log_sum_w2=second, log_max_w=log_w.max())
        assert ess_from_state(state) == pytest.approx(math.exp(-(sigma**2)), rel=library())


def test_ess_of_gaussian_draws_is_half_where_the_variance_is_ln_2(rng):
    """Bias +5/n, relative error sqrt(Var(2w - w^2/2)/n): see theory, the ESS law."""
    n, sets, s2 = 4096, 400, math.log(2)
    shares = ess_fraction(rng.normal(scale=math.sqrt(s2), size=(sets, n)))
    stderr = shares.std(ddof=1) / math.sqrt(sets)
    print(f"ESS {shares.mean():.5f} +- {stderr:.5f}")
    assert 5 / n < 0.05 * 0.5  # the correction is small, so its own error is negligible
    assert shares.mean() == pytest.approx(0.5 + 5 / n, abs=MONTE_CARLO_Z * stderr)


def test_heavier_tails_of_equal_variance_lower_the_ess(rng):
    """Laplace(b): (1 - 4b^2)/(1 - b^2)^2, for b small enough that E w^4 exists."""
    b, n, sets = 0.2, 4096, 200
    shares = ess_fraction(rng.laplace(scale=b, size=(sets, n)))
    law = (1 - 4 * b**2) / (1 - b**2) ** 2
    stderr = shares.std(ddof=1) / math.sqrt(sets)
    print(f"ESS {shares.mean():.5f} +- {stderr:.5f}, law {law:.5f}, Gaussian {math.exp(-2 * b**2):.5f}")
    assert shares.mean() == pytest.approx(law, abs=MONTE_CARLO_Z * stderr + 1 / n)
    assert law + MONTE_CARLO_Z * stderr + 1 / n < math.exp(-2 * b**2)


def test_independent_tokens_multiply_their_ess():
    """A response of T independent tokens has ESS^T: the product level falls earlier. All 27 responses."""
    values = np.array([-0.3, 0.1, 0.4])
    responses = np.stack(np.meshgrid(values, values, values), axis=-1).reshape(27, 3)
    assert ess_fraction(responses.reshape(-1)) == pytest.approx(ess_by_definition(values), rel=algebra(4.0))
    assert response_ess(responses) == pytest.approx(ess_by_definition(values) ** 3, rel=algebra(4.0))
    mean = responses.mean(-1)
    assert response_ess(responses, geometric=True) == pytest.approx(ess_by_definition(mean), rel=algebra(4.0))


@pytest.mark.parametrize("n", [70_000, 300_000])
def test_half_precision_counts_a_large_batch(n):
    """Counts beyond 2048 do not fit float16: n and the sums must not be kept in the type of the ratios."""
    log_w = np.resize(np.array([0.0, 0.5, -0.5, 1.0]), n)
    exact = ess_fraction(log_w)
    half = ess_fraction(log_w.astype(np.float16))
    assert half == pytest.approx(exact, rel=library(np.float32))


def test_integer_ratios_are_read_as_logs():
    assert ess_fraction(np.array([0, 1])) == pytest.approx(
        ess_fraction(np.array([0.0, 1.0])), rel=library(np.float32)
    )
