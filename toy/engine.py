"""What the toy's sampler does differently from its trainer at equal weights: noise, or rounding.

Logit noise is added state by state. Weight noise multiplies every parameter the sampler holds (the initial
logits, which stand for what was learnt before, and the trained weights) by ``1 + scale n``, n standard
normal: the trained part of it is shared by all states, as the noise of a quantised matrix is.

One draw serves every law of noise, so the law is a traced number and not a structure: four standard normals
give a Gaussian, a Laplace (difference of two exponentials, each half a sum of two squares) and a Student-t
with three degrees of freedom (normal over the root of a sum of three squares), all of unit variance.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from theory.arrays import log_softmax
from theory.experiment import Numerics
from toy.task import Task

KINDS = ("exact", "gaussian", "laplace", "student-t", "mantissa", "weight-noise")
"""Numerics the toy can run, in the order of their traced index; formats of a real engine run in real/."""


class EngineSettings(NamedTuple):
    """`Numerics` as traced numbers."""

    kind: Any
    scale: Any
    """Standard deviation of the logit noise, nats, or of the relative weight noise; 0 where there is none"""
    bits: Any
    fresh: Any


def engine_settings(numerics: Numerics, dtype: Any) -> EngineSettings:
    """Traced form of the numerics.

    Raises
    ------
    ValueError
        For a format of a real engine.
    """
    if numerics.kind not in KINDS:
        raise ValueError(
            f"the toy's engine is one of {', '.join(KINDS)}, got {numerics.kind!r}; "
            "formats of a real engine run in real/"
        )
    noisy = numerics.kind in ("gaussian", "laplace", "student-t", "weight-noise")
    return EngineSettings(
        kind=np.int32(KINDS.index(numerics.kind)),
        scale=np.asarray(numerics.scale if noisy else 0.0, dtype),
        bits=np.int32(numerics.mantissa_bits),
        fresh=np.bool_(numerics.fresh and noisy),
    )


def noise(settings: EngineSettings, key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draw logit noise of the wanted law and scale, independent over the entries of `shape`, nats."""
    a, b, c, d = jax.random.normal(key, (4, *shape), dtype)
    laplace = (a**2 + b**2 - c**2 - d**2) / (2 * math.sqrt(2))
    student = a / jnp.sqrt(b**2 + c**2 + d**2)
    kind = settings.kind
    drawn = jnp.where(
        kind == KINDS.index("laplace"), laplace, jnp.where(kind == KINDS.index("student-t"), student, a)
    )
    return settings.scale * drawn


def weight_noise(settings: EngineSettings, key: jax.Array, task: Task, sampler_DV: jax.Array) -> jax.Array:
    """Logits of the sampler's noised parameters less those of the parameters it was sent, (C, T, U, V)."""
    of_logits, of_weights = jax.random.split(key)
    logits_CTUV = jnp.asarray(task.logits_CTUV)
    initial = logits_CTUV * jax.random.normal(of_logits, logits_CTUV.shape, logits_CTUV.dtype)
    trained_DV = sampler_DV * jax.random.normal(of_weights, sampler_DV.shape, sampler_DV.dtype)
    return settings.scale * (initial + task.features_CTUD @ (trained_DV @ task.projector_VV))


def noise_table(settings: EngineSettings, key: jax.Array, task: Task, sampler_DV: jax.Array) -> jax.Array:
    """Draw what the noise of either kind adds to the sampler's logits, (C, T, U, V), nats."""
    logits_CTUV = task.logits_CTUV
    return jax.lax.cond(
        settings.kind == KINDS.index("weight-noise"),
        lambda: weight_noise(settings, key, task, sampler_DV),
        lambda: noise(settings, key, logits_CTUV.shape, logits_CTUV.dtype),
    )


def round_mantissa(x: jax.Array, bits: jax.Array) -> jax.Array:
    """Round to `bits` stored bits of mantissa (3 is that of e4m3), with no limit of range."""
    mantissa, exponent = jnp.frexp(x)
    # frexp's mantissa lies in [1/2, 1): the leading bit is not stored
    steps = jnp.exp2((bits + 1).astype(x.dtype))
    return jnp.ldexp(jnp.round(mantissa * steps) / steps, exponent)


def sampled_log_probs(logpi_s: jax.Array, noise_table: jax.Array, settings: EngineSettings) -> jax.Array:
    """Log-probabilities mu the engine really samples from, given the trainer's at the weights it holds.

    Rounding acts on logits below the state's largest, as an engine that subtracts the maximum first would see
    them; noise is added to the logits.
    """
    shifted = logpi_s - jnp.max(logpi_s, axis=-1, keepdims=True)
    logits = jax.lax.cond(
        settings.kind == KINDS.index("mantissa"),
        lambda z: round_mantissa(z, settings.bits),
        lambda z: z + noise_table,
        shifted,
    )
    # an exact engine is exact bit by bit: a second softmax would move the last digit
    return jnp.where(settings.kind == KINDS.index("exact"), logpi_s, log_softmax(logits))
