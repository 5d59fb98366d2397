"""Advantages: what each baseline subtracts, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from libraries import as_numpy, carry, compiled
from strategies import floats
from tolerances import algebra, library

from theory.advantage import STD_FLOOR, advantages, off_policy_optimal


def test_baselines_by_hand(xp):
    reward = carry(xp, np.array([[1.0, -1.0, -1.0, 1.0], [1.0, 1.0, 1.0, -1.0]]))
    by_hand: dict[Any, Any] = {
        "none": [[1, -1, -1, 1], [1, 1, 1, -1]],
        "global": [[0.75, -1.25, -1.25, 0.75], [0.75, 0.75, 0.75, -1.25]],
        "group": [[1, -1, -1, 1], [0.5, 0.5, 0.5, -1.5]],
    }
    for baseline, expected in by_hand.items():
        np.testing.assert_array_equal(as_numpy(advantages(reward, baseline=baseline)), expected)
    scaled = as_numpy(advantages(reward, baseline="group-std"))
    np.testing.assert_allclose(scaled[0], np.array([1, -1, -1, 1]) / (1 + STD_FLOOR), rtol=algebra(1.0))
    spread = np.sqrt(0.75)  # population deviation of (1, 1, 1, -1)
    np.testing.assert_allclose(
        scaled[1], np.array([0.5, 0.5, 0.5, -1.5]) / (spread + STD_FLOOR), rtol=algebra(1.0)
    )


@given(reward=floats((2, 3, 4), 10.0))
def test_what_is_left_on_a_shared_prefix_is_zero_for_group_baselines_only(xp, reward):
    """The mean advantage of a prompt's samples: what centring the score can act on."""
    x = carry(xp, reward)
    for baseline in ("group", "group-std"):
        scale = 1 if baseline == "group" else STD_FLOOR
        left = as_numpy(advantages(x, baseline=baseline)).mean(-1)
        np.testing.assert_allclose(left, 0, atol=algebra(reward) / scale)
    left = as_numpy(advantages(x, baseline="global")).mean((-2, -1))
    np.testing.assert_allclose(left, 0, atol=algebra(reward))
    np.testing.assert_array_equal(as_numpy(advantages(x, baseline="none")), reward)


def test_a_group_of_equal_rewards_teaches_nothing(xp):
    """Rounding of its mean aside, which the floor keeps from being blown up to order 1."""
    reward = carry(xp, np.full((1, 7), 0.1))
    for baseline in ("group", "group-std"):
        assert np.abs(as_numpy(advantages(reward, baseline=baseline))).max() < library()


def test_one_sample_a_prompt_has_no_group_to_compare_with(xp):
    reward = carry(xp, np.array([[3.0], [5.0]]))
    for baseline in ("group", "group-std"):
        np.testing.assert_array_equal(as_numpy(advantages(reward, baseline=baseline)), [[0], [0]])


def test_an_unknown_baseline_is_named_with_the_known_ones():
    known = "none, global, group, group-std, off-policy-optimal"
    with pytest.raises(ValueError, match=f"unknown baseline 'rloo'; known: {known}"):
        advantages(np.ones((1, 2)), baseline="rloo")  # pyright: ignore[reportArgumentType]


def test_the_off_policy_optimal_baseline_is_the_weighted_mean_by_hand(xp):
    reward = np.array([[1.0, -1.0, 1.0], [2.0, 0.0, 0.0]])
    log_ratio = np.log([[1.0, 2.0, 0.5], [1.0, 1.0, 1.0]])
    norm = np.array([[1.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    got = as_numpy(off_policy_optimal(*(carry(xp, x) for x in (reward, log_ratio, norm))))
    # first group: squared weights 1, 4, 1; second: nothing moves, nothing to weigh
    np.testing.assert_allclose(got, [reward[0] + 1 / 3, reward[1]], rtol=0, atol=algebra(2.0))
    far = as_numpy(off_policy_optimal(*(carry(xp, x) for x in (reward, log_ratio + 2_000, norm))))
    np.testing.assert_allclose(far, got, rtol=0, atol=algebra(2_000.0))


def test_the_off_policy_optimal_baseline_has_the_least_variance_over_all_actions():
    """Enumerated: no other constant makes the ratio-weighted gradient of one prefix vary less."""
    rng = np.random.default_rng(0)
    mu, pi = (np.exp(z) / np.exp(z).sum() for z in rng.normal(size=(2, 6)))
    reward, score = rng.normal(size=6), np.eye(6) - pi
    # a sample in which each action stands as often as the sampler draws it
    times = np.repeat(np.arange(6), np.round(4_000 * mu).astype(int))
    share = np.bincount(times, minlength=6) / len(times)
    w, norm = pi / share, np.linalg.norm(score, axis=-1)
    advantage = off_policy_optimal(reward[times], np.log(w)[times], norm[times])
    best = float((reward[times] - advantage)[0])

    def moments(b: float) -> tuple[np.ndarray, float]:
        drawn = w[:, None] * (reward - b)[:, None] * score
        mean = share @ drawn
        return mean, float(share @ (drawn**2).sum(-1) - mean @ mean)

    mean, least = moments(best)
    np.testing.assert_allclose(mean, moments(0.0)[0], rtol=0, atol=algebra(10.0))
    assert all(least < moments(best + d)[1] for d in (-0.1, -1e-3, 1e-3, 0.1))
    assert least < moments(float(share @ reward))[1]


def test_the_off_policy_optimal_baseline_is_refused_where_there_are_rewards_alone():
    with pytest.raises(ValueError, match="ratio and score norm"):
        advantages(np.ones((1, 2)), baseline="off-policy-optimal")


def optimal(xp: Any, *rows: Any) -> np.ndarray:
    """`off_policy_optimal` as each library would run it, compiled by JAX."""
    return as_numpy(compiled(xp, off_policy_optimal)(*(carry(xp, np.array(x)) for x in rows)))


@pytest.mark.parametrize(
    ("log_ratio", "norm"),
    [
        ([math.nan, 0.0], [1.0, 1.0]),
        ([math.inf, 0.0], [1.0, 1.0]),
        ([0.0, 0.0], [1.0, math.nan]),
        ([0.0, 0.0], [math.inf, 1.0]),
        ([math.inf, 0.0], [0.0, 1.0]),
        ([-math.inf, 0.0], [math.inf, 1.0]),
    ],
)
def test_the_optimal_baseline_of_an_unknown_weight_is_unknown_in_its_group_alone(xp, log_ratio, norm):
    got = optimal(xp, [[1.0, -1.0], [1.0, -1.0]], [log_ratio, [0.0, 0.0]], [norm, [1.0, 1.0]])
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], [1.0, -1.0])


def test_the_optimal_baseline_does_not_care_about_the_scale_of_norms_or_ratios(xp):
    reward, norm = [1.0, -1.0, 3.0], np.array([1.0, 2.0, 0.5])
    log_ratio = np.array([0.1, -0.3, 1.2])
    want = optimal(xp, reward, log_ratio, norm)
    assert np.abs(want - reward).max() > 0.1
    for scale in (1e-200, 1e200):
        off = algebra(3.0 * np.log(scale))
        np.testing.assert_allclose(optimal(xp, reward, log_ratio, norm * scale), want, rtol=0, atol=off)
        # a norm too small to be squared may stand beside a ratio that makes up for it
        moved = optimal(xp, reward, log_ratio - [0, math.log(scale), 0], norm * [1, scale, 1])
        np.testing.assert_allclose(moved, want, rtol=0, atol=off)


def test_a_response_the_trainer_has_given_up_weighs_nothing(xp):
    lost = -math.inf
    got = optimal(xp, [1.0, -1.0, 5.0], [0.0, 0.0, lost], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(got, [1.0, -1.0, 5.0])
    np.testing.assert_array_equal(optimal(xp, [1.0, 2.0], [lost, lost], [1.0, 1.0]), [1.0, 2.0])
    # the largest ratio belongs to a response that does not move: the other one decides
    np.testing.assert_array_equal(optimal(xp, [1.0, 2.0], [0.0, -2_000.0], [0.0, 1.0]), [-1.0, 0.0])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((2, 3), (2, 3), (2, 1)),
            r"one shape, got reward \(2, 3\), log_ratio \(2, 3\), score_norm \(2, 1\)",
        ),
        (((2, 0),) * 3, r"a group of one response or more, got shape \(2, 0\)"),
        (((),) * 3, r"a group of one response or more, got shape \(\)"),
    ],
)
def test_groups_that_do_not_fit_or_are_empty_are_refused(xp, shapes, message):
    with pytest.raises(ValueError, match=message):
        compiled(xp, off_policy_optimal)(*(carry(xp, np.ones(shape)) for shape in shapes))
