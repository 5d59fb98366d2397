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
from toy.engine import KINDS, EngineSettings, noise, sampled_log_probs, weight_noise
from toy.families import Family, RuleSettings
from toy.infrastructure import (
    InfrastructureSettings,
    Queue,
    delivered,
    empty_queue,
    retokenised,
    truncated,
)
from toy.keys import engine_key, key_of
from toy.observe import observe, token_columns
from toy.policy import draw, flat_index, log_probs, rewards
from toy.settings import Memory
from toy.task import Task
from toy.update import Batch, update

BASELINES: tuple[Baseline, ...] = ("none", "global", "group", "group-std", "off-policy-optimal")
"""Order of the traced index; the last is computed with the update, for it depends on the weights."""

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
    infrastructure: bool
    """Whether any of its toggles is on"""


class Settings(NamedTuple):
    """What does not: the numbers of an experiment, traced."""

    lr: ArrayLike
    sync_every: ArrayLike
    branch: ArrayLike
    baseline: ArrayLike
    rule: RuleSettings
    engine: EngineSettings
    infrastructure: InfrastructureSettings


class State(NamedTuple):
    """Carried from step to step."""

    weights_DV: jax.Array
    sampler_DV: jax.Array
    """Weights the sampler holds"""
    since: jax.Array
    """Steps since the last sync; 0: the sampler has the trainer's weights"""
    queue: Queue | None = None
    """Responses held back, where the infrastructure can"""


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
    step = partial(
        update,
        families=static.families,
        branch=settings.branch,
        settings=settings.rule,
        optimal_baseline=settings.baseline == len(BASELINES) - 1,
    )
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

    return jax.lax.scan(one, state.weights_DV, jax.tree.map(split, batch))[0]


class Frozen(NamedTuple):
    """What belongs to the engine, the same for every seed and step."""

    logit_noise_CTUV: jax.Array
    key: jax.Array


def _noise(
    task: Task, engine: EngineSettings, frozen: Frozen, key: jax.Array, state: State, k: jax.Array
) -> jax.Array:
    """Draw what the engine adds to the sampler's logits at this step.

    Fresh logit noise is drawn each step, fresh weight noise at each sync.
    """

    def fresh_key(step: jax.Array) -> jax.Array:
        return jax.random.split(jax.random.fold_in(key, step), 3)[1]

    def of_weights() -> jax.Array:
        noise_key = jax.lax.cond(
            engine.fresh, lambda: fresh_key(k.astype(state.since.dtype) - state.since), lambda: frozen.key
        )
        return weight_noise(engine, noise_key, task, state.sampler_DV)

    def of_logits() -> jax.Array:
        table = frozen.logit_noise_CTUV
        return jax.lax.cond(
            engine.fresh, lambda: noise(engine, fresh_key(k), table.shape, table.dtype), lambda: table
        )

    return jax.lax.cond(engine.kind == KINDS.index("weight-noise"), of_weights, of_logits)


def _step(
    task: Task,
    settings: Settings,
    static: Static,
    frozen: Frozen,
    key: jax.Array,
    state: State,
    k: jax.Array,
) -> tuple[State, Reported]:
    """One step: draw, update, measure at the new weights, sync where the rule or the schedule says so."""
    draw_key, _, measure_key = jax.random.split(jax.random.fold_in(key, k), 3)
    pi_s = log_probs(task, state.sampler_DV)
    mu = sampled_log_probs(pi_s, _noise(task, settings.engine, frozen, key, state, k), settings.engine)
    # the distribution drawn from, and the one the engine reports
    sampled, mu = truncated(settings.infrastructure, mu) if static.infrastructure else (mu, mu)
    responses = draw(sampled, draw_key, samples=static.samples, memory=static.memory)
    index_CNT = flat_index(responses, mu.shape)
    reward_CN = rewards(task, responses, index_CNT)
    choices = [partial(advantages, baseline=name) for name in BASELINES[:-1]]
    choices.append(partial(advantages, baseline="none"))
    advantage_CN = jax.lax.switch(settings.baseline, choices, reward_CN)
    batch, queue = Batch(index_CNT, advantage_CN), state.queue
    if queue is not None:
        chosen, first_CN = settings.infrastructure, responses.tokens_CNT[..., 0]
        batch = retokenised(chosen, responses, mu, memory=static.memory)._replace(advantage_CN=advantage_CN)
        filter_key = jax.random.fold_in(measure_key, 1)
        batch, queue = delivered(chosen, queue, batch, first_CN, reward_CN, filter_key)
    weights_DV = _train(task, settings, static, state, mu, pi_s, batch)

    tables = Logps(mu, pi_s, log_probs(task, weights_DV))
    measures = observe(
        task, tables, index_CNT, reward_CN, measure_key, memory=static.memory, sampled_CTUV=sampled
    )
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
        queue,
    )
    return after, Reported(measures, weights_DV, state.sampler_DV, tokens)


@partial(jax.jit, static_argnames="static", compiler_options=COMPILER_OPTIONS)
def simulate(
    task: Task, settings: Settings, environment_words: jax.Array, run_words: jax.Array, *, static: Static
) -> Reported:
    """All steps of all seeds, which are given by their `toy.keys.words`; the leaves lead with (S, K)."""
    dtype = task.logits_CTUV.dtype
    frozen_key = engine_key(environment_words)
    frozen = Frozen(noise(settings.engine, frozen_key, task.logits_CTUV.shape, dtype), frozen_key)
    C, T, _, _ = task.logits_CTUV.shape
    queue = empty_queue((C, static.samples, T), dtype) if static.infrastructure else None
    start = jnp.zeros(task.weights_shape, dtype)

    run_key = key_of(run_words)

    def one(seed: jax.Array) -> Reported:
        body = partial(_step, task, settings, static, frozen, jax.random.fold_in(run_key, seed))
        state = State(start, start, jnp.zeros((), jnp.int32), queue)
        return jax.lax.scan(body, state, jnp.arange(static.steps))[1]

    return jax.vmap(one)(jnp.arange(static.seeds))
