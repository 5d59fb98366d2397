"""The tail index against arviz-stats, and its defined cases."""

import numpy as np
import pytest
from arviz_stats.base.array import array_stats

from theory.tail import k_hat, k_hat_of_tail, tail_draws


@pytest.mark.parametrize("n", [30, 225, 226, 1000, 8192])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_tail_index_equals_that_of_arviz_on_the_same_tail(n, spread):
    log_w = spread * np.random.default_rng(n).normal(size=n)
    expected = array_stats._ps_tail(log_w.copy(), n, tail_draws(n), tail="right", log_weights=True)[1]
    # the same quadrature in float64, in another order
    assert k_hat(log_w) == pytest.approx(expected, rel=0, abs=1e-11)


def test_tail_index_does_not_depend_on_the_scale_of_the_ratio():
    log_w = np.random.default_rng(0).normal(size=500)
    # rounding of log_w + 300 is 300 eps, far below the quadrature's own digits
    assert k_hat(log_w + 300) == pytest.approx(k_hat(log_w), abs=1e-9)


def test_tail_index_recovers_the_shape_of_a_pareto_law():
    shape, n = 0.5, 200_000
    w = np.random.default_rng(1).pareto(1 / shape, size=n)
    # asymptotic error of the fit: (1 + k)/sqrt(m), m = 1342 draws in the tail
    assert abs(k_hat(np.log(w)) - shape) < 4 * (1 + shape) / np.sqrt(tail_draws(n))


@pytest.mark.parametrize(
    "log_w",
    [
        np.zeros(20),
        np.zeros(1000),
        np.full(1000, -np.inf),
        np.r_[np.zeros(999), np.inf],
        np.full(400, np.nan),
    ],
    ids=["too few", "equal", "all zero", "infinite", "unknown"],
)
def test_tail_index_is_nan_where_no_tail_can_be_fitted(log_w):
    assert np.isnan(k_hat(log_w))


def test_leading_axes_are_separate_samples():
    log_w = np.random.default_rng(2).normal(size=(3, 400))
    np.testing.assert_array_equal(k_hat(log_w), [k_hat(row) for row in log_w])


def test_tail_selected_elsewhere_gives_the_same_index():
    log_w = np.sort(np.random.default_rng(3).normal(size=400))
    m = tail_draws(400)
    assert k_hat_of_tail(log_w[-m:], log_w[-m - 1]) == k_hat(log_w)
