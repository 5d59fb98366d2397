"""Faults of the pipeline between sampler and trainer, on the toy: what happens to a batch before it is used.

All are off in `toy.toggles.Infrastructure` unless asked for; then the compiled loop has none of this code.
With any of them on, one function serves all of them: their numbers are traced. Shape suffixes: see
`toy.task`; M is twice the samples, the new ones and those that were held back a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from theory.infrastructure import nucleus
from toy.policy import Responses, at_tokens, flat_index
from toy.settings import Memory
from toy.toggles import Infrastructure
from toy.update import Batch

NEVER = np.iinfo(np.int32).max
"""A token id no vocabulary has: what compares with it never happens"""


class InfrastructureSettings(NamedTuple):
    """`Infrastructure` as traced numbers."""

    top_p: Any
    processed: Any
    pair: Any
    """Ids of a, b and of the token their text is encoded as"""
    keep_wrong: Any
    defer_from: Any


class Queue(NamedTuple):
    """Responses of the step before, and which of them are still to be trained on."""

    batch: Batch
    waiting_CN: jax.Array


def infrastructure_settings(chosen: Infrastructure, dtype: Any) -> InfrastructureSettings:
    """Traced form of the options."""
    return InfrastructureSettings(
        top_p=np.asarray(chosen.top_p, dtype),
        processed=np.bool_(chosen.processed),
        pair=np.asarray(chosen.retokenise or (NEVER,) * 3, np.int32),
        keep_wrong=np.asarray(chosen.keep_wrong, dtype),
        defer_from=np.int32(NEVER if chosen.defer_from is None else chosen.defer_from),
    )


def truncated(settings: InfrastructureSettings, logmu_CTUV: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities really drawn from under top-p, and those the engine reports, (C, T, U, V) each."""
    kept = jnp.where(nucleus(jnp.exp(logmu_CTUV), settings.top_p), logmu_CTUV, -jnp.inf)
    drawn = kept - jax.nn.logsumexp(kept, axis=-1, keepdims=True)
    drawn = jnp.where(settings.top_p < 1, drawn, logmu_CTUV)
    return drawn, jnp.where(settings.processed, drawn, logmu_CTUV)


def retokenised(
    settings: InfrastructureSettings, responses: Responses, logmu_CTUV: jax.Array, *, memory: Memory
) -> Batch:
    """Encode the text of each response anew: a leading (a, b) comes back as one token.

    The rest moves forward by one place, the last place is empty. What the engine reported for a and b is
    summed, as a system does that aligns log-probs by text. The batch has no advantages yet.
    """
    tokens, remembered = responses
    index_CNT = flat_index(responses, logmu_CTUV.shape)
    reported = at_tokens(logmu_CTUV, index_CNT)
    everywhere = jnp.ones_like(reported)
    if tokens.shape[-1] == 1:
        return Batch(index_CNT, everywhere[..., 0], everywhere, reported)
    a, b, both = jnp.asarray(settings.pair).astype(tokens.dtype)
    hit = ((tokens[..., 0] == a) & (tokens[..., 1] == b))[..., None]

    def merged(x: jax.Array, first: jax.Array, last: jax.Array) -> jax.Array:
        return jnp.where(hit, jnp.concatenate([first, x[..., 2:], last], -1), x)

    token_1 = jnp.full_like(tokens[..., :1], jnp.where(both < logmu_CTUV.shape[-1], both, 0))
    new = merged(tokens, token_1, tokens[..., -1:])
    seen = jnp.broadcast_to(new[..., :1], new[..., 1:].shape) if memory == "first" else new[..., :-1]
    new_index = flat_index(Responses(new, jnp.concatenate([remembered[..., :1], seen], -1)), logmu_CTUV.shape)
    summed = reported[..., :1] + reported[..., 1:2]
    empty = jnp.zeros_like(summed)
    return Batch(
        new_index,
        everywhere[..., 0],
        merged(everywhere, everywhere[..., :1], empty),
        merged(reported, summed, empty),
    )


def empty_queue(shape: tuple[int, int, int], dtype: Any) -> Queue:
    """Queue before the first step, for batches of shape (C, N, T)."""
    some = jnp.ones(shape, dtype)
    batch = Batch(jnp.zeros(shape, int), some[..., 0], some, some)
    return Queue(batch, jnp.zeros(shape[:2], bool))


def delivered(
    settings: InfrastructureSettings,
    queue: Queue,
    batch: Batch,
    first_CN: jax.Array,
    reward_CN: jax.Array,
    key: jax.Array,
) -> tuple[Batch, Queue]:
    """Batch (C, M, T) the trainer gets, and the queue it leaves.

    A wrong response is dropped with probability ``1 - keep_wrong`` when it was drawn. Of the rest a long one
    arrives a step late. The responses of each prompt that are there have mean weight 1.
    """
    kept = (reward_CN > 0) | (jax.random.uniform(key, reward_CN.shape, reward_CN.dtype) < settings.keep_wrong)
    long = first_CN >= jnp.asarray(settings.defer_from).astype(first_CN.dtype)
    here = jnp.concatenate([kept & ~long, queue.waiting_CN], axis=1)
    both = jax.tree.map(lambda new, old: jnp.concatenate([new, old], axis=1), batch, queue.batch)
    present = here.astype(reward_CN.dtype)
    share = jnp.mean(present, axis=1, keepdims=True)
    weight_CM = present / jnp.where(share > 0, share, 1)
    weighted = both._replace(weight_CNT=jnp.asarray(both.weight_CNT) * weight_CM[..., None])
    return weighted, Queue(batch, kept & long)
