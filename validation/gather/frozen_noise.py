"""The frozen logit noise of the toy's engine, as a run draws it, for sums in double precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from toy.engine import EngineSettings, noise
from toy.keys import engine_key


def frozen_noise(
    engine: EngineSettings, environment: int | np.ndarray | jax.Array, shape: tuple[int, ...], /
) -> jax.Array:
    """Return what an engine adds to the logits for the whole of a run, nats.

    Parameters
    ----------
    engine : EngineSettings
        With logit noise.
    environment : int or words
        Seed of the environment the noise belongs to.
    shape : tuple of int
        Of the logits.

    Returns
    -------
    array of `shape`, float64
        Drawn in single precision, as the runs draw it: drawn in double they would be other numbers.
    """
    drawn = engine._replace(scale=jnp.asarray(engine.scale, jnp.float32))
    return noise(drawn, engine_key(environment), shape, jnp.float32).astype(jnp.float64)
