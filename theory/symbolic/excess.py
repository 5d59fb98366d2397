"""Derivations behind `theory.excess`: the two flows of a K-arm bandit expanded in time."""

from __future__ import annotations

from typing import NamedTuple

import sympy as sp

from theory.symbolic.derivation import Derivation, dot, softmax, vector


class ExcessSeries(NamedTuple):
    """Coefficients of the four readings; every derivation takes z, A."""

    per_step_square: Derivation
    per_step_linear: Derivation
    per_step_quadratic: Derivation
    cumulative: Derivation
    cumulative_norm: Derivation
    alignment: Derivation
    """g'Hg"""


def excess_series(arms: int = 2, /) -> ExcessSeries:
    """Expand ``dz/dt = grad(softmax(z).A)`` (on-policy) and ``dz/dt = g(z_0)`` (centred) to second order.

    The derivatives along the flow come from the chain rule alone; no closed form of the Hessian enters.
    """
    z, a = vector("z", arms), vector("A", arms)
    g = [sp.diff(dot(softmax(z), a), x) for x in z]

    def along(field: list) -> list:
        """Time derivative of a function of z along the on-policy flow."""
        return [sum(sp.diff(f, x) * v for x, v in zip(z, g, strict=True)) for f in field]

    hg = along(g)
    q = along(hg)
    norm = sp.sqrt(dot(g, g))

    def derived(expression) -> Derivation:
        return Derivation(symbols=(z, a), expression=expression)

    # u_SC = g; u_IS = g + t hg + t^2/2 q; D_SC = t g; D_IS = t g + t^2/2 hg
    return ExcessSeries(
        per_step_square=derived(dot(hg, hg)),
        per_step_linear=derived(-2 * dot(g, hg)),
        per_step_quadratic=derived(-(dot(hg, hg) + dot(g, q))),
        cumulative=derived(sp.sqrt(dot(hg, hg)) / 2),
        cumulative_norm=derived(-dot(g, hg) / (2 * norm)),
        alignment=derived(dot(g, hg)),
    )


def uniform_alignment(arms: int = 3, /) -> sp.Expr:
    """``g'Hg - m3/K^2`` at the uniform policy: simplifies to 0, m3 the third central moment over the arms."""
    series = excess_series(arms)
    z, a = series.alignment.symbols
    mean = sum(a) / arms
    m3 = sum((x - mean) ** 3 for x in a) / arms
    return sp.simplify(series.alignment.expression.subs(dict.fromkeys(z, 0)) - m3 / sp.Integer(arms) ** 2)
