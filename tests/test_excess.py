"""The quadratic excess: four readings against the flows themselves, integrated independently."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tolerances import ORDER_MARGIN, algebra, order_of

from theory.corrections import CORRECTIONS
from theory.excess import alignment, arm_excess, excess_coefficients, excess_readings, uniform_alignment
from theory.fisher import gradient, hessian, hessian_product
from theory.mean_path import mean_path

UNIFORM = (np.full(6, 1 / 6), np.array([1.0, 0.2, -0.3, -0.6, -0.9, -1.0]))
AHEAD = (np.array([0.7, 0.3]), np.array([1.0, -1.0]))
BEHIND = (np.array([0.3, 0.7]), np.array([1.0, -1.0]))
CASES = {"uniform": UNIFORM, "ahead": AHEAD, "behind": BEHIND}

PRINTED = 5e-6
"""Relative: theory prints six digits"""


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def on_policy(p: np.ndarray, a: np.ndarray, t: float, steps: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Displacement and update of the on-policy flow at time t, by fourth-order Runge-Kutta."""

    def g(z):
        q = softmax(z)
        return q * (a - q @ a)

    start = np.log(p)
    z, h = start.copy(), t / steps
    for _ in range(steps):
        k1 = g(z)
        k2 = g(z + h / 2 * k1)
        k3 = g(z + h / 2 * k2)
        k4 = g(z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z - start, g(z)


def readings(p: np.ndarray, a: np.ndarray, t: float):
    moved, update = on_policy(p, a, t)
    g = gradient(p, a)
    return excess_readings(g, update, t * g, moved)


def limit(values: list[np.ndarray]) -> float:
    """Richardson: t halves, the error is of first order."""
    return float(2 * values[-1] - values[-2])


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_leading_coefficient_of_each_reading_is_the_limit_of_the_flows(case):
    p, a = CASES[case]
    law = arm_excess(p, a)
    times = [0.02, 0.01, 0.005]
    at = [readings(p, a, t) for t in times]
    by_name = {
        "per_step_square": [r.per_step_square / t**2 for r, t in zip(at, times, strict=True)],
        "per_step_linear": [r.per_step_norm / t for r, t in zip(at, times, strict=True)],
        "cumulative": [r.cumulative / t**2 for r, t in zip(at, times, strict=True)],
        "cumulative_norm": [r.cumulative_norm / t**2 for r, t in zip(at, times, strict=True)],
        "per_step_quadratic": [
            (r.per_step_norm - law.per_step_linear * t) / t**2 for r, t in zip(at, times, strict=True)
        ],
    }
    for name, values in by_name.items():
        # the next orders leave t^2 of a coefficient like the leading one; for the t^2 coefficient behind the
        # linear term, rounding of |u|^2 over t^2 is added
        tolerance = 20 * times[-1] ** 2 * abs(law.per_step_linear) + algebra(1.0) / times[-1] ** 2
        assert limit(values) == pytest.approx(getattr(law, name), abs=tolerance), name


@pytest.mark.parametrize(
    ("case", "name", "printed"),
    [
        ("uniform", "per_step_square", 1.31798e-3),
        ("uniform", "cumulative", 1.81520e-2),
        ("uniform", "cumulative_norm", -1.18680e-2),
        ("uniform", "per_step_linear", -1.34115e-2),
        ("uniform", "per_step_quadratic", -1.83048e-3),
        ("ahead", "per_step_square", 3.98297e-2),
        ("ahead", "cumulative", 9.97869e-2),
        ("ahead", "cumulative_norm", 9.97869e-2),
        ("behind", "cumulative_norm", -9.97869e-2),
    ],
)
def test_coefficients_are_those_printed_in_theory(case, name, printed):
    assert getattr(arm_excess(*CASES[case]), name) == pytest.approx(printed, rel=PRINTED)


def test_the_t_squared_coefficient_of_the_norm_difference_is_negative_in_all_three_cases():
    """So "the excess of the update norm is a positive quadratic" is false as a per-step statement."""
    assert arm_excess(*AHEAD).per_step_quadratic == pytest.approx(-1.4936e-2, rel=1e-4)
    assert arm_excess(*BEHIND).per_step_quadratic == pytest.approx(-1.4936e-2, rel=1e-4)
    assert all(arm_excess(*case).per_step_quadratic < 0 for case in CASES.values())


def test_the_closed_form_of_the_arms_is_the_hessian_times_the_gradient(rng):
    for k in (2, 5, 16):
        p, a = softmax(rng.normal(size=k)), rng.normal(size=k)
        g = gradient(p, a)
        hg = hessian(p, a) @ g
        law = arm_excess(p, a)
        assert law.per_step_square == pytest.approx(hg @ hg, rel=1e2 * algebra(1.0))
        assert alignment(p, a) == pytest.approx(g @ hg, rel=1e-10, abs=algebra(1.0))
        np.testing.assert_allclose(hessian_product(p, a, g), hg, atol=algebra(1.0))


def test_cumulative_difference_is_positive_and_its_norm_difference_follows_the_alignment():
    for p, a in CASES.values():
        law = arm_excess(p, a)
        assert law.cumulative > 0
        assert np.sign(law.cumulative_norm) == -np.sign(alignment(p, a))


def test_negative_skew_of_the_advantages_makes_the_excess_positive_at_the_uniform_policy():
    for rho in (0.25, 0.5, 0.75):
        k = 8
        a = np.where(np.arange(k) < rho * k, 1.0, -1.0)
        m3 = 8 * rho * (1 - rho) * (1 - 2 * rho)
        assert uniform_alignment(a) == pytest.approx(m3 / k**2, abs=algebra(1.0))
        assert alignment(np.full(k, 1 / k), a) == pytest.approx(m3 / k**2, abs=algebra(1.0))
        assert (arm_excess(np.full(k, 1 / k), a).cumulative_norm > 1e-12) == (rho > 0.5)


def test_a_stationary_point_has_no_direction():
    law = excess_coefficients(np.zeros(3), np.zeros(3), np.zeros(3))
    assert law.cumulative == 0
    assert math.isnan(law.cumulative_norm)


def test_halving_the_learning_rate_quarters_the_cumulative_excess_of_the_correction_core():
    p, a = UNIFORM
    steps, rates = 20, [0.04, 0.02, 0.01]
    excess = []
    for lr in rates:
        sc, weighted = (mean_path(CORRECTIONS[n], np.log(p), a, lr=lr, steps=steps) for n in ("sc", "is"))
        excess.append(float(np.linalg.norm(sc.logits[-1] - weighted.logits[-1])))
    assert order_of(excess, rates) == pytest.approx(2, abs=ORDER_MARGIN / 10)
    # discrete steps: k(k-1)/2 updates of lag in place of k^2/2
    law = arm_excess(p, a).cumulative * 2 * rates[-1] ** 2 * steps * (steps - 1) / 2
    assert excess[-1] == pytest.approx(law, rel=0.02)
