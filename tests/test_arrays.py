"""The array door: sums of exponentials and tails in logs, the same on every library."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from libraries import as_numpy, carry, compiled
from strategies import floats, masks
from tolerances import algebra

from theory.arrays import (
    Array,
    largest_entries,
    largest_last,
    log_expm1_neg,
    log_remainder,
    log_softmax,
    logsumexp,
    masked,
    namespace,
    reduces_on_host,
)

DTYPES = (np.float64, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@given(x=st.one_of(floats((3, 5), 30.0), floats((3, 5), 1e4)), axis=st.sampled_from((0, -1)))
def test_logsumexp_is_scipys(xp, dtype, x, axis):
    expected: Any = scipy.special.logsumexp(x, axis=axis)
    got = compiled(xp, logsumexp, "axis", "keepdims")(carry(xp, x, dtype), axis=axis)
    np.testing.assert_allclose(as_numpy(got), expected, rtol=0, atol=algebra(1.0, x, dtype=dtype))
    kept = compiled(xp, logsumexp, "axis", "keepdims")(carry(xp, x, dtype), axis=axis, keepdims=True)
    np.testing.assert_array_equal(as_numpy(kept), np.expand_dims(as_numpy(got), axis))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([-math.inf, -math.inf], -math.inf),
        ([-math.inf, 2.0], 2.0),
        ([math.inf, 2.0], math.inf),
        ([math.inf, -math.inf], math.inf),
        ([math.nan, 2.0], math.nan),
        ([2.0, math.nan], math.nan),
        ([math.nan, math.inf], math.nan),
        ([math.nan, -math.inf], math.nan),
    ],
)
def test_logsumexp_of_infinities_and_nan(xp, x, expected):
    assert float(compiled(xp, logsumexp)(carry(xp, np.array(x)))) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("dtype", DTYPES)
@given(z=floats((3, 5), 30.0))
def test_log_softmax_is_scipys_and_sums_to_one(xp, dtype, z):
    got = as_numpy(compiled(xp, log_softmax)(carry(xp, z, dtype)))
    off = algebra(1.0, 2 * np.abs(z), dtype=dtype)
    np.testing.assert_allclose(got, scipy.special.log_softmax(z, axis=-1), rtol=0, atol=off)
    np.testing.assert_allclose(np.exp(got.astype(np.float64)).sum(-1), 1, rtol=off)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_log_of_a_tail_keeps_its_digits(xp, dtype):
    """At 50 digits, mpmath loses none of log(1 - e^-t)."""
    t = np.array([1e-30, 1e-12, 1e-6, 1e-3, 0.5, math.log(2), 0.8, 3.0, 20.0, 80.0]).astype(dtype)
    with mpmath.workdps(50):
        expected = [float(mpmath.log(1 - mpmath.exp(-mpmath.mpf(float(x))))) for x in t]
    got = as_numpy(compiled(xp, log_expm1_neg)(carry(xp, -t, dtype)))
    np.testing.assert_allclose(got, expected, rtol=algebra(1.0, dtype=dtype), atol=0)


def test_the_log_of_a_tail_at_its_ends(xp):
    np.testing.assert_array_equal(
        as_numpy(log_expm1_neg(carry(xp, np.array([0.0, -math.inf, math.nan])))), [-math.inf, 0, math.nan]
    )


@given(x=floats((3, 5), 30.0), mask=masks((3, 5)))
def test_masking_replaces_whatever_is_there(xp, x, mask):
    spoiled = carry(xp, np.where(mask, x, math.nan))
    np.testing.assert_array_equal(as_numpy(masked(spoiled, xp.asarray(mask), 7.0)), np.where(mask, x, 7.0))
    assert masked(spoiled, None, 7.0) is spoiled


def test_the_namespace_of_arrays_ignores_missing_ones(xp):
    x = carry(xp, np.ones(2))
    assert namespace(None, x, None) is namespace(x)


def test_the_remainder_of_listed_mass_is_what_is_missing_and_never_below_rounding(xp):
    kept = np.array([[0.5, 0.25], [0.5, 0.5], [0.5, 0.5 + 1e-13]])
    left = as_numpy(log_remainder(carry(xp, np.log(kept), np.float64)))
    np.testing.assert_allclose(left[0], math.log(0.25), rtol=0, atol=algebra(4.0))
    # two such remainders are divided by each other: zero would make that infinite and the gradient NaN
    floor = math.log(8 * np.finfo(np.float64).eps)
    np.testing.assert_allclose(left[1:], floor, rtol=0, atol=algebra(floor))


@pytest.mark.parametrize("how_many", [1, 3, 6])
def test_the_largest_entries_are_the_end_of_a_sort_and_nan_is_the_largest(xp, how_many):
    x = np.array([[0.5, -2.0, math.inf, 3.0, 3.0, -math.inf], [1.0, math.nan, 4.0, 2.0, math.nan, 0.0]])
    got = as_numpy(largest_entries(carry(xp, x), how_many))
    np.testing.assert_array_equal(got, np.sort(x, axis=-1)[:, 6 - how_many :])


@pytest.mark.parametrize("how_many", [1, 3, 6])
def test_the_largest_entries_come_last_in_order_and_the_rest_is_kept(xp, how_many):
    x = np.array([[0.5, -2.0, math.inf, 3.0, 3.0, -math.inf], [1.0, math.nan, 4.0, 2.0, math.nan, 0.0]])
    before = carry(xp, x)
    got = as_numpy(largest_last(before, how_many))
    np.testing.assert_array_equal(np.sort(got, axis=-1), np.sort(x, axis=-1))
    np.testing.assert_array_equal(got[:, 6 - how_many :], np.sort(x, axis=-1)[:, 6 - how_many :])
    np.testing.assert_array_equal(as_numpy(before), x)


def test_torch_selects_the_largest_entries_without_sorting_the_rest():
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        largest_entries(torch.arange(64.0), 3)
    called = {event.name for event in profile.events() or ()}
    assert "aten::topk" in called
    assert not any("sort" in name for name in called)


SEEN: list[Any] = []


@reduces_on_host
def weighed(x: Array, *, mask: Array | None = None) -> Array:
    SEEN.append(x)
    return namespace(x).sum(masked(x * x, mask, 0.0))


def test_a_reduction_of_tensors_works_on_numpys_view_and_gives_a_tensor_again():
    torch = pytest.importorskip("torch")
    got = weighed(torch.tensor([1.0, 2.0, 3.0]), mask=torch.tensor([True, True, False]))
    assert isinstance(SEEN.pop(), np.ndarray)
    assert torch.equal(got, torch.tensor(5.0))


def test_a_reduction_leaves_a_tensor_whose_gradient_is_wanted_on_its_graph():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    weighed(x).backward()
    assert SEEN.pop() is x
    assert torch.equal(x.grad, torch.tensor([2.0, 4.0, 6.0]))


def test_a_reduction_leaves_a_tensor_of_a_type_numpy_lacks_to_torch():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    assert torch.equal(weighed(x), torch.tensor(14.0, dtype=torch.bfloat16))
    assert SEEN.pop() is x
