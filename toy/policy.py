"""The toy's policy as tables over states: log-probabilities, responses drawn, occupancies summed exactly.

A policy is one table of log-probabilities (C, T, U, V); a state is (prompt, position, memory). Shape
suffixes: see `toy.task`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from theory.arrays import log_softmax
from toy.settings import Memory
from toy.task import Task


class Responses(NamedTuple):
    """A batch of responses."""

    tokens_CNT: jax.Array
    memory_CNT: jax.Array
    """What the policy remembered when it drew each token: the state's third coordinate"""


def log_probs(task: Task, weights_DV: jax.Array) -> jax.Array:
    """Log-probabilities (C, T, U, V) of the policy with the given weights, nats."""
    return log_softmax(task.logits_CTUV + task.features_CTUD @ (weights_DV @ task.projector_VV))


def draw(logp_CTUV: jax.Array, key: jax.Array, *, samples: int, memory: Memory) -> Responses:
    """Draw `samples` responses per prompt by inverting the distribution function of each state."""
    C, T, U, V = logp_CTUV.shape
    # the barrier keeps the compiler from doing the sums and the random bits again at each look-up
    cumulative, uniform_CNT = jax.lax.optimization_barrier(
        (
            jnp.cumsum(jnp.exp(logp_CTUV), axis=-1).reshape(-1, V),
            jax.random.uniform(key, (C, samples, T), logp_CTUV.dtype),
        )
    )
    prompt = jnp.arange(C)[:, None, None]

    def invert(position: jax.Array, remembered: jax.Array, uniform: jax.Array) -> jax.Array:
        row = cumulative.at[(prompt * T + position) * U + remembered].get(mode="promise_in_bounds")
        # scaling by the row's own total keeps the last entry out of reach of rounding
        below = row <= (uniform * row[..., -1])[..., None]
        return jnp.sum(below, -1, dtype=remembered.dtype)

    start_CN1 = jnp.full((C, samples, 1), U - 1)
    first_CN1 = invert(jnp.zeros_like(start_CN1), start_CN1, uniform_CNT[..., :1])
    if T == 1:
        return Responses(first_CN1, start_CN1)
    if memory == "first":
        later = jnp.broadcast_to(jnp.arange(1, T)[None, None], (C, samples, T - 1))
        rest = invert(later, jnp.broadcast_to(first_CN1, later.shape), uniform_CNT[..., 1:])
        seen = jnp.broadcast_to(first_CN1, later.shape)
        return Responses(jnp.concatenate([first_CN1, rest], -1), jnp.concatenate([start_CN1, seen], -1))

    def step(previous: jax.Array, position_and_uniform: tuple[jax.Array, jax.Array]):
        position, uniform = position_and_uniform
        token = invert(position, previous, uniform[..., None])
        return token, (token[..., 0], previous[..., 0])

    xs = (jnp.arange(1, T), jnp.moveaxis(uniform_CNT[..., 1:], -1, 0))
    _, (tokens_TCN, seen_TCN) = jax.lax.scan(step, first_CN1, xs)
    return Responses(
        jnp.concatenate([first_CN1, jnp.moveaxis(tokens_TCN, 0, -1)], -1),
        jnp.concatenate([start_CN1, jnp.moveaxis(seen_TCN, 0, -1)], -1),
    )


def flat_index(responses: Responses, shape: tuple[int, ...]) -> jax.Array:
    """Place (C, N, T) of each drawn token in a flattened table (C, T, U, V)."""
    C, T, U, V = shape
    prompt = jnp.arange(C)[:, None, None]
    state = (prompt * T + jnp.arange(T)[None, None]) * U + responses.memory_CNT
    return state * V + responses.tokens_CNT


def at_tokens(table_CTUV: jax.Array, index_CNT: jax.Array) -> jax.Array:
    """Entries of a table at drawn tokens, (C, N, T)."""
    return table_CTUV.reshape(-1).at[index_CNT].get(mode="promise_in_bounds")


def pool(values_CNT: jax.Array, index_CNT: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sum of values over the tokens drawn in each entry of a table: the transpose of `at_tokens`."""
    zeros = jnp.zeros(shape, values_CNT.dtype).reshape(-1)
    return zeros.at[index_CNT].add(values_CNT, mode="promise_in_bounds").reshape(shape)


def occupancy(logp_CTUV: jax.Array, *, memory: Memory) -> jax.Array:
    """Probability (C, T, U) of each state under the policy's own responses; sums to 1 over U. Exact."""
    C, T, U, _ = logp_CTUV.shape
    start_CU = jnp.broadcast_to((jnp.arange(U) == U - 1).astype(logp_CTUV.dtype)[None], (C, U))
    if T == 1:
        return start_CU[:, None]
    empty_C1 = jnp.zeros((C, 1), logp_CTUV.dtype)
    second_CU = jnp.concatenate([jnp.exp(logp_CTUV[:, 0, U - 1]), empty_C1], -1)
    if memory == "first":
        return jnp.concatenate([start_CU[:, None], jnp.repeat(second_CU[:, None], T - 1, axis=1)], 1)

    def step(state_CU: jax.Array, logp_CUV: jax.Array):
        arrived = jnp.einsum("cu,cuv->cv", state_CU, jnp.exp(logp_CUV))
        return jnp.concatenate([arrived, empty_C1], -1), state_CU

    _, rest_TCU = jax.lax.scan(step, second_CU, jnp.moveaxis(logp_CTUV[:, 1:], 1, 0))
    return jnp.concatenate([start_CU[:, None], jnp.moveaxis(rest_TCU, 0, 1)], 1)


def response_sum(factor_CTUV: jax.Array, *, memory: Memory) -> jax.Array:
    """Sum over every response to each prompt, (C,), of the product of its tokens' factors. Exact.

    With the probabilities of a policy as factors it is 1; with ``mu w^2`` it is the second moment of the
    ratio of whole responses.
    """
    total_CU = factor_CTUV[:, 0, -1]
    for t in range(1, factor_CTUV.shape[1]):
        step_CUV = factor_CTUV[:, t, :-1]
        if memory == "first":
            total_CU = total_CU * jnp.sum(step_CUV, -1)
        else:
            total_CU = jnp.einsum("cu,cuv->cv", total_CU, step_CUV)
    return jnp.sum(total_CU, -1)


def rewards(task: Task, responses: Responses, index_CNT: jax.Array) -> jax.Array:
    """Reward (C, N) of each response."""
    if task.reward_CV is not None:
        prompt = jnp.arange(task.reward_CV.shape[0])[:, None]
        return task.reward_CV[prompt, responses.tokens_CNT[..., 0]]
    total_CN = at_tokens(task.score_CTUV, index_CNT).sum(-1)
    return jnp.where(total_CN >= task.threshold_C[:, None], 1.0, -1.0)
