"""The toy's engine: laws of its noise, its rounding, what is frozen and what is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.stats

from theory.experiment import Numerics
from toy.engine import engine_settings, noise, round_mantissa, sampled_log_probs, weight_noise
from toy.environment import build
from toy.settings import Sequence

LAWS = {
    "gaussian": scipy.stats.norm(),
    "laplace": scipy.stats.laplace(scale=1 / np.sqrt(2)),
    "student-t": scipy.stats.t(3, scale=1 / np.sqrt(3)),
}


@pytest.mark.parametrize("kind", LAWS)
def test_noise_has_the_law_and_scale_it_names(kind):
    settings = engine_settings(Numerics(kind=kind, scale=0.5), jnp.float32)
    drawn = np.asarray(noise(settings, jax.random.key(0), (20_000,), jnp.float32))
    # a level no honest law fails once in a hundred thousand seeds; the wrong law gives 1e-20 and less
    assert scipy.stats.kstest(drawn / 0.5, LAWS[kind].cdf).pvalue > 1e-5
    others = [law for name, law in LAWS.items() if name != kind]
    assert all(scipy.stats.kstest(drawn / 0.5, law.cdf).pvalue < 1e-5 for law in others)


@pytest.mark.parametrize(("bits", "dtype"), [(3, ml_dtypes.float8_e4m3fn), (2, ml_dtypes.float8_e5m2)])
def test_rounding_of_the_mantissa_is_that_of_the_format_within_its_range(bits, dtype):
    x = np.random.default_rng(0).uniform(0.1, 200, size=2_000).astype(np.float32)
    x *= np.random.default_rng(1).choice([-1, 1], size=x.shape).astype(np.float32)
    got = np.asarray(round_mantissa(jnp.asarray(x), jnp.asarray(bits)))
    np.testing.assert_array_equal(got, x.astype(dtype).astype(np.float32))


def test_an_exact_engine_samples_from_the_trainer_bit_by_bit():
    logp = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (3, 4)), axis=-1)
    got = sampled_log_probs(logp, jnp.ones_like(logp), engine_settings(Numerics(), jnp.float32))
    np.testing.assert_array_equal(got, logp)


@pytest.mark.parametrize("numerics", [Numerics(kind="gaussian", scale=0.3), Numerics(kind="mantissa")])
def test_what_the_engine_samples_from_is_a_distribution(numerics):
    logp = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(0), (3, 8)), axis=-1)
    settings = engine_settings(numerics, jnp.float32)
    table = noise(settings, jax.random.key(1), logp.shape, jnp.float32)
    mu = np.exp(np.asarray(sampled_log_probs(logp, table, settings)))
    np.testing.assert_allclose(mu.sum(-1), 1, rtol=1e-6)
    assert not np.allclose(mu, np.exp(np.asarray(logp)))


@pytest.mark.parametrize("kind", ["fp8", "bf16", "int4"])
def test_formats_of_a_real_engine_are_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"got '{kind}'; formats of a real engine run in real/"):
        engine_settings(Numerics(kind=kind), jnp.float32)


def test_the_noise_of_trained_weights_is_relative_to_what_they_are_now():
    task = build(Sequence(prompts=2, length=2, vocabulary=5, embedding=4, rank=4, seed=1)).cast(np.float32)
    task = jax.tree.map(jnp.asarray, task)
    settings = engine_settings(Numerics(kind="weight-noise", scale=0.3), jnp.float32)
    still = jnp.zeros(task.weights_shape, jnp.float32)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def of(weights_DV: jax.Array, key: jax.Array) -> jax.Array:
        """Add what the trained weights add to the noise of the initial logits."""
        return weight_noise(settings, key, task, weights_DV) - weight_noise(settings, key, task, still)

    # one weight alone moves the logits along its own direction, by its size times one standard normal
    direction = 0.3 * np.einsum("ctu,v->ctuv", task.features_CTUD[..., 2], task.projector_VV[3])
    for size in (0.5, 4.0):
        weights = still.at[2, 3].set(size)
        moved = np.asarray(of(weights, jax.random.split(jax.random.key(0), 200)))
        drawn = (moved * direction).sum((1, 2, 3, 4)) / (direction**2).sum() / size
        np.testing.assert_allclose(moved, np.multiply.outer(drawn * size, direction), atol=2e-5)
        # a level no honest law fails once in a hundred thousand seeds
        assert scipy.stats.kstest(drawn, scipy.stats.norm().cdf).pvalue > 1e-5
