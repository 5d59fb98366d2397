"""Laws of claim ``excess``: the coefficient of each reading is the limit of the flows themselves."""

from __future__ import annotations

import numpy as np

from theory.arrays import log_softmax
from theory.corrections import correction
from theory.excess import Readings, alignment, arm_excess, excess_readings, uniform_alignment
from theory.fisher import gradient
from theory.mean_path import mean_path
from validation.check import Check
from validation.laws.law import law

CLAIM = "excess"
UNIFORM = np.full(6, 1 / 6)
REWARDS = np.array([1.0, 0.2, -0.3, -0.6, -0.9, -1.0])
STILL, SIGNS = np.array([0.5, 0.5]), np.array([1.0, -1.0])
"""Two equal arms: H g = 0, so there is no excess to second order"""
TIMES = (0.04, 0.02)
"""Richardson: what is left is of order t^2, a thousandth of a coefficient of order one"""
RELATIVE = 2e-3


def checks(seed: int, /) -> list[Check]:
    """All readings, and the sign rule; nothing here is random."""
    return [*_readings(), _lr_scaling(), *_signs()]


def _flow(p: np.ndarray, advantage: np.ndarray, time: float, steps: int = 400) -> Readings:
    """Four readings of the two flows, the on-policy one by fourth-order Runge-Kutta."""

    def velocity(z: np.ndarray) -> np.ndarray:
        q = np.exp(log_softmax(z))
        return q * (advantage - q @ advantage)

    start = np.log(p)
    z, h = start, time / steps
    for _ in range(steps):
        k1 = velocity(z)
        k2 = velocity(z + h / 2 * k1)
        k3 = velocity(z + h / 2 * k2)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(z + h * k3))
    first = velocity(start)
    return excess_readings(first, velocity(z), time * first, z - start)


def _limits(p: np.ndarray, advantage: np.ndarray, linear: float) -> dict[str, float]:
    """Coefficients as t goes to 0, extrapolated from two times."""
    long, short = ((t, _flow(p, advantage, t)) for t in TIMES)

    def limit(of: dict[float, float]) -> float:
        return 2 * of[short[0]] - of[long[0]]

    both = (long, short)
    return {
        "R1": limit({t: float(r.per_step_square) / t**2 for t, r in both}),
        "R2": limit({t: float(r.per_step_norm) / t for t, r in both}),
        "R2 t^2": limit({t: (float(r.per_step_norm) - linear * t) / t**2 for t, r in both}),
        "R3": limit({t: float(r.cumulative) / t**2 for t, r in both}),
        "R4": limit({t: float(r.cumulative_norm) / t**2 for t, r in both}),
    }


def _readings() -> list[Check]:
    coefficients = arm_excess(UNIFORM, REWARDS)
    computed = _limits(UNIFORM, REWARDS, coefficients.per_step_linear)
    still = _limits(STILL, SIGNS, 0.0)
    rows = [
        ("R1", "|u_SC - u_IS|^2 per step, of t^2: |Hg|^2", coefficients.per_step_square),
        ("R2", "|u_SC|^2 - |u_IS|^2 per step, of t: a linear term", coefficients.per_step_linear),
        ("R2 t^2", "the same, of t^2: negative", coefficients.per_step_quadratic),
        ("R3", "|D_SC - D_IS| cumulative, of t^2: |Hg|/2", coefficients.cumulative),
        ("R4", "|D_SC| - |D_IS| cumulative, of t^2: -g'Hg/(2|g|)", coefficients.cumulative_norm),
    ]
    return [
        law(
            CLAIM,
            f"{name.split()[0]}, {what}",
            predicted=value,
            computed=computed[name],
            control=("two equal arms, where H g = 0", still[name]),
            margin=RELATIVE * abs(coefficients.per_step_linear),
            unit="coefficient",
        )
        for name, what, value in rows
    ]


def _lr_scaling() -> Check:
    """Halve the learning rate of two runs of the core: a quadratic excess falls to a quarter."""

    def excess(lr: float, what: str) -> float:
        ends = [
            mean_path(correction(name), np.log(UNIFORM), REWARDS, lr=lr, steps=20).logits[-1]
            - np.log(UNIFORM)
            for name in ("sc", "is")
        ]
        return float(np.linalg.norm(ends[0] - ends[1]) if what == "excess" else np.linalg.norm(ends[0]))

    ratio = {what: excess(0.02, what) / excess(0.01, what) for what in ("excess", "norm")}
    return law(
        CLAIM,
        "cumulative excess of SC over IS at twice the learning rate",
        predicted=4.0,
        computed=ratio["excess"],
        control=("the update itself, which is linear", ratio["norm"]),
        margin=0.1,
        unit="ratio",
        note="noise-free runs of the core, 20 steps; the next order is a share of t = .2",
    )


def _signs() -> list[Check]:
    """Measure g'Hg, whose sign is that of on-policy's acceleration, by differences of the gradient."""
    mostly_right = np.where(np.arange(8) < 6, 1.0, -1.0)
    p = np.full(8, 1 / 8)

    def measured(advantage: np.ndarray) -> float:
        g = gradient(p, advantage)
        step = 1e-5
        moved = [np.exp(log_softmax(np.log(p) + s * step * g)) for s in (1, -1)]
        ahead, behind = (gradient(q, advantage) for q in moved)
        return float(g @ (ahead - behind)) / (2 * step)

    return [
        law(
            CLAIM,
            "g'Hg at the uniform policy is m3/K^2: 6 of 8 arms right",
            predicted=uniform_alignment(mostly_right),
            computed=measured(mostly_right),
            control=("2 of 8 arms right", measured(-mostly_right)),
            margin=1e-8,
            unit="coefficient",
        ),
        law(
            CLAIM,
            "g'Hg of a skewed policy from its closed form, by differences of the gradient",
            predicted=alignment(np.array([0.7, 0.3]), SIGNS),
            computed=_two_arms(0.7),
            control=("the arms' probabilities swapped", _two_arms(0.3)),
            margin=1e-8,
            unit="coefficient",
        ),
    ]


def _two_arms(p: float) -> float:
    row, step = np.array([p, 1 - p]), 1e-5
    g = gradient(row, SIGNS)
    ahead, behind = (gradient(np.exp(log_softmax(np.log(row) + s * step * g)), SIGNS) for s in (1, -1))
    return float(g @ (ahead - behind)) / (2 * step)
