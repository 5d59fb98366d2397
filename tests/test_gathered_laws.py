"""What the gatherers compute from the toy: laws in shared weights, spreads over prefixes, unbiased norms."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import library

from theory.corrections import Logps, correction
from theory.experiment import Numerics
from theory.gradient import expected_gradient
from toy import observe
from toy.ensemble import Ensemble
from toy.policy import log_probs
from toy.settings import Bandit, Sequence, setting_s
from toy.settings import bandit as bandit_setting
from validation.gather import shared_weights as shared
from validation.gather.exact import entropy_scaled_discrepancy, lag_spread
from validation.gather.gradients import mean_norm

SMALL = Sequence(prompts=2, length=3, vocabulary=4, embedding=3, rank=2, quantile=0.6, seed=7)


def close(measured, expected):
    np.testing.assert_allclose(measured, expected, rtol=library(), atol=library())


def small(rule="pg", **changes):
    experiment = setting_s(0, correction=rule, sync_every=64, **changes)
    return dataclasses.replace(experiment, environment=SMALL, prompts=2)


def test_the_velocity_is_the_gradient_of_the_expected_reward(x64):
    start = shared.start_of(small(baseline="none"))

    def reward(weights):
        logp = log_probs(start.task.cast(np.float64), weights)
        return 2 * observe.accuracy(start.task, logp, jax.random.key(0), memory="first") - 1

    truth = jax.grad(reward)(jnp.zeros(start.task.weights_shape))
    # a response's tokens after the first have no say in its reward, whatever the baseline
    close(shared.velocity(start), np.asarray(truth).ravel())
    grouped = shared.start_of(small(baseline="group"))
    close(shared.velocity(grouped) / (1 - 1 / 128), np.asarray(truth).ravel())


@pytest.mark.parametrize("rule", ["pg", "sc", "is", "is-sc"])
@pytest.mark.parametrize("baseline", ["none", "group"])
def test_the_loop_matrix_is_the_slope_of_the_mean_update_in_the_weights(rule, baseline, x64):
    start = shared.start_of(small(rule, baseline=baseline))
    held = np.log(start.pi)
    rng = np.random.default_rng(3)

    def update(weights):
        logpi = np.asarray(log_probs(start.task.cast(np.float64), jnp.asarray(weights)))
        row = Logps(mu=start.logmu, pi_s=held, pi=logpi)
        return shared.pull_back(start, expected_gradient(correction(rule), row, start.advantage))

    matrix = shared.loop(start, correction(rule))
    for _ in range(3):
        direction = rng.normal(size=start.task.weights_shape)
        step = 1e-5
        slope = (update(step * direction) - update(-step * direction)) / (2 * step)
        np.testing.assert_allclose(matrix @ direction.ravel(), slope, atol=1e-8)


def test_the_hessian_is_the_loop_of_importance_weighting():
    start = shared.start_of(small("is"))
    close(shared.curvature(start), shared.loop(start, correction("is")))


def test_a_noisy_engine_visits_its_own_prefixes_and_adds_the_noise_it_runs_with():
    quiet = shared.start_of(small())
    noisy = shared.start_of(small(numerics=Numerics(kind="gaussian", scale=0.3)))
    np.testing.assert_allclose(quiet.visits.sum((1, 2)), 1.5)  # three tokens over two prompts
    np.testing.assert_allclose(noisy.visits.sum((1, 2)), 1.5)
    assert np.abs(noisy.visits - quiet.visits).max() > 1e-3
    assert np.std(noisy.delta) == pytest.approx(0.3, rel=0.2)
    shifted = noisy.delta + np.log(noisy.pi)
    close(noisy.logmu, shifted - np.logaddexp.reduce(shifted, axis=-1)[..., None])


def test_rewards_of_the_whole_response_and_scaled_baselines_have_no_table():
    last = dataclasses.replace(small(), environment=dataclasses.replace(SMALL, memory="last"))
    for experiment in (last, small(baseline="group-std")):
        with pytest.raises(ValueError, match="need a reward by the first token"):
            shared.start_of(experiment)


def test_a_bandit_has_one_prefix_a_prompt():
    environment = Bandit(prompts=2, arms=4, seed=1)
    start = shared.start_of(dataclasses.replace(bandit_setting(1), environment=environment, prompts=2))
    assert start.pi.shape == (2, 1, 1, 4)
    np.testing.assert_allclose(start.visits.ravel(), 0.5)
    expected = start.pi[:, 0, 0] * start.task.reward_CV
    mean = expected.sum(-1, keepdims=True)
    close(shared.velocity(start).reshape(2, 4), (expected - start.pi[:, 0, 0] * mean) / 2)


def test_the_norm_of_a_mean_does_not_grow_with_the_noise_of_its_seeds(rng):
    truth = rng.normal(size=20)
    draws = [mean_norm(truth + 3 * rng.normal(size=(8, 20))) ** 2 for _ in range(2000)]
    # a squared norm below 0 counts as 0, which only bites where the noise drowns the mean
    assert np.mean(draws) == pytest.approx(truth @ truth, rel=0.05)
    assert mean_norm(np.stack([truth, -truth])) == 0.0


@pytest.fixture
def moved(rng):
    """Two seeds and two steps of made-up weights: the sampler stays at the start, then follows."""
    D, V = SMALL.embedding, SMALL.vocabulary
    theta = 0.5 * rng.normal(size=(2, 2, D, V)).astype(np.float32)
    sampler = np.stack([np.zeros_like(theta[:, 0]), theta[:, 0]], axis=1)
    numerics = Numerics(kind="gaussian", scale=0.3)
    return Ensemble(experiment=small(numerics=numerics), measures={}, theta=theta, theta_sampler=sampler)


def prefixes(start, logp):
    """Every prefix with its probability per response, by enumeration of first tokens."""
    C, T, _, V = logp.shape
    for c, t in itertools.product(range(C), range(T)):
        if t == 0:
            yield (c, 0, V), 1 / C
        else:
            for first in range(V):
                yield (c, t, first), np.exp(logp[c, 0, V, first]) / C


def test_the_spread_of_lag_is_that_of_the_prefixes_one_by_one(moved, x64):
    start = shared.start_of(small())
    found = lag_spread(moved)
    task = start.task.cast(np.float64)
    for s, k in itertools.product(range(2), range(2)):
        pi_s, pi = (
            np.asarray(log_probs(task, jnp.asarray(w[s, k], jnp.float64)))
            for w in (moved.theta_sampler, moved.theta)
        )
        variances, weights = [], []
        for place, weight in prefixes(start, pi_s):
            p, log_w = np.exp(pi_s[place]), (pi - pi_s)[place]
            variances.append(p @ log_w**2 - (p @ log_w) ** 2)
            weights.append(weight / SMALL.length)
        mean = np.average(variances, weights=weights)
        relative = np.average((np.array(variances) - mean) ** 2, weights=weights) / mean**2
        close(found.mean[k, s], mean)
        close(found.relative[k, s], relative)


def test_noise_that_follows_the_entropy_is_the_engines_own_at_the_start(moved, x64):
    found = entropy_scaled_discrepancy(moved)
    noisy = shared.start_of(moved.experiment)
    # nothing has moved at the first step, so the scaled noise is the engine's noise itself
    square = total = 0.0
    for place, weight in prefixes(noisy, noisy.logmu):
        mu = noisy.logmu[place]
        square += weight * np.exp(mu) @ (mu - np.log(noisy.pi[place])) ** 2
        total += weight
    np.testing.assert_allclose(found[0], np.sqrt(square / total), rtol=1e-5)
    assert found.shape == (2, 2)
