"""Infrastructure mismatch: exact vectors against enumeration over samples, and the numbers of theory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tolerances import MONTE_CARLO_Z, algebra

from theory.corrections import CORRECTIONS, Logps
from theory.fisher import gradient
from theory.gradient import expected_gradient
from theory.infrastructure import (
    deferred_bias,
    first_batch_bias,
    group_kept,
    nucleus,
    retokenised,
    reward_filter,
    top_p_bias,
)

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
A = np.array([-0.2, 0.1, -0.5, 0.3, 1.0])
SUCCESS = np.array([0.2, 0.5, 0.1, 0.7, 0.9])
LONG = np.array([False, False, False, True, True])

DIGITS = {"rtol": 0, "atol": 5.1e-5}
"""theory prints four decimals"""


def scores(p: np.ndarray) -> np.ndarray:
    return np.eye(len(p)) - p


def test_the_exact_gradient_is_the_one_printed():
    np.testing.assert_allclose(gradient(P, A), [-0.0620, 0.0435, -0.0683, 0.0345, 0.0522], **DIGITS)


def test_the_nucleus_is_the_smallest_set_that_reaches_its_mass():
    np.testing.assert_array_equal(nucleus(P, 0.85), [True, True, True, False, False])
    np.testing.assert_array_equal(nucleus(P, 0.7), [True, True, False, False, False])
    np.testing.assert_array_equal(nucleus(P, 0.71), [True, True, True, False, False])
    np.testing.assert_array_equal(nucleus(P[::-1], 0.1), [False, False, False, False, True])
    assert nucleus(P, 1.0).all()
    with pytest.raises(ValueError, match="top_p"):
        nucleus(P, 0.0)


def test_top_p_vectors_are_those_printed():
    bias = top_p_bias(P, A, nucleus(P, 0.85))
    np.testing.assert_allclose(bias.uncorrected, [0.0267, 0.0359, 0.0021, -0.0198, -0.0449], **DIGITS)
    np.testing.assert_allclose(bias.corrected, [0.0320, 0.0240, 0.0120, -0.0220, -0.0460], **DIGITS)
    np.testing.assert_allclose(bias.restricted, [-0.0249, 0.0872, -0.0623, 0, 0], **DIGITS)


def test_top_p_biases_are_those_of_the_correction_core_fed_with_a_truncating_sampler():
    keep = nucleus(P, 0.85)
    bias = top_p_bias(P, A, keep)
    with np.errstate(divide="ignore"):
        logmu = np.log(np.where(keep, P / P[keep].sum(), 0.0))
    row = Logps(logmu, np.log(P), np.log(P))
    plain, weighted = (expected_gradient(CORRECTIONS[n], row, A) for n in ("pg", "is"))
    np.testing.assert_allclose(plain - gradient(P, A), bias.uncorrected, atol=algebra(1.0))
    np.testing.assert_allclose(weighted - gradient(P, A), bias.corrected, atol=algebra(1.0))
    masked = Logps(logmu, logmu, logmu)
    np.testing.assert_allclose(
        expected_gradient(CORRECTIONS["pg"], masked, A), bias.restricted, atol=algebra(1.0)
    )


def test_top_p_bias_is_what_draws_show(rng):
    keep = nucleus(P, 0.85)
    n = 400_000
    drawn = rng.choice(5, size=n, p=np.where(keep, P, 0) / P[keep].sum())
    each = A[drawn][:, None] * scores(P)[drawn]
    stderr = each.std(axis=0) / math.sqrt(n)
    got = each.mean(axis=0) - gradient(P, A)
    assert (abs(got - top_p_bias(P, A, keep).uncorrected) < MONTE_CARLO_Z * stderr).all()


@pytest.mark.parametrize("keep_wrong", [0.0, 0.5, 1.0])
def test_the_reward_filter_is_the_enumeration_of_what_it_keeps(keep_wrong):
    mu = P * np.exp([0.3, -0.2, 0.1, -0.4, 0.5])
    mu = mu / mu.sum()
    kept = total = np.zeros(5)
    reward = 0.0
    weight = 0.0
    for a, right in itertools.product(range(5), (True, False)):
        share = mu[a] * (SUCCESS[a] if right else (1 - SUCCESS[a]) * keep_wrong)
        r = 1 if right else -1
        total = total + share * r * scores(P)[a]
        kept = kept + share * scores(P)[a]
        reward += share * r
        weight += share
    got = reward_filter(mu, P, SUCCESS, keep_wrong=keep_wrong)
    np.testing.assert_allclose(got.gradient, total / weight, atol=algebra(1.0))
    assert got.mean_advantage == pytest.approx(reward / weight, abs=algebra(1.0))
    # what centring the kept rewards' score at mu would remove
    np.testing.assert_allclose(got.drift, got.mean_advantage * (mu - P), atol=algebra(1.0))
    exact_at_mu = got.scale * gradient(mu, 2 * SUCCESS - 1)
    np.testing.assert_allclose(got.gradient - got.drift, exact_at_mu, atol=algebra(1.0))


def test_the_reward_filter_only_rescales_an_on_policy_gradient():
    g = gradient(P, 2 * SUCCESS - 1)
    for keep_wrong in (0.0, 0.5, 1.0):
        got = reward_filter(P, P, SUCCESS, keep_wrong=keep_wrong)
        np.testing.assert_allclose(got.gradient, got.scale * g, atol=algebra(1.0))
    success = P @ SUCCESS
    assert reward_filter(P, P, SUCCESS, keep_wrong=0.0).scale == pytest.approx(1 / (2 * success))


def test_the_filters_drift_norms_are_those_printed():
    mu = P * np.exp([0.3, -0.2, 0.1, -0.4, 0.5])
    for keep_wrong, printed in ((1.0, 0.0421), (0.5, 0.0004), (0.0, 0.1275)):
        drift = reward_filter(mu / mu.sum(), P, SUCCESS, keep_wrong=keep_wrong).drift
        assert np.linalg.norm(drift) == pytest.approx(printed, abs=5.1e-5)


def test_groups_of_equal_rewards_are_dropped_as_binomials_say():
    for rho, printed in ((0.1, 0.5695), (0.3, 0.9423), (0.5, 0.9922)):
        kept = sum(math.comb(8, k) * rho**k * (1 - rho) ** (8 - k) for k in range(1, 8))
        assert group_kept(rho, 8) == pytest.approx(kept, abs=algebra(1.0))
        assert group_kept(rho, 8) == pytest.approx(printed, abs=5.1e-5)
    assert group_kept(0.3, 1) == pytest.approx(0, abs=algebra(1.0))


def test_the_first_batch_without_long_responses_is_conditioned_on_short_ones():
    short = P * ~LONG / P[~LONG].sum()
    want = sum(short[a] * A[a] * scores(P)[a] for a in range(5)) - gradient(P, A)
    np.testing.assert_allclose(first_batch_bias(P, A, LONG), want, atol=algebra(1.0))
    np.testing.assert_allclose(
        first_batch_bias(P, A, LONG), [0.0267, 0.0359, 0.0021, -0.0198, -0.0449], **DIGITS
    )


def test_deferred_long_responses_come_from_the_policy_before():
    now = P * np.exp([0.2, 0, -0.1, 0.1, -0.2])
    now = now / now.sum()
    batch = np.where(LONG, P, now)  # short ones from now, long ones from one update ago
    want = sum(batch[a] * A[a] * scores(now)[a] for a in range(5)) - gradient(now, A)
    got = deferred_bias(P, now, A, LONG)
    np.testing.assert_allclose(got, want, atol=algebra(1.0))
    np.testing.assert_allclose(got, [-0.0051, -0.0031, -0.0014, -0.0020, 0.0115], **DIGITS)


def test_retokenisation_moves_the_gradient_of_two_tokens_to_a_third():
    first, second = np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.8, 0.1])
    both, one = first[0] * second[1], first[2]
    true_first = both * scores(first)[0] + one * scores(first)[2]
    trained_first = (both + one) * scores(first)[2]
    got = retokenised(first, second, a=0, b=1, ab=2, advantage=1.0)
    np.testing.assert_allclose(true_first, [0.05, -0.14, 0.09], **DIGITS)
    np.testing.assert_allclose(trained_first, [-0.35, -0.14, 0.49], **DIGITS)
    np.testing.assert_allclose(got.first, trained_first - true_first, atol=algebra(1.0))
    true_second = both * scores(second)[1]
    np.testing.assert_allclose(true_second, [-0.04, 0.08, -0.04], **DIGITS)
    np.testing.assert_allclose(got.second, -true_second, atol=algebra(1.0))
    assert got.log_ratio == pytest.approx(-0.2877, abs=5.1e-5)


@pytest.mark.parametrize(
    "call", [lambda: reward_filter(P, P, SUCCESS, keep_wrong=1.5), lambda: group_kept(1.2, 8)]
)
def test_probabilities_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="probability"):
        call()
