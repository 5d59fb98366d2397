"""The compiled loop of sampler and trainer: one function for every correction, all steps and many seeds.

Shapes are static: prompts, length, vocabulary, features, samples, steps, seeds, minibatches. Everything
else (the environment's numbers, lr, correction, clip bounds, thresholds, sync period, noise) is traced, so
a new value recompiles nothing. Cells are looped over in Python, not vmapped: under vmap a switch runs all
its branches. Shape suffixes: see `toy.task`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from theory.advantage import Baseline, advantages
from theory.corrections import Logps
from theory.resync import should_resync
from toy.engine import EngineSettings, noise, sampled_log_probs
from toy.families import Family, RuleSettings
from toy.keys import engine_key, key_of
from toy.observe import observe, token_columns
from toy.policy import draw, flat_index, log_probs, rewards
from toy.settings import Memory
from toy.task import Task
from toy.update import Batch, update

BASELINES: tuple[Baseline, ...] = ("none", "global", "group", "group-std")
"""Order of the traced index."""

COMPILER_OPTIONS = {"xla_backend_optimization_level": 1}
"""Level 1 compiles in a third of the time of the default, 3, and runs as fast (setting S, two cores: 6.6 s
against 17.6 s of CPU to compile, .39 s to run in both): the time goes into look-ups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """What compiles anew when it changes, beside the shapes of the task."""

    memory: Memory
    samples: int
    steps: int
    minibatches: int
    seeds: int
    families: tuple[Family, ...]
    tokens: bool
    """Report every drawn token"""


class Settings(NamedTuple):
    """What does not: the numbers of an experiment, traced."""

    lr: ArrayLike
    sync_every: ArrayLike
    branch: ArrayLike
    baseline: ArrayLike
    rule: RuleSettings
    engine: EngineSettings


class State(NamedTuple):
    """Carried from step to step."""

    weights_DV: jax.Array
    sampler_DV: jax.Array
    """Weights the sampler holds"""
    since: jax.Array
    """Steps since the last sync; 0: the sampler has the trainer's weights"""


class Reported(NamedTuple):
    """What every step reports; leaves gain leading axes (S, K)."""

    measures: dict[str, jax.Array]
    weights_DV: jax.Array
    """After the update"""
    sampler_DV: jax.Array
    """Held by the sampler when it drew the batch"""
    tokens: dict[str, jax.Array]


def _train(
    task: Task, settings: Settings, static: Static, state: State, mu: jax.Array, pi_s: jax.Array, batch: Batch
) -> jax.Array:
    """Weights after the updates of one batch; minibatches split the responses of every prompt."""
    step = partial(update, families=static.families, branch=settings.branch, settings=settings.rule)
    if static.minibatches == 1:
        gradient, factor = step(task, state.weights_DV, mu, pi_s, None, batch)
        return state.weights_DV + settings.lr * factor * gradient
    old = log_probs(task, state.weights_DV)

    def split(x: jax.Array) -> jax.Array:
        parts = x.reshape(x.shape[0], static.minibatches, -1, *x.shape[2:])
        return jnp.moveaxis(parts, 1, 0)

    def one(weights_DV: jax.Array, part: Batch):
        gradient, factor = step(task, weights_DV, mu, pi_s, old, part)
        return weights_DV + settings.lr * factor * gradient, None

    return jax.lax.scan(one, state.weights_DV, Batch(*map(split, batch)))[0]


def _step(
    task: Task,
    settings: Settings,
    static: Static,
    frozen: jax.Array,
    key: jax.Array,
    state: State,
    k: jax.Array,
) -> tuple[State, Reported]:
    """One step: draw, update, measure at the new weights, sync where the rule or the schedule says so."""
    draw_key, noise_key, measure_key = jax.random.split(jax.random.fold_in(key, k), 3)
    pi_s = log_probs(task, state.sampler_DV)
    table = jax.lax.cond(
        settings.engine.fresh,
        lambda: noise(settings.engine, noise_key, pi_s.shape, pi_s.dtype),
        lambda: frozen,
    )
    mu = sampled_log_probs(pi_s, table, settings.engine)
    responses = draw(mu, draw_key, samples=static.samples, memory=static.memory)
    index_CNT = flat_index(responses, mu.shape)
    reward_CN = rewards(task, responses, index_CNT)
    choices = [partial(advantages, baseline=name) for name in BASELINES]
    advantage_CN = jax.lax.switch(settings.baseline, choices, reward_CN)
    weights_DV = _train(task, settings, static, state, mu, pi_s, Batch(index_CNT, advantage_CN))

    tables = Logps(mu, pi_s, log_probs(task, weights_DV))
    measures = observe(task, tables, index_CNT, reward_CN, measure_key, memory=static.memory)
    since = state.since + 1
    ess = jnp.where(settings.rule.resync_on_sequence, measures["ess_sequence"], measures["ess_token"])
    due = since >= settings.sync_every
    sync = should_resync(ess, settings.rule.resync_below, steps_since=since, sync_every=settings.sync_every)
    measures |= {
        "update_norm": jnp.linalg.norm(weights_DV - state.weights_DV),
        "lag_norm": jnp.linalg.norm(weights_DV - state.sampler_DV),
        "resynced": sync & ~due,
        "synced": state.since == 0,
    }
    tokens = {}
    if static.tokens:
        tokens = token_columns(tables, responses, index_CNT)
        tokens |= {"advantage": advantage_CN, "reward": reward_CN, "lag": state.since}
    after = State(
        weights_DV,
        jnp.where(sync, weights_DV, state.sampler_DV),
        jnp.where(sync, jnp.zeros_like(since), since),
    )
    return after, Reported(measures, weights_DV, state.sampler_DV, tokens)


@partial(jax.jit, static_argnames="static", compiler_options=COMPILER_OPTIONS)
def simulate(
    task: Task, settings: Settings, environment_words: jax.Array, run_words: jax.Array, *, static: Static
) -> Reported:
    """All steps of all seeds, which are given by their `toy.keys.words`; the leaves lead with (S, K)."""
    dtype = task.logits_CTUV.dtype
    # frozen noise belongs to the engine: the same for every seed
    frozen = noise(settings.engine, engine_key(environment_words), task.logits_CTUV.shape, dtype)
    start = jnp.zeros(task.weights_shape, dtype)

    run_key = key_of(run_words)

    def one(seed: jax.Array) -> Reported:
        body = partial(_step, task, settings, static, frozen, jax.random.fold_in(run_key, seed))
        state = State(start, start, jnp.zeros((), jnp.int32))
        return jax.lax.scan(body, state, jnp.arange(static.steps))[1]

    return jax.vmap(one)(jnp.arange(static.seeds))
