"""Derivations behind `theory.decomposition`: identities that must vanish, and the leading cross term."""

from __future__ import annotations

from typing import Any

import sympy as sp

from theory.symbolic.derivation import Derivation, dot, softmax, vector


def three_point_residual(arms: int = 3, /) -> sp.Expr:
    """``KL(mu||pi) - KL(mu||pi_s) - KL(pi_s||pi) - <mu - pi_s, log(pi_s/pi)>``: 0 for any rows."""
    mu, ps, pi = (vector(n, arms, positive=True) for n in ("mu", "s", "p"))

    def kl(p, q):
        return sum(a * (sp.log(a) - sp.log(b)) for a, b in zip(p, q, strict=True))

    lag = [sp.log(a) - sp.log(b) for a, b in zip(ps, pi, strict=True)]
    cross = dot([a - b for a, b in zip(mu, ps, strict=True)], lag)
    return sp.expand(kl(mu, pi) - kl(mu, ps) - kl(ps, pi) - cross)


def variance_residual(arms: int = 3, /) -> sp.Expr:
    """``Var e - Var d - Var l - 2 Cov(d, l)`` under mu, with ``e = d + l``: simplifies to 0."""
    mu, d, lag = vector("mu", arms, positive=True), vector("d", arms), vector("l", arms)
    e = [a + b for a, b in zip(d, lag, strict=True)]

    def cov(x, y):
        return dot(mu, [a * b for a, b in zip(x, y, strict=True)]) - dot(mu, x) * dot(mu, y)

    return sp.expand(cov(e, e) - cov(d, d) - cov(lag, lag) - 2 * cov(d, lag))


def cross_term(arms: int = 3, /) -> Derivation:
    """Second-order coefficient of ``<mu - pi_s, log(pi_s/pi)>`` when both errors are of order eps.

    Arguments: logits z at the sync, engine error delta, lag Delta. Equals ``-delta' F Delta``.
    """
    z, delta, lag = vector("z", arms), vector("delta", arms), vector("Delta", arms)
    eps = sp.Symbol("epsilon", real=True)
    ps = softmax(z)
    mu = softmax([a + eps * b for a, b in zip(z, delta, strict=True)])
    pi = softmax([a + eps * b for a, b in zip(z, lag, strict=True)])
    cross = sum((m - s) * (sp.log(s) - sp.log(p)) for m, s, p in zip(mu, ps, pi, strict=True))
    return Derivation(symbols=(z, delta, lag), expression=sp.diff(cross, eps, 2).subs(eps, 0) / 2)


def kl_coefficients(order: int = 4, /) -> list[Any]:
    """Coefficients of kappa_1..kappa_order in ``E e`` when ``E exp(-e) = 1``: 0, 1/2, -1/6, 1/24, ...

    The cumulant generating function of e vanishes at -1, ``sum kappa_n (-1)^n/n! = 0``; solved for kappa_1.
    """
    kappa = sp.symbols(f"kappa1:{order + 1}")
    at_minus_one = sum(k * sp.Rational((-1) ** n, sp.factorial(n)) for n, k in enumerate(kappa, start=1))
    mean = sp.solve(at_minus_one, kappa[0])[0]
    return [sp.Rational(0)] + [sp.expand(mean).coeff(k) for k in kappa[1:]]
