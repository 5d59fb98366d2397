"""Derivations behind `theory.fisher` and `theory.feedback`: derivatives of ``p.A`` and of mean updates."""

from __future__ import annotations

import sympy as sp

from theory.symbolic.derivation import Derivation, dot, softmax, vector


def gradient(arms: int = 3, /) -> Derivation:
    """Gradient of ``softmax(z).A``; arguments z, A."""
    z, a = vector("z", arms), vector("A", arms)
    return Derivation(symbols=(z, a), expression=sp.Matrix([sp.diff(dot(softmax(z), a), x) for x in z]))


def fisher(arms: int = 3, /) -> Derivation:
    """Fisher matrix as the Hessian of the log-normaliser; argument z."""
    z = vector("z", arms)
    return Derivation(symbols=(z,), expression=sp.hessian(sp.log(sum(sp.exp(x) for x in z)), z))


def hessian(arms: int = 3, /) -> Derivation:
    """Hessian of ``softmax(z).A``; arguments z, A."""
    z, a = vector("z", arms), vector("A", arms)
    return Derivation(symbols=(z, a), expression=sp.hessian(dot(softmax(z), a), z))


def third_product(arms: int = 3, /) -> Derivation:
    """Third derivative of ``softmax(z).A`` contracted with x and y; arguments z, A, x, y."""
    z, a, x, y = (vector(n, arms) for n in ("z", "A", "x", "y"))
    s, t = sp.symbols("s t", real=True)
    moved = [zi + s * xi + t * yi for zi, xi, yi in zip(z, x, y, strict=True)]
    at = list(zip(z, moved, strict=True))
    grad = [sp.diff(dot(softmax(z), a), zi).subs(at, simultaneous=True) for zi in z]
    return Derivation(
        symbols=(z, a, x, y),
        expression=sp.Matrix([sp.diff(g, s, 1, t, 1).subs({s: 0, t: 0}) for g in grad]),
    )


def uncorrected_loop(arms: int = 3, /) -> Derivation:
    """Jacobian, in the trainer's logits, of the uncorrected mean update ``mu A - (mu.A) pi``; z, A."""
    z, a, trainer = vector("z", arms), vector("A", arms), vector("y", arms)
    mu, pi = softmax(z), softmax(trainer)
    update = sp.Matrix([m * ai - dot(mu, a) * p for m, ai, p in zip(mu, a, pi, strict=True)])
    jacobian = update.jacobian(sp.Matrix(trainer)).subs(dict(zip(trainer, z, strict=True)), simultaneous=True)
    return Derivation(symbols=(z, a), expression=jacobian)


def weighted_loop(arms: int = 3, /) -> Derivation:
    """Jacobian, in the trainer's logits, of the weighted mean update ``E_mu[w A psi]``, w = pi/mu; z, A."""
    z, a, trainer = vector("z", arms), vector("A", arms), vector("y", arms)
    mu, pi = softmax(z), softmax(trainer)
    weighted = [m * (p / m) * ai for m, p, ai in zip(mu, pi, a, strict=True)]
    update = sp.Matrix([x - sum(weighted) * p for x, p in zip(weighted, pi, strict=True)])
    jacobian = update.jacobian(sp.Matrix(trainer)).subs(dict(zip(trainer, z, strict=True)), simultaneous=True)
    return Derivation(symbols=(z, a), expression=jacobian)
