"""Deviations in noise floors on the toy, and the jackknife behind their errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import toy_reference
from tolerances import MONTE_CARLO_Z, algebra

from theory.jackknife import jackknife
from toy import measure
from toy.ensemble import Ensemble
from toy.environment import build
from toy.settings import Sequence, setting_s

ENVIRONMENT = Sequence(prompts=2, length=3, vocabulary=4, embedding=3, rank=3, seed=2)


def ensemble_of(theta: np.ndarray, seed: int, environment: Sequence = ENVIRONMENT) -> Ensemble:
    """Ensemble with given weights (S, K, D, V): measures of policies need no runs."""
    experiment = dataclasses.replace(setting_s(seed=seed), environment=environment, prompts=2)
    return Ensemble(experiment=experiment, measures={}, theta=theta, theta_sampler=theta)


def around(centre: float, seeds: int, seed: int, *, steps: int = 2, spread: float = 0.3) -> Ensemble:
    """Runs scattered around one point of weight space."""
    rng = np.random.default_rng(seed)
    shape = (seeds, steps, *build(ENVIRONMENT).weights_shape)
    return ensemble_of(centre + spread * rng.normal(size=shape), seed)


def test_kl_between_runs_is_that_over_every_response():
    first, second = around(0.0, 2, 0), around(0.5, 3, 1)
    got = measure.kl_between(first, second, steps=[2])
    assert got.shape == (1, 2, 3)
    task = build(ENVIRONMENT)
    for i, j in np.ndindex(2, 3):
        p, q = (toy_reference.policy(task, e.theta[n, 1]) for e, n in ((first, i), (second, j)))
        expected = 0.0
        for c in range(2):
            every, other = (toy_reference.sequence_probabilities(x[c], "first") for x in (p, q))
            expected += sum(x * np.log(x / other[tokens]) for tokens, x in every.items())
        assert got[0, i, j] == pytest.approx(expected / 6, rel=0, abs=algebra(10.0))


@pytest.mark.parametrize("memory", ["first", "last"])
def test_exact_ess_of_responses_is_that_over_every_response(memory):
    environment = dataclasses.replace(ENVIRONMENT, memory=memory)
    first, second = around(0.0, 2, 0), around(0.3, 2, 1)
    e = dataclasses.replace(ensemble_of(first.theta, 0, environment), theta_sampler=second.theta)
    got = measure.exact_ess(e, level="sequence", steps=[1])
    task = build(environment)
    for s in range(2):
        pi, mu = (toy_reference.policy(task, theta[s, 0]) for theta in (first.theta, second.theta))
        moments = np.zeros(2)
        for c in range(2):
            every, other = (toy_reference.sequence_probabilities(x[c], memory) for x in (mu, pi))
            ratios = [(x, other[tokens] / x) for tokens, x in every.items()]
            moments += [sum(x * w**order for x, w in ratios) / 2 for order in (1, 2)]
        assert got[s, 0] == pytest.approx(moments[0] ** 2 / moments[1], rel=algebra(100.0))


def test_kl_of_a_run_to_itself_is_zero():
    e = around(0.0, 3, 0)
    np.testing.assert_allclose(np.einsum("kss->ks", measure.kl_between(e, e)), 0, atol=algebra(10.0))


def test_another_on_policy_ensemble_is_one_floor_away_within_its_error():
    gaps = []
    for s in range(20):
        d = measure.deviation_in_floors(
            around(0.0, 4, 3 * s), around(0.0, 4, 3 * s + 1), floor=around(0.0, 4, 3 * s + 2)
        )
        gaps.append((d.value - 1) / d.stderr)
    z = np.concatenate(gaps)
    # 40 ratios: their mean is 1 and their error is the jackknife's, within what 40 draws can tell
    assert abs(z.mean()) < MONTE_CARLO_Z / np.sqrt(len(z))
    assert 0.5 < z.std() < 2.0


def test_a_shifted_method_is_many_floors_away():
    d = measure.deviation_in_floors(around(3.0, 8, 0), around(0.0, 8, 1))
    assert (d.value > 10).all()
    assert (d.stderr < d.value / 2).all()
    np.testing.assert_allclose(d.value, d.kl / d.floor, rtol=algebra(10.0))


def test_runs_that_share_draws_are_refused():
    with pytest.raises(ValueError, match="must not share draws, got seeds"):
        measure.deviation_in_floors(around(0.0, 3, 1), around(0.0, 3, 1))


def test_a_floor_of_two_seeds_is_refused():
    with pytest.raises(ValueError, match=">= 3 seeds"):
        measure.deviation_in_floors(around(0.0, 3, 0), around(0.0, 2, 1))


def test_runs_of_two_environments_are_refused():
    other = dataclasses.replace(ENVIRONMENT, seed=9)
    with pytest.raises(ValueError, match="within one environment"):
        measure.kl_between(around(0.0, 3, 0), ensemble_of(around(0.0, 3, 1).theta, 1, other))


def test_a_step_that_was_not_run_is_refused():
    with pytest.raises(ValueError, match="steps run from 1 to 2, got 3"):
        measure.accuracy(around(0.0, 3, 0), steps=[1, 3])


def test_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).normal(size=9)
    value, stderr = jackknife(lambda i: x[i].mean(), [np.arange(9)])
    assert value == pytest.approx(x.mean(), rel=algebra(1.0))
    assert stderr == pytest.approx(x.std(ddof=1) / 3, rel=algebra(100.0))


def test_jackknife_adds_the_variance_of_independent_groups():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=6), rng.normal(size=8)
    _, stderr = jackknife(lambda i, j: x[i].mean() - y[j].mean(), [np.arange(6), np.arange(8)])
    expected = np.hypot(x.std(ddof=1) / np.sqrt(6), y.std(ddof=1) / np.sqrt(8))
    assert stderr == pytest.approx(expected, rel=algebra(100.0))


def test_jackknife_of_a_single_member_has_no_error_to_give():
    _, stderr = jackknife(lambda i: float(i.sum()), [np.arange(1)])
    assert np.isnan(stderr)
