"""The resync rule: below the threshold, on schedule, and what happens at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from libraries import as_numpy, carry

from theory.ess import ess_fraction
from theory.resync import FAILURE_THRESHOLD, should_resync

CASES = [
    # ess, below, steps_since, sync_every, expected
    (0.49, 0.5, 1, 0, True),
    (0.5, 0.5, 1, 0, False),  # strictly below
    (0.51, 0.5, 1, 0, False),
    (0.49, 0.0, 1, 0, False),  # rule off
    (0.0, 0.0, 1, 0, False),
    (math.nan, 0.5, 1, 0, True),  # no evidence that the batch is usable
    (math.nan, 0.0, 1, 0, False),
    (0.9, 0.5, 3, 4, False),
    (0.9, 0.5, 4, 4, True),  # due
    (0.9, 0.0, 5, 4, True),  # overdue
    (0.9, 0.0, 100, 0, False),  # no schedule
    (0.1, 0.5, 1, 4, True),
]


@pytest.mark.parametrize(("ess", "below", "since", "every", "expected"), CASES)
def test_the_rule_on_plain_numbers(ess, below, since, every, expected):
    assert should_resync(ess, below, steps_since=since, sync_every=every) is expected


def test_the_rule_on_arrays_of_every_library(xp):
    ess, below, since, every, expected = (np.array(column) for column in zip(*CASES, strict=True))
    arrays = [xp.asarray(x) for x in (since, every)]
    got = should_resync(carry(xp, ess), carry(xp, below), steps_since=arrays[0], sync_every=arrays[1])
    np.testing.assert_array_equal(as_numpy(got), expected)


def test_arrays_and_numbers_mix(xp):
    ess = carry(xp, np.array([0.2, 0.7]))
    np.testing.assert_array_equal(as_numpy(should_resync(ess, 0.5)), [True, False])
    np.testing.assert_array_equal(as_numpy(should_resync(0.3, ess)), [False, True])
    np.testing.assert_array_equal(
        as_numpy(should_resync(ess, 0.5, steps_since=4, sync_every=4)), [True, True]
    )


def test_the_threshold_is_where_the_deviation_of_the_ratio_equals_its_mean():
    w = np.array([0.5, 0.5]) + np.array([0.5, -0.5])  # 1 and 0: mean 1/2, deviation 1/2
    with np.errstate(divide="ignore"):
        assert ess_fraction(np.log(w)) == FAILURE_THRESHOLD == 0.5
