"""Pipeline faults of the toy: exact vectors against plain enumeration, and what the simulator does."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_reference
from test_toy_loop import compilations
from tolerances import MONTE_CARLO_Z, algebra

from theory.corrections import correction
from theory.experiment import Experiment, Numerics
from toy import bias
from toy.environment import build
from toy.infrastructure import (
    delivered,
    empty_queue,
    infrastructure_settings,
    retokenised,
    truncated,
)
from toy.policy import Responses
from toy.settings import STALE, Sequence
from toy.simulate import ensemble
from toy.toggles import Infrastructure
from toy.update import Batch

ENVIRONMENT = Sequence(prompts=3, length=2, vocabulary=5, embedding=4, rank=4, beta=1.5, quantile=0.6, seed=8)
FAULTS = {
    "top-p": Infrastructure(top_p=0.7),
    "retokenisation": Infrastructure(retokenise=(3, 0, 2)),
    "reward filter": Infrastructure(keep_wrong=0.0),
    "deferred": Infrastructure(defer_from=3),
}
SEEDS, STEPS, SAMPLES = 24, 4, 512


NONE = Infrastructure()


def experiment(chosen: Infrastructure = NONE, *, rule: str = "pg", **changes) -> Experiment:
    environment = dataclasses.replace(ENVIRONMENT, infrastructure=chosen)
    settings = {"lr": 2.0, "steps": STEPS, "samples": SAMPLES, "prompts": 3, "baseline": "none"} | changes
    return Experiment(environment=environment, correction=correction(rule), **settings)


def runs(chosen: Infrastructure = NONE, **changes):
    return ensemble(experiment(chosen, **changes), seeds=SEEDS, double=True)


def policies(e) -> tuple[np.ndarray, np.ndarray]:
    """Updates divided by lr (S, K, D, V), and policies before each, (S, K + 1, C, T, U, V)."""
    task = build(e.experiment.environment)
    theta = np.concatenate([np.zeros_like(e.theta[:, :1]), e.theta], axis=1)
    tables = np.array([[toy_reference.policy(task, w) for w in run[:-1]] for run in theta])
    return np.diff(theta, axis=1) / e.experiment.lr, tables


def enumerated(chosen: Infrastructure, before, p, samples: int = SAMPLES, mu=None) -> np.ndarray:
    """Mean uncorrected update by going through every response of two tokens, one fault at a time."""
    task = build(ENVIRONMENT)
    C, _, U, V = task.logits_CTUV.shape
    total = np.zeros(task.weights_shape)
    for c in range(C):

        def drawn_from(row):
            if chosen.top_p == 1:
                return row
            kept, mass = np.zeros(V), 0.0
            for a in sorted(range(V), key=lambda a: -row[a]):
                if mass >= chosen.top_p:
                    break
                kept[a], mass = row[a], mass + row[a]
            return kept / mass

        parts, weight = np.zeros(task.weights_shape), 0.0
        for a, b in itertools.product(range(V), repeat=2):
            late = chosen.defer_from is not None and a >= chosen.defer_from
            source = before if late else (p if mu is None else mu)
            if source is None:
                continue
            chance = drawn_from(source[c, 0, U - 1])[a] * drawn_from(source[c, 1, a])[b]
            reward = task.reward_CV[c, a]
            chance *= 1.0 if reward > 0 else chosen.keep_wrong
            seen = [((c, 0, U - 1), a), ((c, 1, a), b)]
            if chosen.retokenise is not None and (a, b) == chosen.retokenise[:2]:
                seen = [((c, 0, U - 1), chosen.retokenise[2])]
            for state, token in seen:
                score = np.eye(V)[token] - p[state]
                parts += chance * reward * np.outer(task.features_CTUD[state], task.projector_VV @ score)
            weight += chance
        # of a prompt without any response there is no update
        total += parts / weight * (1 - max(0.0, 1 - weight) ** samples)
    return total / C


@pytest.mark.parametrize("name", FAULTS)
def test_exact_bias_is_that_of_every_response_gone_through_one_by_one(name):
    task, rng = build(ENVIRONMENT), np.random.default_rng(3)
    before, p = (toy_reference.policy(task, 0.5 * rng.normal(size=task.weights_shape)) for _ in range(2))
    for earlier in (before, None):
        got = bias.exact_bias(task, FAULTS[name], p, earlier, samples=SAMPLES)
        expected = enumerated(FAULTS[name], earlier, p) - bias.exact_gradient(task, p)
        np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(10.0))
        assert np.abs(got).max() > 1e-3


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", ["reward filter", "deferred"])
def test_a_prompt_without_any_response_in_a_small_batch_teaches_nothing(name, samples):
    task, rng = build(ENVIRONMENT), np.random.default_rng(3)
    p = toy_reference.policy(task, 0.5 * rng.normal(size=task.weights_shape))
    got = bias.exact_bias(task, FAULTS[name], p, None, samples=samples)
    expected = enumerated(FAULTS[name], None, p, samples) - bias.exact_gradient(task, p)
    np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(10.0))
    many = bias.exact_bias(task, FAULTS[name], p, None, samples=SAMPLES)
    assert np.abs(got - many).max() > 1e-3, "the control: how many responses there are matters"


@pytest.mark.parametrize("samples", [1, 3, SAMPLES])
def test_the_filters_bias_under_a_sampler_that_differs_is_that_of_every_response_gone_through(samples):
    task, rng = build(ENVIRONMENT), np.random.default_rng(3)
    mu, p = (toy_reference.policy(task, 0.5 * rng.normal(size=task.weights_shape)) for _ in range(2))
    chosen = Infrastructure(keep_wrong=0.1)
    got = bias.filtered(task, mu, p, 0.1, samples=samples)
    expected = enumerated(chosen, None, p, samples, mu) - bias.exact_gradient(task, p)
    np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(10.0))


def test_without_a_fault_the_enumeration_is_the_policy_gradient():
    task = build(ENVIRONMENT)
    p = toy_reference.policy(task, np.zeros(task.weights_shape))
    np.testing.assert_allclose(
        enumerated(Infrastructure(), None, p), bias.exact_gradient(task, p), rtol=0, atol=algebra(10.0)
    )


@pytest.mark.parametrize("name", FAULTS)
def test_simulated_updates_carry_the_exact_bias(name):
    e = runs(FAULTS[name])
    update, p = policies(e)
    task = build(ENVIRONMENT)
    residual = np.array(
        [
            update[s, k]
            - bias.exact_gradient(task, p[s, k])
            - bias.exact_bias(task, FAULTS[name], p[s, k], p[s, k - 1] if k else None, samples=SAMPLES)
            for s in range(SEEDS)
            for k in range(STEPS)
        ]
    )
    error = residual.std(0, ddof=1) / np.sqrt(len(residual))
    assert np.abs(residual.mean(0) / error).max() < MONTE_CARLO_Z
    size = np.abs(bias.exact_bias(task, FAULTS[name], p[0, 0], None, samples=SAMPLES)).max()
    assert size > 2 * MONTE_CARLO_Z * error.max(), (size, error.max())


def test_the_ratio_to_what_was_really_drawn_leaves_the_missing_support():
    chosen = Infrastructure(top_p=0.7, processed=True)
    e = runs(chosen, rule="is")
    update, p = policies(e)
    task = build(ENVIRONMENT)
    expected = bias.exact_gradient(task, p[0, 0]) + bias.top_p(task, p[0, 0], 0.7, corrected=True)
    error = update[:, 0].std(0, ddof=1) / np.sqrt(SEEDS)
    assert np.abs((update[:, 0].mean(0) - expected) / error).max() < MONTE_CARLO_Z


def test_truncation_reports_what_it_is_told_to_and_draws_from_the_nucleus():
    logmu = jnp.log(jnp.asarray([[[[0.5, 0.3, 0.15, 0.05]]]]))
    for processed in (False, True):
        settings = infrastructure_settings(Infrastructure(top_p=0.7, processed=processed), np.float64)
        drawn, reported = truncated(settings, logmu)
        np.testing.assert_allclose(np.exp(drawn[0, 0, 0]), [0.625, 0.375, 0, 0], atol=algebra(1.0))
        np.testing.assert_array_equal(reported, drawn if processed else logmu)


RIGHT_AND_SHORT, RIGHT_AND_LONG, WRONG_AND_SHORT, WRONG_AND_LONG = range(4)


def test_a_wrong_response_is_filtered_when_it_is_drawn_and_the_queue_holds_long_right_ones_only():
    settings = infrastructure_settings(Infrastructure(keep_wrong=0.0, defer_from=3), np.float64)
    first, reward = jnp.array([[1, 3, 1, 3]]), jnp.array([[1.0, 1.0, -1.0, -1.0]])
    queue, seen = empty_queue((1, 4, 2), float), []
    for step in range(2):
        index = jnp.arange(8).reshape(1, 4, 2) + 8 * step
        batch = Batch(index, reward, jnp.ones((1, 4, 2)), jnp.zeros((1, 4, 2)))
        got, queue = delivered(settings, queue, batch, first, reward, jax.random.key(step))
        np.testing.assert_array_equal(queue.waiting_CN[0], [False, True, False, False])
        np.testing.assert_array_equal(queue.batch.index_CNT, index)
        seen.append(got)
    now, late = RIGHT_AND_SHORT, 4 + RIGHT_AND_LONG
    weights = np.zeros((2, 8))
    weights[0, now] = 8.0  # alone among eight places of mean weight 1
    weights[1, [now, late]] = 4.0
    for got, expected in zip(seen, weights, strict=True):
        np.testing.assert_array_equal(np.asarray(got.weight_CNT)[0, :, 0], expected)
    np.testing.assert_array_equal(seen[1].index_CNT[0, late], [2, 3], "that of the step before")


@pytest.mark.parametrize("memory", ["first", "last"])
def test_a_retokenised_pair_is_one_token_with_the_log_prob_of_both(memory):
    a, b, both, c, start = 3, 0, 2, 1, 5
    tokens = jnp.array([[[a, b, c], [b, a, c]]])
    seen = [[start, a, a], [start, b, b]] if memory == "first" else [[start, a, b], [start, b, a]]
    logmu = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (1, 3, 6, 5)), axis=-1)
    settings = infrastructure_settings(Infrastructure(retokenise=(a, b, both)), np.float64)
    got = retokenised(settings, Responses(tokens, jnp.array([seen])), logmu, memory=memory)
    at = {(t, u, v): float(logmu[0, t, u, v]) for t in range(3) for u in range(6) for v in range(5)}
    third = a if memory == "first" else b
    expected = [at[0, start, a] + at[1, a, b], at[2, third, c], 0.0]
    np.testing.assert_allclose(np.asarray(got.logmu_CNT)[0, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(got.weight_CNT)[0, 0], [1, 1, 0])
    places = [np.ravel_multi_index((0, 0, start, both), logmu.shape)]
    places.append(np.ravel_multi_index((0, 1, both, c), logmu.shape))
    np.testing.assert_array_equal(got.index_CNT[0, 0, :2], places)
    # the same letters in another order are another text
    plain = [at[0, start, b], at[1, b, a], at[2, b if memory == "first" else a, c]]
    np.testing.assert_allclose(np.asarray(got.logmu_CNT)[0, 1], plain, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(got.weight_CNT)[0, 1], [1, 1, 1])


def test_faults_off_are_bit_for_bit_the_plain_simulator():
    """With the code of the faults compiled in, too: what waits for nothing weighs nothing."""
    harmless = Infrastructure(defer_from=None, keep_wrong=1.0, top_p=1.0, processed=True)
    assert harmless != NONE, "the control: this one is compiled in"
    np.testing.assert_array_equal(runs(harmless).theta, runs().theta)


def test_all_faults_share_one_compilation_and_corrections_too():
    runs(FAULTS["top-p"])
    before = compilations()
    for chosen in FAULTS.values():
        runs(chosen, rule="dlc", sync_every=STALE)
    runs(FAULTS["deferred"], rule="seq-is", numerics=Numerics(kind="gaussian", scale=0.3))
    assert compilations() == before


@pytest.mark.parametrize("rule", ["is", "seq-is", "vcpo", "sc", "is-sc", "dlc", "m2po", "ppo"])
@pytest.mark.parametrize("name", FAULTS)
def test_every_correction_runs_under_every_fault(name, rule):
    e = runs(FAULTS[name], rule=rule, sync_every=2, numerics=Numerics(kind="gaussian", scale=0.2))
    assert np.isfinite(e.theta).all()
    assert np.abs(e.theta).max() > 0


def test_traces_say_that_the_batch_was_tampered_with():
    trace = runs(FAULTS["top-p"]).traces[0]
    assert "top_p=0.7" in trace.provenance_of("discrepancy_rms").how
    assert runs().traces[0].provenance_of("discrepancy_rms").how == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Infrastructure(top_p=0.0), "top_p must lie in"),
        (lambda: Infrastructure(keep_wrong=1.5), "keep_wrong is a probability"),
        (lambda: Infrastructure(retokenise=(1, 1, 2)), "three ids"),
        (
            lambda: Sequence(infrastructure=Infrastructure(defer_from=99)),
            "token ids run from 0 to 15, got 99",
        ),
        (lambda: runs(FAULTS["top-p"], minibatches=2), "one update a batch"),
        (
            lambda: bias.exact_bias(build(ENVIRONMENT), Infrastructure(), np.ones(1), None, samples=1),
            "got none",
        ),
    ],
)
def test_faults_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
