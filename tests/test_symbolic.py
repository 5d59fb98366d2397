"""Every coefficient of the laws equals its derivation by sympy, evaluated at the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tolerances import algebra

pytest.importorskip("sympy")

from theory import cumulants, excess, families, finite_sample, fisher, gradient
from theory.corrections import correction
from theory.feedback import loop_matrix
from theory.symbolic import bias, ess, softmax, split
from theory.symbolic import excess as symbolic_excess

K = 3

FACTOR = 400
"""Roundings allowed: an unsimplified derivative of a softmax is a sum of some hundred terms of order 1"""


def draws(rng: np.random.Generator, n: int = 5) -> np.ndarray:
    return rng.normal(size=(n, K))


def softmax_of(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum()


def close(got, want, *magnitudes) -> None:
    tolerance = FACTOR / 8 * algebra(1.0, got, want, *magnitudes)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def test_the_three_point_identity_and_the_variance_split_vanish_symbolically():
    assert split.three_point_residual() == 0
    assert split.variance_residual() == 0


def test_what_centring_removes_is_derived_to_be_the_baseline_drift():
    assert all(x == 0 for x in bias.drift_residual())


def test_the_cross_term_is_minus_delta_fisher_lag(rng):
    z, delta, lag = draws(rng, 3)
    predicted = -delta @ fisher.fisher(softmax_of(z)) @ lag
    close(split.cross_term()(z, delta, lag), predicted)


def test_kl_from_cumulants_has_the_derived_coefficients():
    from theory.decomposition import kl_from_cumulants

    numeric = [kl_from_cumulants(*np.eye(3)[i]) for i in range(3)]
    np.testing.assert_allclose(numeric, [float(c) for c in split.kl_coefficients()[1:]], rtol=algebra(1.0))


def test_gradient_fisher_and_hessian_are_the_derivatives_of_the_objective(rng):
    z, a = draws(rng, 2)
    p = softmax_of(z)
    close(fisher.gradient(p, a), softmax.gradient()(z, a))
    close(fisher.fisher(p), softmax.fisher()(z))
    close(fisher.hessian(p, a), softmax.hessian()(z, a))
    x = draws(rng, 1)[0]
    close(fisher.hessian_product(p, a, x), softmax.hessian()(z, a) @ x)
    close(fisher.fisher_product(p, x), softmax.fisher()(z) @ x)


def test_the_third_derivative_is_derived_and_symmetric(rng):
    z, a, x, y = draws(rng, 4)
    p = softmax_of(z)
    close(fisher.third_product(p, a, x, y), softmax.third_product()(z, a, x, y))
    close(fisher.third_product(p, a, x, y), fisher.third_product(p, a, y, x))


@pytest.mark.parametrize("centered", [False, True])
def test_first_order_bias_is_derived(rng, centered):
    z, a, delta = draws(rng, 3)
    got = gradient.discrepancy_bias(softmax_of(z), a, delta, centered=centered)
    close(got, bias.first_order_bias(centered=centered)(z, a, delta))


@pytest.mark.parametrize("form", ["matched", "form-i"])
def test_first_order_bias_of_the_weighted_forms_is_derived_at_any_lag(rng, form):
    z, z_s, a, delta = draws(rng, 4)
    got = gradient.weighted_bias(softmax_of(z), softmax_of(z_s), a, delta, form=form)
    close(got, bias.first_order_weighted_bias(form=form)(z, z_s, a, delta))


def test_the_drift_of_fresh_noise_is_derived(rng):
    z, a = draws(rng, 2)
    close(gradient.fresh_noise_bias(softmax_of(z), a, 0.3), bias.fresh_noise_drift()(z, a, 0.3))


def test_loop_matrices_are_jacobians_of_the_mean_updates(rng):
    z, a = draws(rng, 2)
    p = softmax_of(z)
    close(loop_matrix(correction("pg"), p, a), softmax.uncorrected_loop()(z, a))
    close(loop_matrix(correction("is"), p, a), softmax.weighted_loop()(z, a))


def test_the_series_of_log_ess_has_the_derived_coefficients():
    derived = [float(c) for c in ess.log_ess_coefficients(8)]
    numeric = [cumulants.log_ess_coefficient(n) for n in range(1, 9)]
    np.testing.assert_allclose(numeric, derived, rtol=algebra(1.0))
    assert numeric[:5] == [0, 1, 1, 7 / 12, 1 / 4]


def test_the_laplace_crossing_is_twice_root_ten_minus_six():
    derived = float(ess.laplace_crossing())
    assert derived == pytest.approx(2 * (math.sqrt(10) - 3), rel=algebra(1.0, 6.0))
    assert families.crossing_variance(families.laplace()).s2 == pytest.approx(derived, rel=1e3 * algebra(1.0))


def test_the_conditional_gamma_mixture_is_integrated():
    for nu, s2 in ((0.5, 0.3), (2.0, 0.375), (4.0, 0.1)):
        assert families.cn_gamma(nu).ess(s2) == pytest.approx(
            float(ess.conditional_gamma()(nu, s2)), rel=1e-12
        )


def test_bias_and_spread_of_the_sample_ess_are_derived(rng):
    for m2, m3, m4 in ((2.0, 8.0, 64.0), (1.3, 2.5, 9.0)):
        close(finite_sample.ess_bias(m2, m3, m4, 1), ess.ess_bias()(m2, m3, m4), 64.0)
        close(finite_sample.log_ess_variance(m2, m3, m4), ess.log_ess_variance()(m2, m3, m4), 64.0)


@pytest.mark.parametrize("arms", [2, 3])
def test_excess_coefficients_are_derived_from_the_flows(rng, arms):
    series = symbolic_excess.excess_series(arms)
    z, a = rng.normal(size=(2, arms))
    numeric = excess.arm_excess(softmax_of(z), a)
    for name in numeric._fields:
        close(getattr(numeric, name), getattr(series, name)(z, a))
    close(excess.alignment(softmax_of(z), a), series.alignment(z, a))


def test_alignment_at_the_uniform_policy_is_the_third_moment_of_the_advantages():
    assert symbolic_excess.uniform_alignment(3) == 0
    a = np.array([1.0, 0.2, -0.3, -0.6])
    assert excess.uniform_alignment(a) == pytest.approx(excess.alignment(np.full(4, 0.25), a), rel=1e-12)
