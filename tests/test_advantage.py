"""Advantages: what each baseline subtracts, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from libraries import as_numpy, carry
from strategies import floats
from tolerances import algebra, library

from theory.advantage import STD_FLOOR, advantages


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
    with pytest.raises(ValueError, match="unknown baseline 'rloo'; known: none, global, group, group-std"):
        advantages(np.ones((1, 2)), baseline="rloo")  # pyright: ignore[reportArgumentType]
