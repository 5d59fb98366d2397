"""Derivations behind `theory.cumulants`, `theory.families` and `theory.finite_sample`."""

from __future__ import annotations

import sympy as sp

from theory.symbolic.derivation import Derivation


def log_ess_coefficients(order: int = 6, /) -> list[sp.Rational]:
    """Coefficients of kappa_1..kappa_order in ``-log ESS = K(2) - 2 K(1)``, K generating cumulants."""
    kappa = sp.symbols(f"kappa1:{order + 1}")
    s = sp.Symbol("s")
    generating = sp.Add(*(k * s**n / sp.factorial(n) for n, k in enumerate(kappa, start=1)))
    neg_log_ess = sp.expand(generating.subs(s, 2) - 2 * generating.subs(s, 1))
    return [neg_log_ess.coeff(k) for k in kappa]


def laplace_crossing() -> sp.Expr:
    """Variance at which the ESS of a Laplace log-ratio is 1/2, from its generating function."""
    s, b2 = sp.symbols("s b2", positive=True)
    moment = 1 / (1 - b2 * s**2)
    ess = moment.subs(s, 1) ** 2 / moment.subs(s, 2)
    roots = sp.solve(sp.numer(sp.together(ess - sp.Rational(1, 2))), b2)
    # E w^2 exists only below b^2 = 1/4
    return sp.simplify(2 * min((r for r in roots if 0 < r.evalf() < 0.25), key=sp.N))


def conditional_gamma() -> Derivation:
    """ESS of the conditionally normalised gamma mixture, ``1/E exp(V s2)`` by integration; nu, s2."""
    nu, s2, v = sp.symbols("nu s2 v", positive=True)
    rate = sp.Symbol("rate", positive=True)  # 1/nu - s2, positive where the moment exists
    shape = 1 / nu
    moment = sp.integrate(v ** (shape - 1) * sp.exp(-rate * v), (v, 0, sp.oo)) / (sp.gamma(shape) * nu**shape)
    return Derivation(symbols=(nu, s2), expression=sp.gammasimp((1 / moment).subs(rate, 1 / nu - s2)))


def ess_bias() -> Derivation:
    """1/n term of ``E ESS^ - ESS`` by the second-order delta method on ``a^2/b``; arguments m2, m3, m4.

    a and b are the sample means of w and w^2, with E w = 1; their covariances over n draws are those of w,
    w^2.
    """
    a, b, m2, m3, m4 = sp.symbols("a b m2 m3 m4", positive=True)
    f = a**2 / b
    at = {a: 1, b: m2}
    var_a, cov_ab, var_b = m2 - 1, m3 - m2, m4 - m2**2
    bias = (
        sp.diff(f, a, 2).subs(at) * var_a / 2
        + sp.diff(f, a, 1, b, 1).subs(at) * cov_ab
        + sp.diff(f, b, 2).subs(at) * var_b / 2
    )
    return Derivation(symbols=(m2, m3, m4), expression=sp.simplify(bias))


def log_ess_variance() -> Derivation:
    """Variance of log ESS^ times n, by the first-order delta method; arguments m2, m3, m4."""
    a, b, m2, m3, m4 = sp.symbols("a b m2 m3 m4", positive=True)
    log_ess = 2 * sp.log(a) - sp.log(b)
    slope = sp.Matrix([sp.diff(log_ess, a), sp.diff(log_ess, b)]).subs({a: 1, b: m2})
    cov = sp.Matrix([[m2 - 1, m3 - m2], [m3 - m2, m4 - m2**2]])
    return Derivation(symbols=(m2, m3, m4), expression=sp.simplify((slope.T * cov * slope)[0]))
