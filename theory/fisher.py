r"""Softmax geometry in the logits of one prefix: policy gradient, Fisher matrix, Hessian, third derivative.

For a policy p over K actions with advantages A, ``Abar = p.A`` and ``At = A - Abar``, the objective is ``J =
p.A`` and everything below is a derivative of it with respect to the logits. A parameter gradient is ``J^T``
of these, one term per prefix. Leading axes are prefixes; all functions broadcast over them.
"""

from __future__ import annotations

from theory.arrays import Array, namespace


def expect(p: Array, x: Array, /) -> Array:
    """Mean of `x` under `p` over the last axis, kept with length one: shape (..., K) to (..., 1)."""
    xp = namespace(p, x)
    return xp.sum(p * x, axis=-1, keepdims=True)


def gradient(p: Array, advantage: Array, /) -> Array:
    """Exact policy gradient ``g = p (A - p.A)`` in logits, shape (..., K)."""
    return p * (advantage - expect(p, advantage))


def score_mean(weight: Array, p: Array, /) -> Array:
    """``sum_a weight_a (e_a - p)``: gradient of a weighted sum of log-probs, shape (..., K)."""
    xp = namespace(weight, p)
    return weight - xp.sum(weight, axis=-1, keepdims=True) * p


def fisher(p: Array, /) -> Array:
    """Fisher matrix ``F = diag(p) - p p^T`` in logits, shape (..., K, K); eigenvalues in [0, 1/2]."""
    xp = namespace(p)
    eye = xp.eye(p.shape[-1], dtype=p.dtype)
    return p[..., None] * eye - p[..., None] * p[..., None, :]


def fisher_product(p: Array, x: Array, /) -> Array:
    """``F x = p (x - p.x)``, shape (..., K): the change of the policy when the logits change by x."""
    return p * (x - expect(p, x))


def hessian(p: Array, advantage: Array, /) -> Array:
    """Hessian of ``p.A`` in logits, ``diag(v) - p v^T - v p^T`` with ``v = gradient(p, A)``: (..., K, K)."""
    xp = namespace(p, advantage)
    v = gradient(p, advantage)
    eye = xp.eye(p.shape[-1], dtype=p.dtype)
    return v[..., None] * eye - p[..., None] * v[..., None, :] - v[..., None] * p[..., None, :]


def hessian_product(p: Array, advantage: Array, x: Array, /) -> Array:
    r"""``H x`` without the matrix: the joint central moment of advantage and x with the score.

    .. math:: (Hx)_a = p_a \big( \tilde A_a (x_a - \bar x) - \mathrm{Cov}_p(A, x) \big)
    """
    at = advantage - expect(p, advantage)
    xc = x - expect(p, x)
    return p * (at * xc - expect(p, at * xc))


def third_product(p: Array, advantage: Array, x: Array, y: Array, /) -> Array:
    """Differentiate ``H x`` along y: the third derivative of ``p.A`` in logits contracted with x and y.

    Symmetric in x and y; shape (..., K). Needed for the t^2 coefficient of the per-step excess.
    """
    dp = fisher_product(p, y)
    at = advantage - expect(p, advantage)
    mean = expect(p, x)
    xc = x - mean
    d_abar = expect(dp, advantage)
    d_mean = expect(dp, x)
    d_cov = expect(dp, advantage * x) - d_abar * mean - expect(p, advantage) * d_mean
    return dp * (at * xc - expect(p, at * xc)) + p * (-d_abar * xc - at * d_mean - d_cov)
