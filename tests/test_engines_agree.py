"""One surrogate, three ways to its gradient: jax.grad, torch autograd, and scores summed by hand in NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from enumeration import softmax
from libraries import jax_x64
from scipy.special import log_softmax
from tolerances import OTHER_LIBRARY_FLOAT32, algebra

from theory.centering import coefficients, surrogate
from theory.corrections import CORRECTIONS, Correction, Logps, correction

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

B, T, V = 4, 3, 7
RULES: dict[str, Correction] = dict(CORRECTIONS) | {
    "ppo synced": correction("ppo", ppo_ref="synced"),
    "ppo engine": correction("ppo", ppo_ref="engine"),
    "dlc ppo": correction("dlc", clip="ppo", low=0.8, high=1.2),
    "dlc mask": correction("dlc", clip="mask", low=0.5, high=1.5),
    "dlc form-i": correction("dlc", center="form-i", high=1.2),
    "dlc numerics": correction("dlc", center="numerics", high=1.2),
}

CASES = [(name, None) for name in sorted(RULES)] + [(n, 3) for n in sorted(RULES) if RULES[n].centered]


class Batch:
    """Rows (B, T, V) of four policies, sampled tokens, advantages and a ragged mask, in float64."""

    def __init__(self, columns: int | None) -> None:
        rng = np.random.default_rng(0)
        z_s, delta, moved, inner = rng.normal(size=(4, B, T, V))
        self.z = z_s + 0.9 * moved
        self.old = log_softmax(z_s + 0.9 * moved + 0.4 * inner, axis=-1)
        self.s = log_softmax(z_s, axis=-1)
        self.mu = log_softmax(z_s + 0.6 * delta, axis=-1)
        self.token = rng.integers(V, size=(B, T, 1))
        self.advantage = np.repeat(rng.normal(size=(B, 1)), T, axis=1)
        self.mask = np.arange(T) < np.array([[3], [2], [3], [1]])
        self.ids = np.argsort(-self.mu, axis=-1)[..., : columns or V]
        self.tail = bool(columns)


def mean_surrogate(xp: Any, rule: Correction, b: Batch, z: Any, take: Any, detach: Any, dtype: Any) -> Any:
    """Mean over response tokens of the surrogate, written once for both autograds."""

    def put(x: np.ndarray) -> Any:
        return xp.asarray(x.astype(dtype) if x.dtype.kind == "f" else x)

    logpi = z - xp.log(xp.sum(xp.exp(z), -1))[..., None]
    full = (put(b.mu), put(b.s), detach(logpi), put(b.old))
    mask, ids, token = put(b.mask), put(b.ids), put(b.token)
    inside = [take(x, ids) for x in full]
    log_tail = None
    if b.tail:
        listed = xp.sum((ids[..., None] == put(np.arange(V).reshape(1, 1, 1, V))), -2) > 0
        rest = [xp.log(xp.sum(xp.where(listed, xp.zeros_like(x), xp.exp(x)), -1)) for x in full]
        log_tail = Logps(*rest)
    constants = coefficients(
        rule,
        Logps(*(take(x, token)[..., 0] for x in full)),
        put(b.advantage),
        mask=mask,
        row=Logps(*inside) if rule.centered else None,
        log_tail=log_tail if rule.centered else None,
    )
    value = surrogate(constants, take(logpi, token)[..., 0], take(logpi, ids))
    return xp.sum(xp.where(mask, value, xp.zeros_like(value))) / float(b.mask.sum())


@functools.cache
def jax_gradients(columns: int | None, dtype: Any) -> dict[str, np.ndarray]:
    """By name of the rule; all in one compiled call, which costs a fraction of one call each."""
    jnp, b = jax.numpy, Batch(columns)

    def all_of(z: Any) -> dict[str, Any]:
        def gradient(rule: Correction) -> Any:
            return jax.grad(lambda z: mean_surrogate(jnp, rule, b, z, take, jax.lax.stop_gradient, dtype))(z)

        def take(x: Any, i: Any) -> Any:
            return jnp.take_along_axis(x, i, axis=-1)

        return {name: gradient(RULES[name]) for name, k in CASES if k == columns}

    found = jax.jit(all_of)(jnp.asarray(b.z.astype(dtype)))
    return {name: np.asarray(x) for name, x in found.items()}


def torch_gradient(rule: Correction, b: Batch, dtype: Any) -> np.ndarray:
    z = torch.tensor(b.z.astype(dtype), requires_grad=True)
    loss = mean_surrogate(torch, rule, b, z, lambda x, i: torch.gather(x, -1, i), lambda x: x.detach(), dtype)
    loss.backward()
    assert z.grad is not None
    return z.grad.numpy()


def numpy_gradient(rule: Correction, b: Batch) -> np.ndarray:
    """Constants times scores e_b - pi: no autograd at all."""
    pi = softmax(b.z)
    full = (b.mu, b.s, np.log(pi), b.old)

    def take(x: np.ndarray, i: np.ndarray) -> np.ndarray:
        return np.take_along_axis(x, i, axis=-1)

    log_tail = None
    if b.tail and rule.centered:
        listed = (b.ids[..., None] == np.arange(V)).any(-2)
        log_tail = Logps(*(np.log(np.where(listed, 0, np.exp(x)).sum(-1)) for x in full))
    c = coefficients(
        rule,
        Logps(*(take(x, b.token)[..., 0] for x in full)),
        b.advantage,
        mask=b.mask,
        row=Logps(*(take(x, b.ids) for x in full)) if rule.centered else None,
        log_tail=log_tail,
    )
    score = np.eye(V) - pi[..., None, :]  # (B, T, V, V): row b is the gradient of log pi(b)
    out = c.token[..., None] * np.take_along_axis(score, b.token[..., None], axis=-2)[..., 0, :]
    if c.row is not None:
        out = out + np.einsum("btk,btkv->btv", c.row, np.take_along_axis(score, b.ids[..., None], axis=-2))
    return out / b.mask.sum()


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_gradients_agree_in_float64(name, columns):
    rule, b = RULES[name], Batch(columns)
    with jax_x64():
        by_jax = jax_gradients(columns, np.float64)[name]
    by_torch, by_hand = torch_gradient(rule, b, np.float64), numpy_gradient(rule, b)
    assert np.abs(by_hand).max() > 1e-3
    # exps of logits up to 4 and of their ratios: magnitudes of a few tens before the mean over tokens
    off = algebra(np.exp(np.abs(b.z)).max() / b.mask.sum())
    np.testing.assert_allclose(by_torch, by_hand, rtol=0, atol=off)
    np.testing.assert_allclose(by_jax, by_hand, rtol=0, atol=off)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_gradients_agree_in_float32(name):
    rule, b = RULES[name], Batch(None)
    by_jax, by_torch = jax_gradients(None, np.float32)[name], torch_gradient(rule, b, np.float32)
    np.testing.assert_allclose(by_jax, by_torch, **OTHER_LIBRARY_FLOAT32)
    np.testing.assert_allclose(by_torch, numpy_gradient(rule, b), **OTHER_LIBRARY_FLOAT32)


def test_padding_gets_no_gradient():
    b = Batch(None)
    for rule in RULES.values():
        assert not torch_gradient(rule, b, np.float64)[~b.mask].any()
