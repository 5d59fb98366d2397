"""The feedback loop: loop matrices against the correction core, predicted lags against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tolerances import MONTE_CARLO_Z, ORDER_MARGIN, algebra, order_of

from theory.arrays import log_softmax
from theory.centering import coefficients
from theory.corrections import CORRECTIONS, Correction, Logps, correction
from theory.decomposition import kl
from theory.feedback import (
    centered_limit,
    centered_path,
    deviation_path,
    e_folding_step,
    lag_at,
    lag_path,
    loop_gain,
    loop_matrix,
    period_deviation,
    shared_loop_matrix,
)
from theory.fisher import fisher, gradient, hessian
from theory.gradient import (
    baseline_drift,
    discrepancy_bias,
    expected_gradient,
    rms_left,
    rms_removed,
    weighted_bias,
)
from theory.mean_path import mean_path

A6 = np.array([1.0, 0.2, -0.3, -0.6, -0.9, -1.0])
Z6 = np.array([0.5, 0.2, 0.0, 0.1, -0.4, -0.2])
"""The six-armed bandit of theory's table"""

PRINTED = 6e-5
"""Half a unit in the fourth digit, in which theory prints lag norms"""


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(z))


def with_mean(p: np.ndarray, advantage: np.ndarray, mean: float) -> np.ndarray:
    return advantage - p @ advantage + mean


def frozen_update(rule: Correction, z_s: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    row = Logps(mu=log_softmax(z_s), pi_s=log_softmax(z_s), pi=log_softmax(z))
    return expected_gradient(rule, row, a)


# --- mean gradients of the core -----------------------------------------------------------------------------


def test_the_expected_gradient_is_the_enumeration_of_the_formula_of_the_core(rng):
    """A wc_a (e_a - qhat), action by action, written out with no part of the core."""
    logmu, logpi_s, logpi = log_softmax(rng.normal(size=(3, 5)))
    mu, ps, pi = np.exp((logmu, logpi_s, logpi))
    a = rng.normal(size=5) + 1
    row = Logps(logmu, logpi_s, logpi)
    w = {
        "pg": np.ones(5),
        "sc": np.ones(5),
        "is": pi / mu,
        "tis": np.minimum(pi / mu, 2),
        "dlc": np.minimum(pi / ps, 5),
    }
    for name, weight in w.items():
        q = mu * weight / (mu @ weight) if CORRECTIONS[name].centered else pi
        want = sum(mu[i] * a[i] * weight[i] * (np.eye(5)[i] - q) for i in range(5))
        np.testing.assert_allclose(expected_gradient(CORRECTIONS[name], row, a), want, atol=10 * algebra(1.0))


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_the_expected_gradient_is_the_mean_of_sampled_ones(name, rng):
    rule = CORRECTIONS[name]
    logmu, logpi_s, logpi = log_softmax(rng.normal(size=(3, 4)) * 0.3)
    a, n = np.array([1.0, 0.4, -0.5, 0.9]), 100_000
    drawn = rng.choice(4, size=n, p=np.exp(logmu))
    token = Logps(*(x[drawn][:, None] for x in (logmu, logpi_s, logpi)))
    # a batch budget looks at the draws, enumeration at each action once: keep it from binding
    rule = correction(name, high=10.0) if rule.clip == "second-moment" else rule
    rows = Logps(*(np.broadcast_to(x, (n, 1, 4)) for x in (logmu, logpi_s, logpi)))
    c = coefficients(rule, token, a[drawn][:, None], row=rows if rule.centered else None)
    weight = c.token * np.eye(4)[drawn] + (0 if c.row is None else c.row[:, 0])
    each = weight - weight.sum(-1, keepdims=True) * np.exp(logpi)
    stderr = each.std(axis=0) / math.sqrt(n)
    print("standard errors", stderr)
    want = expected_gradient(rule, Logps(logmu, logpi_s, logpi), a)
    assert (abs(each.mean(axis=0) - want) <= MONTE_CARLO_Z * stderr + algebra(1.0)).all()


def test_centring_removes_the_baseline_drift_and_nothing_else(rng):
    logmu, logpi = log_softmax(rng.normal(size=(2, 7)))
    a = rng.normal(size=7) + 0.5
    row = Logps(logmu, logpi, logpi)
    removed = expected_gradient(CORRECTIONS["pg"], row, a) - expected_gradient(CORRECTIONS["sc"], row, a)
    np.testing.assert_allclose(
        removed, baseline_drift(np.exp(logmu), np.exp(logpi), a), atol=algebra(1.0, 1.0)
    )
    none_left = a - np.exp(logmu) @ a
    assert abs(baseline_drift(np.exp(logmu), np.exp(logpi), none_left)).max() < algebra(1.0, 1.0)


@pytest.mark.parametrize(("name", "centered"), [("pg", False), ("sc", True)])
def test_the_first_order_bias_leaves_a_remainder_of_second_order(name, centered, rng):
    z, delta = rng.normal(size=(2, 6))
    a = rng.normal(size=6) + 1
    p = softmax(z)
    scales = [0.2, 0.1, 0.05, 0.025]
    errors = []
    for s in scales:
        row = Logps(log_softmax(z + s * delta), log_softmax(z), log_softmax(z))
        bias = expected_gradient(CORRECTIONS[name], row, a) - gradient(p, a)
        errors.append(np.linalg.norm(bias - discrepancy_bias(p, a, s * delta, centered=centered)))
    assert order_of(errors, scales) == pytest.approx(2, abs=ORDER_MARGIN)


@pytest.mark.parametrize(("center", "form"), [("matched", "matched"), ("form-i", "form-i")])
def test_the_bias_of_the_weighted_forms_leaves_a_remainder_of_second_order_at_large_lag(center, form, rng):
    z_s, delta, lag = rng.normal(size=(3, 6))
    a = rng.normal(size=6) + 1
    p, p_s = softmax(z_s + lag), softmax(z_s)
    rule = correction("is-sc", center=center)
    scales = [0.1, 0.05, 0.025, 0.0125]
    errors = []
    for s in scales:
        row = Logps(log_softmax(z_s + s * delta), log_softmax(z_s), log_softmax(z_s + lag))
        bias = expected_gradient(rule, row, a) - gradient(p, a)
        errors.append(np.linalg.norm(bias - weighted_bias(p, p_s, a, s * delta, form=form)))
    assert order_of(errors, scales) == pytest.approx(2, abs=ORDER_MARGIN)


def test_the_rms_of_what_centring_removes_and_leaves_is_that_of_random_noise(rng):
    p = softmax(rng.normal(size=6))
    a, s, n = with_mean(p, rng.normal(size=6), 0.8), 0.15, 20_000
    delta = s * rng.normal(size=(n, 6))
    removed = np.linalg.norm(delta @ fisher(p) * 0.8, axis=-1)
    left = np.linalg.norm(delta @ hessian(p, a), axis=-1)
    for sample, want in ((removed, rms_removed(p, a, s)), (left, rms_left(p, a, s))):
        stderr = (sample**2).std() / math.sqrt(n)
        print(f"standard error of the mean square {stderr:.2g}")
        assert (sample**2).mean() == pytest.approx(want**2, abs=MONTE_CARLO_Z * stderr)


# --- loop matrices ------------------------------------------------------------------------------------------


LOOPS = [
    *(correction(name) for name in sorted(CORRECTIONS)),
    correction("ppo", ppo_ref="synced"),
    correction("ppo", ppo_ref="engine"),
    correction("is-sc", center="form-i"),
    correction("is-sc", center="numerics"),
    correction("sc", center="form-i"),
    correction("sc", center="numerics"),
]


@pytest.mark.parametrize("rule", LOOPS, ids=lambda r: f"{r.ratio}-{r.clip}-{r.center}")
def test_the_loop_matrix_of_every_correction_is_the_derivative_of_its_mean_update(rule, rng):
    z = rng.normal(size=5)
    p = softmax(z)
    a = with_mean(p, rng.normal(size=5), -0.7)
    h = 1e-5
    columns = [
        (frozen_update(rule, z, z + h * e, a) - frozen_update(rule, z, z - h * e, a)) / (2 * h)
        for e in np.eye(5)
    ]
    # central differences: h^2 times a third derivative of order 1, and rounding eps/h
    np.testing.assert_allclose(
        loop_matrix(rule, p, a), np.array(columns).T, atol=10 * h**2 + algebra(1.0) / h
    )


def test_a_clip_that_binds_at_ratio_one_has_no_linear_loop():
    p = softmax(Z6)
    with pytest.raises(ValueError, match="open at ratio 1"):
        loop_matrix(correction("tis", high=1.0), p, A6)


@pytest.mark.parametrize("mean", [-0.6, 0.0, 0.6])
def test_the_uncorrected_loop_feeds_back_if_and_only_if_the_mean_advantage_is_negative(mean):
    p = softmax(Z6)
    m = loop_matrix(CORRECTIONS["pg"], p, with_mean(p, A6, mean))
    gain = loop_gain(m, lr=0.02)
    assert (gain > 1 + 1e-6) == (mean < 0)
    assert (gain < 1 - 1e-6) == (mean > 0)
    top = np.linalg.eigvalsh(fisher(p)).max()
    if mean < 0:
        assert gain == pytest.approx(1 + 0.02 * 0.6 * top, rel=1e2 * algebra(1.0))
        assert e_folding_step(p, mean, lr=0.02) == pytest.approx(
            1 / (0.02 * 0.6 * top), rel=1e2 * algebra(1.0)
        )
    else:
        assert e_folding_step(p, mean, lr=0.02) == math.inf


def test_two_arms_feed_back_at_twice_p_times_one_minus_p_and_never_faster_than_one_half(rng):
    for p in (0.5, 0.2):
        row = np.array([p, 1 - p])
        assert e_folding_step(row, -1.0, lr=0.1) == pytest.approx(
            1 / (0.1 * 2 * p * (1 - p)), rel=1e2 * algebra(1.0)
        )
    for row in softmax(2 * rng.normal(size=(50, 8))):
        assert np.linalg.eigvalsh(fisher(row)).max() <= 0.5


def test_centring_has_gain_one_exactly():
    assert loop_gain(loop_matrix(CORRECTIONS["sc"], softmax(Z6), A6), lr=0.3) == 1


# --- predicted lags -----------------------------------------------------------------------------------------


TABLE = {
    "sc": [(0.1316, 0.1316), (0.3290, 0.3290), (0.6581, 0.6581), (1.3161, 1.3161)],
    "pg": [(0.1348, 0.1348), (0.3500, 0.3508), (0.7468, 0.7538), (1.7083, 1.7657)],
    "is": [(0.1340, 0.1339), (0.3456, 0.3439), (0.7318, 0.7143), (1.673, 1.467)],
}
"""theory: lag norms, predicted and simulated, K = 6, lr .02, Abar -.6, at t = .4, 1, 2, 4"""


@pytest.mark.parametrize("name", sorted(TABLE))
def test_predicted_and_simulated_lag_norms_are_those_of_the_table(name):
    p = softmax(Z6)
    a = with_mean(p, A6, -0.6)
    rule, g = CORRECTIONS[name], gradient(p, with_mean(p, A6, -0.6))
    predicted = np.linalg.norm(lag_path(g, loop_matrix(rule, p, a), lr=0.02, steps=200), axis=-1)
    simulated = np.linalg.norm(mean_path(rule, Z6, a, lr=0.02, steps=200).logits - Z6, axis=-1)
    for step, (law, run) in zip((20, 50, 100, 200), TABLE[name], strict=True):
        # the last column of IS is printed with three digits
        digit = PRINTED if law < 1.6 or name == "pg" else 10 * PRINTED
        assert predicted[step] == pytest.approx(law, abs=digit)
        assert simulated[step] == pytest.approx(run, abs=digit)


@pytest.mark.parametrize("name", ["pg", "sc", "is", "dlc"])
def test_the_error_of_the_linear_loop_is_of_third_order_in_time(name):
    """Delta = t g + (t^2/2) M g is exact to t^2; the neglected O(Delta^2) enters at t^3."""
    p = softmax(Z6)
    a = with_mean(p, A6, -0.6)
    rule, times = CORRECTIONS[name], [2.0, 1.0, 0.5]
    predicted = lag_path(gradient(p, a), loop_matrix(rule, p, a), lr=0.01, steps=200)
    simulated = mean_path(rule, Z6, a, lr=0.01, steps=200).logits - Z6
    errors = [float(np.linalg.norm((predicted - simulated)[int(t / 0.01)])) for t in times]
    if name == "sc":
        assert max(errors) < 1e3 * algebra(1.0)
    else:
        assert order_of(errors, times) == pytest.approx(3, abs=ORDER_MARGIN)


@pytest.mark.parametrize("lr", [0.05, 3.0])
def test_the_closed_form_of_the_lag_is_the_recursion(lr, rng):
    p = softmax(rng.normal(size=6))
    a = rng.normal(size=6)
    g = gradient(p, a)
    for m in (hessian(p, a), -0.7 * fisher(p), 0.7 * fisher(p), np.zeros((6, 6)), -fisher(p) * 2 / lr):
        path = lag_path(g, m, lr=lr, steps=9)
        scale = np.abs(path).max()
        for k in (0, 1, 5, 9):
            np.testing.assert_allclose(lag_at(g, m, lr=lr, steps=k), path[k], atol=1e2 * algebra(scale))


def test_a_positive_loop_grows_by_e_in_its_e_folding_time(rng):
    p = np.array([0.5, 0.5])
    m = loop_matrix(CORRECTIONS["pg"], p, np.array([-1.0, -1.0]) + np.array([0.1, -0.1]))
    k = int(e_folding_step(p, -1.0, lr=1e-3))
    lag = lag_path(np.array([1.0, -1.0]), m, lr=1e-3, steps=2 * k)
    # growth of the driven loop, (1 + x)^k - 1: the ratio at 2k and k is e + 1
    assert np.linalg.norm(lag[2 * k]) / np.linalg.norm(lag[k]) == pytest.approx(math.e + 1, rel=2e-3)


# --- score centring under a stale sampler -------------------------------------------------------------------


def test_a_stale_centred_run_moves_at_constant_velocity_exactly(rng):
    z = rng.normal(size=5)
    a = rng.normal(size=5) + 1
    run = mean_path(CORRECTIONS["sc"], z, a, lr=0.3, steps=50).logits
    np.testing.assert_allclose(centered_path(z, a, lr=0.3, steps=50), run, atol=1e2 * algebra(run))


def test_a_stale_centred_run_can_end_at_the_wrong_arm():
    """theory: mu = (.05, .60, .35), A = (1, .4, -1): SC ends at arm 1, IS at arm 0 with .994 at t = 200."""
    mu, a = np.array([0.05, 0.60, 0.35]), np.array([1.0, 0.4, -1.0])
    assert centered_limit(mu, a) == 1
    assert np.argmax(a) == 0
    z = np.log(mu)
    sc, weighted = (mean_path(CORRECTIONS[n], z, a, lr=0.2, steps=1000).logits[-1] for n in ("sc", "is"))
    assert softmax(sc)[1] == pytest.approx(1.0, abs=5e-4)
    assert softmax(weighted)[0] == pytest.approx(0.994, abs=5e-4)


def test_the_limit_arm_is_where_sampled_runs_end_too(rng):
    """The Monte Carlo policy itself: draws from a stale engine, one centred update per batch."""
    mu, a = np.array([0.05, 0.60, 0.35]), np.array([1.0, 0.4, -1.0])
    z, z_s = np.log(mu), np.log(mu)
    for _ in range(200):
        drawn = rng.choice(3, size=256, p=mu)
        token = Logps(z_s[drawn], z_s[drawn], log_softmax(z)[drawn])
        row = Logps(*(np.broadcast_to(x, (256, 3)) for x in (z_s, z_s, log_softmax(z))))
        c = coefficients(CORRECTIONS["sc"], token, a[drawn], row=row)
        weight = c.token[:, None] * np.eye(3)[drawn] + c.row
        z = z + 1.0 * (weight - weight.sum(-1, keepdims=True) * softmax(z)).mean(axis=0)
    assert np.argmax(z) == centered_limit(mu, a) == 1
    # velocity mu (A - mu.A) within the spread of the sampled path
    stderr = math.sqrt(200 / 256)
    assert (abs(z - np.log(mu) - 200 * gradient(mu, a)) < MONTE_CARLO_Z * stderr).all()


def test_two_arms_on_policy_solve_their_differential_equation():
    """dx/dt = 4p(1-p) integrates to 2x + 2 sinh(x) = 4t + const; SC keeps its first velocity instead."""
    a = np.array([1.0, -1.0])
    on = mean_path(CORRECTIONS["is"], np.zeros(2), a, lr=1e-3, steps=2000, sync_every=1).logits
    x = on[-1, 0] - on[-1, 1]
    assert 2 * x + 2 * math.sinh(x) == pytest.approx(4 * 2.0, rel=2e-3)
    sc = centered_path(np.zeros(2), a, lr=1e-3, steps=2000)[-1]
    assert sc[0] - sc[1] == pytest.approx(4 * 0.25 * 2.0, rel=algebra(1.0, 1.0))


# --- deviation over sync periods ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pg", "sc"])
def test_the_deviation_of_one_period_is_half_t_squared_of_the_loop_mismatch(name):
    p = softmax(Z6)
    a = with_mean(p, A6, -0.6)
    rule, steps = CORRECTIONS[name], [40, 20, 10]
    m, h, g = loop_matrix(rule, p, a), hessian(p, a), gradient(p, a)
    errors = []
    for n in steps:
        stale = mean_path(rule, Z6, a, lr=0.02, steps=n).logits[-1]
        on_policy = mean_path(CORRECTIONS["is"], Z6, a, lr=0.02, steps=n, sync_every=1).logits[-1]
        predicted = period_deviation(g, m, h, lr=0.02, period=n)
        errors.append(np.linalg.norm(stale - on_policy - predicted))
        assert errors[-1] < 0.5 * np.linalg.norm(predicted)
    assert order_of(errors, steps) == pytest.approx(3, abs=ORDER_MARGIN)
    assert not period_deviation(g, m, h, lr=0.02, period=1).any()


def test_the_deviation_path_leads_with_the_period_deviation_and_vanishes_for_weighted_gradients():
    p = softmax(Z6)
    a = with_mean(p, A6, -0.6)
    h, g = hessian(p, a), gradient(p, a)
    m = loop_matrix(CORRECTIONS["pg"], p, a)
    path = deviation_path(g, m, h, lr=1e-3, steps=100)
    np.testing.assert_allclose(
        path[100], period_deviation(g, m, h, lr=1e-3, period=100), atol=0.01 * abs(path[100]).max()
    )
    assert not deviation_path(g, h, h, lr=1e-3, steps=100).any()
    # the linear loop of PG less that of on-policy, from the same start
    apart = lag_path(g, m, lr=1e-3, steps=100) - lag_path(g, h, lr=1e-3, steps=100)
    np.testing.assert_allclose(path, apart, atol=1e2 * algebra(path))


def test_only_the_product_of_staleness_and_learning_rate_matters():
    """theory: KL(on||PG), tau 3.2, baseline -.6, eta N = .8: 1.7e-4 at eta .1, 2.2e-4 at .025."""
    printed = {(0.1, 8): (1.7e-4, 2.8e-4), (0.025, 32): (2.2e-4, 3.4e-4)}
    for (lr, period), want in printed.items():
        steps = round(3.2 / lr)
        a = with_mean(softmax(Z6), A6, -0.6)

        def run(name, sync, lr=lr, steps=steps, a=a):
            return mean_path(
                CORRECTIONS[name], Z6, a, lr=lr, steps=steps, sync_every=sync, rebaseline=True
            ).logits[-1]

        on = log_softmax(run("is", 1))
        for name, law in zip(("pg", "sc"), want, strict=True):
            assert kl(on, log_softmax(run(name, period))) == pytest.approx(law, rel=0.04)


def test_shared_parameters_add_the_loops_of_their_prefixes(rng):
    weight, jacobian, matrix = rng.random(3), rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 4))
    want = sum(w * j.T @ m @ j for w, j, m in zip(weight, jacobian, matrix, strict=True))
    np.testing.assert_allclose(shared_loop_matrix(weight, jacobian, matrix), want, atol=1e2 * algebra(want))
