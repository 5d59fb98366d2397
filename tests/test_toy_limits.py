"""Limits of the toy's environments: what passes at the edge, and what is refused in one line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from theory.limits import LARGEST_COUNT, LARGEST_REAL
from toy.environment import Environment, build
from toy.limits import check_quantile, check_reals, check_sizes, check_table
from toy.settings import Bandit, Exit, Sequence, setting_s
from toy.simulate import refuse_unrunnable


def test_seeds_have_no_upper_end_and_sizes_do() -> None:
    check_sizes(0, prompts=(1, 1), arms=(2, 2))
    check_sizes(2**70, prompts=(LARGEST_COUNT, 1))
    check_sizes(np.int64(3), prompts=(np.int32(4), 4))
    with pytest.raises(ValueError, match=rf"prompts must be at most {LARGEST_COUNT}, got {2**31}; lower it"):
        check_sizes(0, prompts=(2**31, 1))


@pytest.mark.parametrize(
    ("seed", "size", "words"),
    [
        (-1, 2, r"seed must be >= 0, got -1"),
        (0.0, 2, r"seed must be a whole number, got 0\.0"),
        (True, 2, r"seed must be a whole number, got True"),
        (0, 1, r"arms must be >= 2, got 1"),
        (0, 2.0, r"arms must be a whole number, got 2\.0"),
        (0, "3", r"arms must be a whole number, got '3'"),
    ],
)
def test_what_is_no_count_is_refused_by_name(seed: object, size: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_sizes(seed, arms=(size, 2))


def test_a_table_may_have_as_many_entries_as_an_index_counts() -> None:
    check_table(LARGEST_COUNT)
    check_table(2**15, 2**16 - 1)
    with pytest.raises(ValueError, match=r"entries, got 32768 x 65536; lower a size"):
        check_table(2**15, 2**16)


def test_reals_are_finite_and_fit_float32() -> None:
    check_reals(beta=-LARGEST_REAL, het=LARGEST_REAL)
    check_reals(0, het=0)
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="beta must be finite, got"):
            check_reals(beta=wrong)
    with pytest.raises(ValueError, match=r"het must be finite and >= 0, got -0\.5"):
        check_reals(0, beta=1, het=-0.5)
    with pytest.raises(ValueError, match=r"beta must be a number float32 holds.*got 1e\+39"):
        check_reals(beta=1e39)
    with pytest.raises(ValueError, match="beta must be a number, got None"):
        check_reals(beta=None)


def test_a_quantile_leaves_failures_and_successes() -> None:
    check_quantile(math.nextafter(0, 1))
    check_quantile(math.nextafter(1, 0))
    for wrong in (0, 1, -0.1, 1.5):
        with pytest.raises(ValueError, match="quantile is a share strictly between 0 and 1, got"):
            check_quantile(wrong)
    with pytest.raises(ValueError, match="quantile must be finite, got nan"):
        check_quantile(math.nan)


@pytest.mark.parametrize("environment", [Sequence(length=3), Exit(length=5), Bandit(prompts=3)])
def test_an_environment_knows_its_size_before_it_is_built(environment: Environment) -> None:
    task = build(environment)
    assert environment.length == task.features_CTUD.shape[1]
    assert environment.weights == math.prod(task.weights_shape)


def test_what_memory_cannot_hold_is_refused_before_it_is_computed() -> None:
    for large in (setting_s(samples=10**8), setting_s(steps=10**9)):
        with pytest.raises(ValueError, match="GiB of memory; lower steps or samples"):
            refuse_unrunnable(large)
