"""Sums over everything the toy's sampler can draw, of whole runs: what no batch shows without error.

Suffixes: K steps, S training seeds; the rest as in `toy.task`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from theory.arrays import log_softmax
from toy.engine import EngineSettings, engine_settings, sampled_log_probs
from toy.ensemble import Ensemble
from toy.environment import build, memory_of
from toy.keys import words
from toy.policy import log_probs, occupancy
from toy.settings import Memory
from toy.task import Task
from validation.gather.frozen_noise import frozen_noise
from validation.plan import IS, NOISY


class LagSpread(NamedTuple):
    """How much the variance of the log-ratio differs between prefixes, arrays (K, S)."""

    mean: np.ndarray
    """Mean over the sampler's prefixes of the variance of log w at the prefix, nats^2"""
    relative: np.ndarray
    """Variance of that over its squared mean: nu of a gamma mixture of variances"""


@partial(jax.jit, static_argnames="memory")
def _lag_spread(
    task: Task, theta_KSDV: jax.Array, sampler_KSDV: jax.Array, *, memory: Memory
) -> tuple[jax.Array, jax.Array]:
    def one(theta_DV: jax.Array, sampler_DV: jax.Array) -> tuple[jax.Array, jax.Array]:
        pi_s = log_probs(task, sampler_DV)
        log_w, p = log_probs(task, theta_DV) - pi_s, jnp.exp(pi_s)
        mean_CTU = jnp.sum(p * log_w, -1)
        variance_CTU = jnp.sum(p * log_w**2, -1) - mean_CTU**2
        visits_CTU = occupancy(pi_s, memory=memory)
        share_CTU = visits_CTU / jnp.sum(visits_CTU)
        mean = jnp.sum(share_CTU * variance_CTU)
        return mean, jnp.sum(share_CTU * variance_CTU**2) / mean**2 - 1

    return jax.lax.map(lambda pair: jax.vmap(one)(*pair), (theta_KSDV, sampler_KSDV))


def lag_spread(runs: Ensemble) -> LagSpread:
    """Variance of the lag ratio prefix by prefix, under an exact engine."""
    environment = runs.experiment.environment
    with jax.enable_x64(True):
        task = build(environment).cast(np.float64)
        found = _lag_spread(task, *_by_step(runs), memory=memory_of(environment))
    return LagSpread(*(np.asarray(x) for x in found))


@partial(jax.jit, static_argnames="memory")
def _scaled_discrepancy(
    task: Task,
    sampler_KSDV: jax.Array,
    engine: EngineSettings,
    environment_words: jax.Array,
    *,
    memory: Memory,
) -> jax.Array:
    frozen = frozen_noise(engine, environment_words, task.logits_CTUV.shape)

    def entropy(logp_CTUV: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.exp(logp_CTUV) * logp_CTUV, -1, keepdims=True)

    start = entropy(log_softmax(task.logits_CTUV))

    def one(sampler_DV: jax.Array) -> jax.Array:
        pi_s = log_probs(task, sampler_DV)
        mu = sampled_log_probs(pi_s, frozen * entropy(pi_s) / start, engine)
        square_CTU = jnp.sum(jnp.exp(mu) * (mu - pi_s) ** 2, -1)
        visits_CTU = occupancy(mu, memory=memory)
        return jnp.sqrt(jnp.sum(visits_CTU * square_CTU) / jnp.sum(visits_CTU))

    return jax.lax.map(jax.vmap(one), sampler_KSDV)


def entropy_scaled_discrepancy(runs: Ensemble) -> np.ndarray:
    """Rms of log(mu/pi_s), nats, (K, S), had the engine's noise shrunk with the entropy of each prefix.

    Along the path of the runs as they were: what a monitor would read of an engine whose noise does depend on
    the policy.
    """
    environment = runs.experiment.environment
    with jax.enable_x64(True):
        task = build(environment).cast(np.float64)
        engine = engine_settings(runs.experiment.numerics, np.float64)
        found = _scaled_discrepancy(
            task, _by_step(runs)[1], engine, words(environment.seed), memory=memory_of(environment)
        )
    return np.asarray(found)


def _by_step(runs: Ensemble) -> tuple[np.ndarray, np.ndarray]:
    trainer, sampler = (np.moveaxis(x, 0, 1).astype(np.float64) for x in (runs.theta, runs.theta_sampler))
    return trainer, sampler


EXACT: Mapping[str, Callable[[Ensemble], dict[str, np.ndarray]]] = MappingProxyType(
    {
        IS: lambda runs: lag_spread(runs)._asdict(),
        NOISY: lambda runs: {"discrepancy if noise scaled with entropy": entropy_scaled_discrepancy(runs)},
    }
)
"""Exact sums over the runs of a cell, by its name: each (K, S)"""
