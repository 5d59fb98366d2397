"""Derivations behind `theory.gradient`: the bias of a mean gradient, expanded in the engine's error."""

from __future__ import annotations

from typing import Literal

import sympy as sp

from theory.symbolic.derivation import Derivation, dot, softmax, vector


def drift_residual(arms: int = 3, /) -> sp.Matrix:
    """``E_mu[A psi] - E_mu[A (psi - E_mu psi)] - (mu.A)(mu - pi)``: simplifies to 0 for any rows."""
    mu, pi, a = vector("mu", arms), vector("p", arms), vector("A", arms)
    # rows sum to one: the last entry is what the others leave
    mu = (*mu[:-1], 1 - sum(mu[:-1]))
    pi = (*pi[:-1], 1 - sum(pi[:-1]))

    def score(i: int) -> sp.Matrix:
        return sp.Matrix([(1 if i == j else 0) - pi[j] for j in range(arms)])

    zero = sp.zeros(arms, 1)
    mean_score = sum((mu[i] * score(i) for i in range(arms)), zero)
    plain = sum((mu[i] * a[i] * score(i) for i in range(arms)), zero)
    centered = sum((mu[i] * a[i] * (score(i) - mean_score) for i in range(arms)), zero)
    drift = dot(mu, a) * sp.Matrix([m - p for m, p in zip(mu, pi, strict=True)])
    return (plain - centered - drift).applyfunc(sp.expand)


def first_order_bias(arms: int = 3, /, *, centered: bool) -> Derivation:
    """First-order coefficient of the bias at zero lag, engine error eps delta; arguments z, A, delta."""
    z, a, delta = vector("z", arms), vector("A", arms), vector("delta", arms)
    eps = sp.Symbol("epsilon", real=True)
    pi = softmax(z)
    mu = softmax([x + eps * d for x, d in zip(z, delta, strict=True)])
    center = mu if centered else pi
    mean = sp.Matrix([m * ai - dot(mu, a) * c for m, ai, c in zip(mu, a, center, strict=True)])
    return Derivation(symbols=(z, a, delta), expression=mean.diff(eps).subs(eps, 0))


def first_order_weighted_bias(arms: int = 3, /, *, form: Literal["matched", "form-i"]) -> Derivation:
    """First-order coefficient of the bias of the lag-weighted, centred gradient: z, z_s, A, delta."""
    z, z_s, a, delta = (vector(n, arms) for n in ("z", "s", "A", "delta"))
    eps = sp.Symbol("epsilon", real=True)
    pi, ps = softmax(z), softmax(z_s)
    mu = softmax([x + eps * d for x, d in zip(z_s, delta, strict=True)])
    q = [m * p / s for m, p, s in zip(mu, pi, ps, strict=True)]
    total = sum(q)
    if form == "matched":
        mean = [x * ai - dot(q, a) * x / total for x, ai in zip(q, a, strict=True)]
    else:
        center = [x - total * p for x, p in zip(q, pi, strict=True)]
        mean = [x * ai - dot(q, a) * p - dot(mu, a) * c for x, ai, p, c in zip(q, a, pi, center, strict=True)]
    return Derivation(symbols=(z, z_s, a, delta), expression=sp.Matrix(mean).diff(eps).subs(eps, 0))


def fresh_noise_drift(arms: int = 3, /) -> Derivation:
    """``Abar (E mu - pi)`` for iid zero-mean logit noise of variance s^2, to second order: z, A, s."""
    z, a, delta = vector("z", arms), vector("A", arms), vector("delta", arms)
    s = sp.Symbol("s", positive=True)
    pi, mu = softmax(z), softmax([x + d for x, d in zip(z, delta, strict=True)])
    still = [(d, 0) for d in delta]
    # E delta_i delta_j = s^2 for i = j and 0 otherwise: half the trace of the Hessian is left
    mean = sp.Matrix([s**2 / 2 * sum(sp.diff(m, d, 2).subs(still) for d in delta) for m in mu])
    return Derivation(symbols=(z, a, s), expression=dot(pi, a) * mean)
