"""Random streams of the toy: from a seed to keys, the same with and without float64.

A seed travels as its two words, so it is traced like any other number and a new one compiles nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

ENGINE_STREAM = 1
"""Number of the environment's stream that the engine's frozen noise is drawn from."""


def words(seed: int) -> np.ndarray:
    """Two unsigned words of a seed, the high one first; seeds are taken modulo 2^64."""
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], dtype=np.uint32)


def key_of(seed: int | np.ndarray | jax.Array) -> jax.Array:
    """Key of a seed, or of its words."""
    return jax.random.wrap_key_data(jnp.asarray(words(seed) if isinstance(seed, int) else seed))


def engine_key(environment_seed: int | np.ndarray | jax.Array) -> jax.Array:
    """Key of the engine's frozen noise, which belongs to the environment and not to a run."""
    return jax.random.fold_in(key_of(environment_seed), ENGINE_STREAM)
