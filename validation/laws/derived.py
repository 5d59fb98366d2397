"""The numeric laws against their sympy derivations, evaluated at the same random numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

from theory import excess, finite_sample, fisher, gradient
from theory.arrays import log_softmax
from theory.corrections import correction
from theory.cumulants import log_ess_coefficient
from theory.feedback import loop_matrix
from validation.check import Check
from validation.laws.law import law, vectors

SYMBOLS = "by sympy"


def checks(seed: int, /) -> list[Check]:
    """Every derivation of theory.symbolic; not run where sympy is missing."""
    if importlib.util.find_spec("sympy") is None:
        return [
            law(
                "split",
                "derivations by sympy",
                predicted=0.0,
                computed=float("nan"),
                control=("none", float("nan")),
                note="sympy is not installed; pip install lagfloor[toy]",
            )
        ]
    rng = np.random.default_rng([seed, 70])
    return [*_split(rng), *_bias(rng), *_loop(rng), *_ess(), *_excess(rng)]


def _draw(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, 3))


def _policy(z: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(z))


def _split(rng: np.random.Generator) -> list[Check]:
    from theory.symbolic import split

    z, delta, lag = _draw(rng, 3)
    cross = float(split.cross_term()(z, delta, lag))
    matrix = fisher.fisher(_policy(z))
    return [
        law(
            "split",
            f"leading cross term of the KL identity, -delta' F Delta, {SYMBOLS}",
            predicted=float(-delta @ matrix @ lag),
            computed=cross,
            control=("the Euclidean product in its place", float(-delta @ lag)),
            unit="nats",
        ),
        law(
            "split",
            f"residuals of the three-point and variance identities, {SYMBOLS}: terms left",
            predicted=0.0,
            computed=float(
                len(_terms(split.three_point_residual())) + len(_terms(split.variance_residual()))
            ),
            control=("one term of the identity left out", float(len(_terms(_incomplete())))),
            unit="terms",
        ),
    ]


def _terms(expression) -> list:
    """Nonzero additive terms of an expanded expression."""
    import sympy as sp

    return [t for t in sp.Add.make_args(sp.expand(expression)) if t != 0]


def _incomplete():
    """Three-point residual over two actions without its cross term."""
    import sympy as sp

    mu, s, p = (sp.symbols(f"{n}0 {n}1", positive=True) for n in ("mu", "s", "p"))

    def kl(a, b):
        return sum(x * (sp.log(x) - sp.log(y)) for x, y in zip(a, b, strict=True))

    return kl(mu, p) - kl(mu, s) - kl(s, p)


def _bias(rng: np.random.Generator) -> list[Check]:
    from theory.symbolic import bias, softmax

    z, a, delta = _draw(rng, 3)
    p = _policy(z)
    derived = {centered: bias.first_order_bias(centered=centered)(z, a, delta) for centered in (False, True)}
    found = [
        vectors(
            "centering",
            f"first-order bias of {name}, {SYMBOLS}",
            predicted=gradient.discrepancy_bias(p, a, delta, centered=centered),
            computed=derived[centered],
            control=(f"the bias of {other}", derived[not centered]),
            unit="reward",
        )
        for name, centered, other in (("PG", False, "SC"), ("SC", True, "PG"))
    ]
    found.append(
        vectors(
            "centering",
            f"Hessian of p.A, {SYMBOLS}",
            predicted=fisher.hessian(p, a),
            computed=softmax.hessian()(z, a),
            control=("the Fisher matrix", softmax.fisher()(z)),
            unit="reward",
        )
    )
    return found


def _loop(rng: np.random.Generator) -> list[Check]:
    from theory.symbolic import softmax

    z, a = _draw(rng, 2)
    derivations: dict[str, Callable[..., np.ndarray]] = {
        "pg": softmax.uncorrected_loop(),
        "is": softmax.weighted_loop(),
    }
    return [
        vectors(
            "feedback",
            f"loop matrix of {name}, {SYMBOLS}",
            predicted=loop_matrix(correction(name), _policy(z), a),
            computed=derivations[name](z, a),
            control=(f"that of {other}", derivations[other](z, a)),
            unit="reward",
        )
        for name, other in (("pg", "is"), ("is", "pg"))
    ]


def _ess() -> list[Check]:
    from theory.symbolic import ess

    coefficients = np.array([log_ess_coefficient(n) for n in range(1, 9)])
    moments = (2.0, 8.0, 64.0)
    return [
        vectors(
            "heavy-tail",
            f"coefficients (2^n - 2)/n! of -log ESS to order 8, {SYMBOLS}",
            predicted=coefficients,
            computed=np.array([float(c) for c in ess.log_ess_coefficients(8)]),
            control=("the Gaussian's: the variance alone", np.eye(8)[1]),
            unit="coefficient",
        ),
        law(
            "ess-half",
            f"bias of the sample ESS at 1/2 times n, {SYMBOLS}",
            predicted=finite_sample.ess_bias(*moments, 1),
            computed=float(ess.ess_bias()(*moments)),
            control=("at ESS 1", float(ess.ess_bias()(1.0, 1.0, 1.0))),
            unit="draws",
        ),
    ]


def _excess(rng: np.random.Generator) -> list[Check]:
    from theory.symbolic.excess import excess_series

    series = excess_series(3)
    z, a = _draw(rng, 2)
    numeric = excess.arm_excess(_policy(z), a)
    derived = np.array([float(getattr(series, name)(z, a)) for name in numeric._fields])
    still = np.array([float(getattr(series, name)(0 * z, a)) for name in numeric._fields])
    return [
        vectors(
            "excess",
            f"all five coefficients of a three-armed bandit, {SYMBOLS}",
            predicted=np.array(numeric),
            computed=derived,
            control=("the uniform policy", still),
            unit="coefficient",
        )
    ]
