"""One update of the toy under every correction: against plain loops on the same draws, and on average."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_reference
from tolerances import MONTE_CARLO_Z, algebra

from theory.corrections import CORRECTIONS, PPO_REFERENCE, Correction, Logps, correction
from theory.gradient import expected_gradient
from toy.environment import build
from toy.families import FAMILIES, branches_for, family_of, rule_of, rule_settings
from toy.loop import COMPILER_OPTIONS
from toy.policy import Responses, draw, flat_index, log_probs
from toy.settings import Bandit, Memory, Sequence
from toy.task import Task
from toy.update import Batch, update

pytestmark = pytest.mark.usefixtures("x64")

CLIPS = {
    "truncate": {"high": 1.5},
    "mask": {"clip": "mask", "low": 0.7, "high": 1.4},
    "ppo": {"clip": "ppo", "low": 0.8, "high": 1.2},
}
RULES: dict[str, Correction] = (
    {name: rule for name, rule in CORRECTIONS.items() if name != "ppo"}
    # the table's bounds are wide for so few draws; the same families, tighter
    | {"vcpo": correction("vcpo", high=2.0), "dlc": correction("dlc", high=2.0)}
    | {f"ppo-{ref}": correction("ppo", ppo_ref=ref) for ref in PPO_REFERENCE}
    | {
        f"dlc-{center}-{clip}": correction("dlc", center=center, **CLIPS[clip])
        for center in ("matched", "form-i", "numerics")
        for clip in CLIPS
    }
    | {"lag-is": correction("is", ratio="lag"), "tis-centred": correction("tis", center="matched")}
)


@functools.cache
def world(memory: Memory) -> tuple[Task, toy_reference.Tables, Responses, np.ndarray, np.ndarray]:
    """Task, policies far enough apart for the clips to bind, weights now, drawn tokens, their advantages."""
    environment = Sequence(prompts=2, length=3, vocabulary=4, embedding=3, rank=3, memory=memory, seed=1)
    # an update knows no rewards: without them both memories have the same structure and compile once
    task = build(environment)._replace(reward_CV=None, score_CTUV=None, threshold_C=None)
    rng = np.random.default_rng(5)
    start = 0.4 * rng.normal(size=task.weights_shape)
    steps = [start + k * rng.normal(size=task.weights_shape) for k in (0, 2.5, 0.7)]
    pi_s, pi, pi_old = (toy_reference.policy(task, w) for w in steps)
    mu = np.exp(np.log(pi_s) + 0.8 * rng.normal(size=pi_s.shape))
    mu /= mu.sum(-1, keepdims=True)
    responses = draw(jnp.asarray(np.log(mu)), jax.random.key(0), samples=24, memory=environment.memory)
    advantage = rng.normal(size=(2, 24)) + 0.3
    return task, toy_reference.Tables(mu, pi_s, pi, pi_old), responses, advantage, steps[1]


@functools.partial(jax.jit, static_argnames="families", compiler_options=COMPILER_OPTIONS)
def compiled(task, weights, mu, pi_s, pi_old, batch, branch, settings, optimal=False, *, families=FAMILIES):
    chosen = {"families": families, "branch": branch, "settings": settings, "optimal_baseline": optimal}
    return update(task, weights, mu, pi_s, pi_old, batch, **chosen)


def by_toy(rule: Correction, memory: Memory, *, optimal: bool = False):
    task, tables, responses, advantage, weights = world(memory)
    families = branches_for(rule)
    batch = Batch(flat_index(responses, tables.mu.shape), jnp.asarray(advantage))
    logs = [jnp.asarray(np.log(x)) for x in (tables.mu, tables.pi_s, tables.pi_old)]
    branch = families.index(family_of(rule))
    settings = rule_settings(rule, jnp.float64)
    return compiled(task, weights, *logs, batch, branch, settings, optimal, families=families)


@pytest.mark.parametrize("memory", ["first", "last"])
@pytest.mark.parametrize("name", RULES)
def test_update_equals_plain_loops_over_the_same_draws(name, memory):
    rule = RULES[name]
    task, tables, responses, advantage, _ = world(memory)
    tokens = np.asarray(responses.tokens_CNT)
    expected = toy_reference.gradient(rule, task, tables, tokens, advantage, memory)
    got, factor = by_toy(rule, memory)
    # weights of whole responses reach some hundreds here
    np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(expected, 500.0))
    ess = toy_reference.own_ess(rule, tables, tokens, memory) if rule.lr_power else 1.0
    assert float(factor) == pytest.approx(ess**rule.lr_power, rel=algebra(10.0))


@pytest.mark.parametrize("memory", ["first", "last"])
@pytest.mark.parametrize("name", ["vcpo", "is", "sc"])
def test_the_optimal_baseline_is_the_groups_weighted_reward_response_by_response(name, memory):
    rule = RULES[name]
    task, tables, responses, reward, _ = world(memory)
    tokens = np.asarray(responses.tokens_CNT)
    start = tables.pi.shape[2] - 1
    advantage = np.zeros_like(reward)
    for c in range(tokens.shape[0]):
        weight = []
        for n in range(tokens.shape[1]):
            states = [(c, t, u) for t, u in enumerate(toy_reference.memories(tokens[c, n], memory, start))]
            ratio, score = 1.0, np.zeros(task.weights_shape)
            for state, a in zip(states, tokens[c, n], strict=True):
                ratio *= tables.pi[state][a] / tables.mu[state][a]
                in_logits = np.eye(tables.pi.shape[-1])[a] - tables.pi[state]
                score += np.outer(task.features_CTUD[state], task.projector_VV @ in_logits)
            weight.append(ratio**2 * (score**2).sum())
        advantage[c] = reward[c] - np.average(reward[c], weights=weight)
    expected = toy_reference.gradient(rule, task, tables, tokens, advantage, memory)
    got, _ = by_toy(rule, memory, optimal=True)
    np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(expected, 500.0))
    assert np.abs(got - by_toy(rule, memory)[0]).max() > 1e-3


def test_clips_of_this_file_bind_somewhere():
    """Otherwise the comparison above would not see a missing clip."""
    for name, rule in RULES.items():
        if rule.clip == "none":
            continue
        task, tables, responses, advantage, _ = world("first")
        tokens = np.asarray(responses.tokens_CNT)
        free = Correction(cite="-", ratio=rule.ratio, level=rule.level, center=rule.center)
        clipped = toy_reference.gradient(rule, task, tables, tokens, advantage, "first")
        assert not np.allclose(
            clipped, toy_reference.gradient(free, task, tables, tokens, advantage, "first")
        ), name


@pytest.mark.parametrize("name", ["pg", "sc", "is", "tis", "is-sc", "dlc", "icepop"])
def test_update_averages_to_the_enumerated_gradient(name):
    """Many draws of a one-step bandit: the expectation over the engine is that over all its actions."""
    rule = RULES[name]
    rng = np.random.default_rng(2)
    task = build(Bandit(prompts=1, arms=5, rewards=(tuple(rng.normal(size=5) + 0.5),), seed=4))
    pi_s = log_probs(task, jnp.zeros((1, 5)))
    weights = jnp.asarray(0.5 * rng.normal(size=(1, 5)))
    pi = log_probs(task, weights)
    mu = jax.nn.log_softmax(pi_s + 0.5 * rng.normal(size=pi_s.shape))
    batches, n = 200, 2_000

    def one(key):
        responses = draw(mu, key, samples=n, memory="first")
        advantage = jnp.asarray(task.reward_CV)[0, responses.tokens_CNT[..., 0]]
        batch = Batch(flat_index(responses, mu.shape), advantage)
        settings = rule_settings(rule, jnp.float64)
        families, branch = (family_of(rule),), jnp.asarray(0)
        return update(
            task, weights, mu, pi_s, None, batch, families=families, branch=branch, settings=settings
        )[0]

    got = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), batches)))[:, 0]
    row = Logps(*(np.asarray(x[0, 0, 0]) for x in (mu, pi_s, pi)))
    expected = expected_gradient(rule, row, task.reward_CV[0])
    z = (got.mean(0) - expected) / (got.std(0, ddof=1) / np.sqrt(batches))
    assert np.abs(z).max() < MONTE_CARLO_Z, z
    assert np.abs(expected).max() > 2 * MONTE_CARLO_Z * (got.std(0) / np.sqrt(batches)).max()


def test_centring_changes_nothing_on_a_shared_prefix_with_a_group_baseline():
    """The lemma of claim `centering`, draw by draw."""
    task = build(Bandit(prompts=2, arms=6, seed=3))
    mu = log_probs(task, jnp.asarray(np.random.default_rng(0).normal(size=(2, 6))))
    responses = draw(mu, jax.random.key(0), samples=32, memory="first")
    reward = jnp.asarray(task.reward_CV)[jnp.arange(2)[:, None], responses.tokens_CNT[..., 0]]
    updates = {}
    for baseline in ("group", "none"):
        advantage = reward - reward.mean(-1, keepdims=True) if baseline == "group" else reward
        batch = Batch(flat_index(responses, mu.shape), advantage)
        for name in ("pg", "sc"):
            rule = RULES[name]
            families = (family_of(RULES["pg"]), family_of(RULES["sc"]))
            branch, settings = families.index(family_of(rule)), rule_settings(rule, jnp.float64)
            start = jnp.zeros((2, 6))
            updates[name, baseline], _ = compiled(
                task, start, mu, mu, mu, batch, branch, settings, families=families
            )
    np.testing.assert_allclose(updates["pg", "group"], updates["sc", "group"], rtol=0, atol=algebra(1.0))
    assert np.abs(updates["pg", "none"] - updates["sc", "none"]).max() > 1e-2


def test_every_correction_of_the_table_is_a_branch():
    for rule in RULES.values():
        assert branches_for(rule) is FAMILIES


def test_a_correction_outside_the_table_gets_a_function_of_its_own():
    rule = Correction(cite="-", ratio="lag", level="geometric", clip="mask", low=0.5, high=2.0)
    assert branches_for(rule) == (family_of(rule),)
    got, _ = by_toy(rule, "first")
    assert np.isfinite(np.asarray(got)).all()


def test_a_family_and_its_numbers_make_the_correction_again():
    for name, rule in RULES.items():
        again = rule_of(family_of(rule), rule_settings(rule, jnp.float64))
        assert (again.ratio, again.level, again.center) == (rule.ratio, rule.level, rule.center), name
        assert (again.clip == rule.clip) or (rule.clip == "none" and np.isinf(again.high)), name
