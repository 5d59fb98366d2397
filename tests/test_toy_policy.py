"""Drawing and dynamic programming of the toy's policy against sums over every response."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_reference
from tolerances import MONTE_CARLO_Z, algebra

from theory.records import OFF_SUPPORT_BELOW
from toy import observe
from toy.environment import build
from toy.policy import at_tokens, draw, flat_index, log_probs, occupancy, pool, rewards
from toy.settings import Bandit, Sequence

pytestmark = pytest.mark.usefixtures("x64")
MEMORIES = ("first", "last")


def tiny(memory, seed=0):
    return Sequence(
        prompts=2, length=3, vocabulary=4, embedding=3, rank=3, memory=memory, quantile=0.7, seed=seed
    )


def tables(memory, seed=0):
    """Task and the log-probabilities of two policies a few steps apart."""
    task = build(tiny(memory, seed))
    rng = np.random.default_rng(seed)
    return task, *(
        np.asarray(log_probs(task, jnp.asarray(rng.normal(size=task.weights_shape)))) for _ in range(2)
    )


@pytest.mark.parametrize("memory", MEMORIES)
def test_kl_by_dynamic_programming_is_that_over_every_response(memory):
    _, p, q = tables(memory)
    got = float(
        observe.kl_per_token(occupancy(jnp.asarray(p), memory=memory), jnp.asarray(p), jnp.asarray(q))
    )
    C, T = p.shape[:2]
    expected = 0.0
    for c in range(C):
        every = toy_reference.sequence_probabilities(np.exp(p[c]), memory)
        other = toy_reference.sequence_probabilities(np.exp(q[c]), memory)
        expected += sum(x * (np.log(x) - np.log(other[tokens])) for tokens, x in every.items())
    assert got == pytest.approx(expected / (C * T), rel=0, abs=algebra(expected, 10.0))


@pytest.mark.parametrize("memory", MEMORIES)
def test_off_support_share_is_that_over_every_response(memory):
    task, p, _ = tables(memory, seed=3)
    initial = np.log(toy_reference.policy(task, np.zeros(task.weights_shape)))
    rare = initial < np.log(OFF_SUPPORT_BELOW)
    assert rare.any()
    expected = 0.0
    for c in range(p.shape[0]):
        for tokens, x in toy_reference.sequence_probabilities(np.exp(p[c]), memory).items():
            seen = toy_reference.memories(tokens, memory, p.shape[2] - 1)
            expected += x * np.mean([rare[c, t, seen[t], tokens[t]] for t in range(len(tokens))])
    expected /= p.shape[0]
    got = float(observe.off_support(jnp.asarray(initial), jnp.asarray(p), memory=memory))
    assert got == pytest.approx(expected, rel=0, abs=algebra(1.0))


@pytest.mark.parametrize("memory", MEMORIES)
def test_exact_ess_is_that_over_every_action_the_sampler_can_take(memory):
    _, mu, pi = tables(memory)
    first = second = 0.0
    for c in range(mu.shape[0]):
        for tokens, x in toy_reference.sequence_probabilities(np.exp(mu[c]), memory).items():
            seen = toy_reference.memories(tokens, memory, mu.shape[2] - 1)
            w = [np.exp(pi[c, t, seen[t], a] - mu[c, t, seen[t], a]) for t, a in enumerate(tokens)]
            first += x * np.mean(w)
            second += x * np.mean(np.square(w))
    expected = (first / mu.shape[0]) ** 2 / (second / mu.shape[0])
    table = jnp.asarray(mu)
    got = float(observe.exact_ess(occupancy(table, memory=memory), table, jnp.asarray(pi) - table))
    assert got == pytest.approx(expected, rel=algebra(10.0))


@pytest.mark.parametrize("memory", MEMORIES)
def test_drawn_responses_follow_the_policy(memory):
    _, p, _ = tables(memory)
    n = 40_000
    responses = draw(jnp.asarray(p), jax.random.key(0), samples=n, memory=memory)
    tokens = np.asarray(responses.tokens_CNT)
    for c in range(p.shape[0]):
        expected = toy_reference.sequence_probabilities(np.exp(p[c]), memory)
        seen, counts = np.unique(tokens[c], axis=0, return_counts=True)
        share = {tuple(map(int, s)): k / n for s, k in zip(seen, counts, strict=True)}
        for sequence, x in expected.items():
            # one count of slack: where n x is of order 1 the normal limit has not set in
            error = MONTE_CARLO_Z * np.sqrt(x * (1 - x) / n) + 1 / n
            assert abs(share.get(sequence, 0.0) - x) <= error
    expected_memory = [toy_reference.memories(s, memory, p.shape[2] - 1) for s in tokens[0, :50]]
    np.testing.assert_array_equal(responses.memory_CNT[0, :50], expected_memory)


def test_actions_of_no_probability_are_never_drawn():
    logits = np.full((1, 1, 1, 5), -np.inf)
    logits[..., [1, 3]] = 0.0
    table = jnp.asarray(logits - np.log(2))
    tokens = draw(table, jax.random.key(1), samples=10_000, memory="first").tokens_CNT
    assert set(np.unique(tokens)) == {1, 3}


@pytest.mark.parametrize("memory", MEMORIES)
def test_rewards_follow_the_score_of_the_drawn_tokens(memory):
    task, p, _ = tables(memory)
    responses = draw(jnp.asarray(p), jax.random.key(2), samples=20, memory=memory)
    index = flat_index(responses, p.shape)
    got = np.asarray(rewards(jax.tree.map(jnp.asarray, task), responses, index))
    for c, n in np.ndindex(got.shape):
        tokens = np.asarray(responses.tokens_CNT[c, n])
        if memory == "first":
            assert got[c, n] == task.reward_CV[c, tokens[0]]
        else:
            seen = toy_reference.memories(tokens, memory, p.shape[2] - 1)
            total = sum(task.score_CTUV[c, t, seen[t], a] for t, a in enumerate(tokens))
            assert got[c, n] == (1.0 if total >= task.threshold_C[c] else -1.0)


def test_pooling_is_the_transpose_of_looking_up():
    _, p, _ = tables("first")
    responses = draw(jnp.asarray(p), jax.random.key(3), samples=30, memory="first")
    index = flat_index(responses, p.shape)
    rng = np.random.default_rng(0)
    table, values = rng.normal(size=p.shape), rng.normal(size=index.shape)
    left = np.sum(np.asarray(at_tokens(jnp.asarray(table), index)) * values)
    right = np.sum(table * np.asarray(pool(jnp.asarray(values), index, p.shape)))
    assert left == pytest.approx(right, rel=0, abs=algebra(np.abs(values).sum() * np.abs(table).max()))


def test_accuracy_by_the_first_token_agrees_with_responses_drawn():
    task, p, _ = tables("first")
    exact = float(observe.accuracy(task, jnp.asarray(p), jax.random.key(0), memory="first"))
    n = 20_000
    responses = draw(jnp.asarray(p), jax.random.key(4), samples=n, memory="first")
    right = (
        np.asarray(rewards(jax.tree.map(jnp.asarray, task), responses, flat_index(responses, p.shape))) > 0
    )
    error = np.sqrt((right.var(axis=1) / n).mean() / right.shape[0])
    assert abs(right.mean() - exact) < MONTE_CARLO_Z * error


def test_success_is_as_rare_as_the_quantile_says():
    for seed in range(5):
        environment = Sequence(quantile=0.93, seed=seed)
        task = build(environment)
        initial = np.exp(np.asarray(log_probs(task, jnp.zeros(task.weights_shape))))[:, 0, -1]
        right = task.reward_CV > 0
        share = (initial * right).sum(-1)
        worst = np.where(right, initial, 0).max(-1)
        # the atom that crosses the quantile counts as right: at least 1 - q, and without it less
        assert (share >= 1 - 0.93 - algebra(1.0)).all()
        assert (share - worst <= 1 - 0.93).all()


def test_equal_settings_are_one_environment_and_another_seed_is_another():
    a, b, c = (build(Sequence(seed=s)) for s in (7, 7, 8))
    assert a is b
    assert not np.array_equal(a.logits_CTUV, c.logits_CTUV)


def test_bandit_takes_the_tables_it_is_given():
    task = build(Bandit(prompts=1, arms=3, logits=((0.0, 1.0, 2.0),), rewards=((1.0, 0.4, -1.0),)))
    np.testing.assert_array_equal(task.logits_CTUV[0, 0, 0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(task.reward_CV, [[1.0, 0.4, -1.0]])
    # parameters are the logits themselves
    moved = np.asarray(log_probs(task, jnp.array([[1.0, 0.0, -1.0]])))[0, 0, 0]
    np.testing.assert_allclose(moved, np.log(np.full(3, 1 / 3)), rtol=0, atol=algebra(2.0))
