"""From an environment's settings to its numbers. Everything here depends on the environment's seed alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from theory.arrays import log_softmax
from theory.records import OFF_SUPPORT_BELOW
from toy.exits import exit_task
from toy.keys import key_of
from toy.policy import at_tokens, draw, flat_index
from toy.settings import Bandit, Exit, Memory, Sequence
from toy.task import Task

THRESHOLD_DRAWS = 512
"""Initial responses per prompt that fix the threshold of success where it is not exact (memory 'last')."""

Environment = Sequence | Exit | Bandit

RARE_SCORE = -3.0
"""Score of a token the initial policy all but never draws: leaving its support must not pay."""


@functools.lru_cache(maxsize=64)
def build(environment: Environment) -> Task:
    """Numbers of an environment, float64; the same object for equal settings.

    Raises
    ------
    ValueError
        If the environment belongs to another engine.
    """
    match environment:
        case Sequence():
            return _sequence(environment)
        case Exit():
            return exit_task(environment)
        case Bandit():
            return _bandit(environment)
        case _:
            raise ValueError(
                f"the toy runs toy.settings.Sequence, Exit or Bandit, got {type(environment).__name__}; "
                "an experiment of the real engine goes to real.loop.run"
            )


def memory_of(environment: Environment) -> Memory:
    """Memory of the environment's policy; a bandit has one token and so nothing to remember."""
    if isinstance(environment, Exit):
        return "last"
    return environment.memory if isinstance(environment, Sequence) else "first"


def _sequence(env: Sequence) -> Task:
    rng = np.random.default_rng(env.seed)
    C, T, V, D = env.prompts, env.length, env.vocabulary, env.embedding
    U = V + 1
    by_prompt, by_position, by_memory = (
        rng.normal(size=(C, D)),
        rng.normal(size=(T, D)),
        rng.normal(size=(U, D)),
    )
    by_state = rng.normal(size=(C, T, U, D))
    # weights of the four parts: states share most of their features, so one update moves many of them
    features = 0.6 * by_prompt[:, None, None] + 0.4 * by_position[:, None] + by_memory + 0.5 * by_state
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    taste = (
        0.6 * rng.normal(size=(C, T, U, V))
        + 0.6 * rng.normal(size=(U, V))
        + 0.5 * rng.normal(size=(C, 1, 1, V))
    )
    scale = env.beta * np.exp(env.het * rng.normal(size=(C, T, U, 1)) - env.het**2 / 2)
    logits = scale * taste
    score_UV = rng.normal(size=(U, V)) + 0.5 * rng.normal(size=(1, V))
    score = np.broadcast_to((score_UV + 0.7 * rng.normal(size=(C, U, V)))[:, None], logits.shape)
    logp = log_softmax(logits)
    score = np.where(logp < np.log(OFF_SUPPORT_BELOW), RARE_SCORE, score)
    basis = np.linalg.svd(rng.normal(size=(env.rank, V)), full_matrices=False)[2]
    projector = np.sqrt(V / env.rank) * basis.T @ basis if env.rank < V else np.eye(V)
    if T == 1:
        # one position has one state: the beginning
        features, logits, score = (x[:, :, -1:] for x in (features, logits, score))
        logp = log_softmax(logits)
    if env.memory == "first":
        first = score[:, 0, -1]
        reward = _reward_from(first, _quantile(first, logp[:, 0, -1], env.quantile))
        return Task(features, logits, projector, reward_CV=reward)
    threshold = _sampled_quantile(env, logp, score)
    return Task(features, logits, projector, score_CTUV=score, threshold_C=threshold)


def _bandit(env: Bandit) -> Task:
    rng = np.random.default_rng(env.seed)
    C, V = env.prompts, env.arms
    taste, spread, score = rng.normal(size=(C, V)), rng.normal(size=(C, 1)), rng.normal(size=(C, V))
    logits = env.beta * np.exp(env.het * spread - env.het**2 / 2) * taste
    if env.logits is not None:
        logits = np.asarray(env.logits, dtype=float)
    if env.rewards is not None:
        reward = np.asarray(env.rewards, dtype=float)
    else:
        reward = _reward_from(score, _quantile(score, log_softmax(logits), env.quantile))
    features = np.eye(C)[:, None, None]
    return Task(features, logits[:, None, None], np.eye(V), reward_CV=reward)


def _reward_from(score_CV: np.ndarray, threshold_C: np.ndarray) -> np.ndarray:
    return np.where(score_CV >= threshold_C[:, None], 1.0, -1.0)


def _quantile(score_CV: np.ndarray, logp_CV: np.ndarray, quantile: float) -> np.ndarray:
    """Smallest score of each prompt that the share `quantile` of the initial policy does not exceed."""
    order = np.argsort(score_CV, axis=-1)
    below = np.cumsum(np.take_along_axis(np.exp(logp_CV), order, -1), axis=-1)
    # the last cumulative share may round below the quantile: then the best token alone is right
    place = np.minimum((below < quantile).sum(-1), score_CV.shape[-1] - 1)
    return np.take_along_axis(np.sort(score_CV, axis=-1), place[:, None], -1)[:, 0]


def _sampled_quantile(env: Sequence, logp: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Quantile of the summed score over initial responses; sums over a chain have no exact one."""
    key = jax.random.fold_in(key_of(env.seed), THRESHOLD_DRAWS)
    responses = draw(jnp.asarray(logp), key, samples=THRESHOLD_DRAWS, memory=env.memory)
    index = flat_index(responses, (env.prompts, env.length, env.vocabulary + 1, env.vocabulary))
    return np.quantile(np.asarray(at_tokens(jnp.asarray(score), index).sum(-1)), env.quantile, axis=1)
