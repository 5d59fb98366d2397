"""Laws of claims ``feedback``, ``staleness-lr`` and ``ppo-reference``: loop matrices, lags, sync periods."""

from __future__ import annotations

import math

import numpy as np

from theory.arrays import log_softmax
from theory.corrections import Correction, Logps, PpoRef, correction
from theory.decomposition import kl
from theory.feedback import e_folding_step, lag_path, loop_gain, loop_matrix, period_deviation
from theory.fisher import gradient, hessian
from theory.gradient import expected_gradient
from theory.mean_path import mean_path
from validation.check import Check
from validation.laws.law import law, vectors

LOGITS = np.array([0.5, 0.2, 0.0, 0.1, -0.4, -0.2])
REWARDS = np.array([1.0, 0.2, -0.3, -0.6, -0.9, -1.0])
MEAN = -0.6
"""Mean advantage that a wrong baseline leaves"""
LR = 0.02
P = np.exp(log_softmax(LOGITS))
ADVANTAGE = REWARDS - P @ REWARDS + MEAN
DIFFERENCE = 1e-5
"""Logit step of central differences"""
DERIVATIVE = 1e-8
"""Central differences leave the square of the step times a derivative of order one, and rounding over it"""


def checks(seed: int, /) -> list[Check]:
    """All laws of the loop; nothing here is random."""
    return [*_matrices(), *_lags(), *_gains(), *_periods(), *_ppo()]


def _update(rule: Correction, z: np.ndarray) -> np.ndarray:
    held = log_softmax(LOGITS)
    return expected_gradient(rule, Logps(held, held, log_softmax(z)), ADVANTAGE)


def _derivative(rule: Correction) -> np.ndarray:
    """Jacobian of the core's mean update in the trainer's logits, by central differences."""
    step = DIFFERENCE * np.eye(len(LOGITS))
    rows = [(_update(rule, LOGITS + e) - _update(rule, LOGITS - e)) / (2 * DIFFERENCE) for e in step]
    return np.array(rows).T


def _matrices() -> list[Check]:
    pairs = (("pg", "is"), ("sc", "pg"), ("is", "sc"), ("dlc", "pg"))
    return [
        vectors(
            "feedback",
            f"loop matrix of {name}, against differences of the core's mean update",
            predicted=loop_matrix(correction(name), P, ADVANTAGE),
            computed=_derivative(correction(name)),
            control=(f"the update of {other}", _derivative(correction(other))),
            margin=DERIVATIVE,
            unit="reward",
        )
        for name, other in pairs
    ]


def _norm(rule: Correction, steps: int, sync_every: int = 0) -> float:
    path = mean_path(rule, LOGITS, ADVANTAGE, lr=LR, steps=steps, sync_every=sync_every)
    return float(np.linalg.norm(path.logits[-1] - path.synced[-1]))


def _lags() -> list[Check]:
    """Lag norm at t = 1; the neglected order, t^3 times second derivatives of the update, is below 2%."""
    steps = 50
    found = []
    for name in ("pg", "sc", "is"):
        rule = correction(name)
        path = lag_path(gradient(P, ADVANTAGE), loop_matrix(rule, P, ADVANTAGE), lr=LR, steps=steps)
        predicted = float(np.linalg.norm(path[-1]))
        found.append(
            law(
                "feedback",
                f"lag norm of {name} after {steps} updates, noise-free run of the core",
                predicted=predicted,
                computed=_norm(rule, steps),
                control=("sync before every step", _norm(rule, steps, sync_every=1)),
                margin=0.02 * predicted if name != "sc" else 1e-9,
                unit="nats",
                note=f"mean advantage {MEAN}; centring is exactly linear, the others to order t^2 at t = 1",
            )
        )
    return found


def _growth(mean: float) -> float:
    """Measure growth per t of a small lag along the fastest direction."""
    advantage = REWARDS - P @ REWARDS + mean
    held = log_softmax(LOGITS)

    def update(z: np.ndarray) -> np.ndarray:
        return expected_gradient(correction("pg"), Logps(held, held, log_softmax(z)), advantage)

    direction = np.linalg.eigh(_fisher_by_differences())[1][:, -1] * 1e-6
    moved = direction + LR * (update(LOGITS + direction) - update(LOGITS))
    return math.log(float(np.linalg.norm(moved) / np.linalg.norm(direction))) / LR


def _fisher_by_differences() -> np.ndarray:
    """Fisher matrix by differences of the policy itself."""
    step = DIFFERENCE * np.eye(len(LOGITS))
    rows = [
        (np.exp(log_softmax(LOGITS + e)) - np.exp(log_softmax(LOGITS - e))) / (2 * DIFFERENCE) for e in step
    ]
    return (np.array(rows) + np.array(rows).T) / 2


def _gains() -> list[Check]:
    matrix = loop_matrix(correction("pg"), P, ADVANTAGE)
    return [
        law(
            "feedback",
            "growth rate of a small lag under PG with mean advantage -.6: positive feedback",
            predicted=math.log(loop_gain(matrix, lr=LR)) / LR,
            computed=_growth(MEAN),
            control=("mean advantage +.6: a restoring force", _growth(-MEAN)),
            margin=1e-6,
            unit="per t",
            note=f"e-folding in {e_folding_step(P, MEAN, lr=LR):.0f} updates at lr {LR}",
        )
    ]


def _periods() -> list[Check]:
    """One sync period against its leading term, and equal products of staleness and learning rate."""
    rule, steps = correction("pg"), 10
    start = mean_path(rule, LOGITS, ADVANTAGE, lr=LR, steps=steps).logits[-1]
    on = mean_path(correction("is"), LOGITS, ADVANTAGE, lr=LR, steps=steps, sync_every=1).logits[-1]
    predicted = period_deviation(
        gradient(P, ADVANTAGE), loop_matrix(rule, P, ADVANTAGE), hessian(P, ADVANTAGE), lr=LR, period=steps
    )
    scale = float(np.linalg.norm(predicted))

    def end(name: str, lr: float, period: int) -> np.ndarray:
        path = mean_path(
            correction(name),
            LOGITS,
            ADVANTAGE,
            lr=lr,
            steps=round(3.2 / lr),
            sync_every=period,
            rebaseline=True,
        )
        return log_softmax(path.logits[-1])

    def excess(lr: float, period: int) -> float:
        return math.log(float(kl(end("is", lr, 1), end("pg", lr, period))))

    slow = excess(0.0125, 64)
    # a period of N steps deviates as N (N - 1), not N^2
    finite = 2 * math.log((32 - 1) / 32 / ((64 - 1) / 64))
    return [
        law(
            "staleness-lr",
            f"deviation that one period of {steps} stale updates adds, over its leading term",
            predicted=1.0,
            computed=float(np.linalg.norm(start - on)) / scale,
            control=("a period of one: every batch on-policy", 0.0),
            margin=0.1,
            unit="ratio",
            note="margin: the next order, a share of about t/3 at t = .2",
        ),
        law(
            "staleness-lr",
            "ln KL to on-policy at lr .025 and 32 steps of staleness less that at half and double",
            predicted=finite,
            computed=excess(0.025, 32) - slow,
            control=("the staleness doubled alone", excess(0.025, 64) - slow),
            margin=0.1,
            unit="ln KL",
            note="the same product .8 over the same total time 3.2; N (N - 1) in place of N^2 is predicted",
        ),
    ]


def _ppo() -> list[Check]:
    """PPO on the trainer before the batch is PG on its first update; on the sampler it is weighted."""
    plain = _derivative(correction("pg"))
    weighted = _derivative(correction("is"))
    rows: list[tuple[PpoRef, np.ndarray, np.ndarray]] = [
        ("before-batch", plain, weighted),
        ("synced", weighted, plain),
        ("engine", weighted, plain),
    ]
    return [
        vectors(
            "ppo-reference",
            f"loop matrix of PPO clipped on {reference}",
            predicted=loop_matrix(correction("ppo", ppo_ref=reference), P, ADVANTAGE),
            computed=same,
            control=("weighted" if other is weighted else "unweighted", other),
            margin=DERIVATIVE,
            unit="reward",
        )
        for reference, same, other in rows
    ]
