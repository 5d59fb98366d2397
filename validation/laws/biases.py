"""Laws of claim ``centering``: what centring removes, what it leaves, and where it can do nothing."""

from __future__ import annotations

import math

import numpy as np

from theory.arrays import log_softmax
from theory.centering import coefficients
from theory.corrections import Logps, correction
from theory.estimate import Estimate
from theory.fisher import fisher, gradient
from theory.gradient import (
    baseline_drift,
    discrepancy_bias,
    expected_gradient,
    fresh_noise_bias,
    rms_left,
    rms_removed,
)
from validation.check import Check
from validation.laws.law import law, vectors

CLAIM = "centering"
ORDER = 0.2
"""Orders of a remainder: measured at finite steps it is off by the next order, and 1 and 2 stay apart"""


def checks(seed: int, /) -> list[Check]:
    """All laws of the bias."""
    rng = np.random.default_rng([seed, 30])
    return [_removed(rng), *_orders(rng), *_random_noise(rng), _fresh(rng), _lemma(rng)]


def _row(rng: np.random.Generator, arms: int = 6) -> tuple[np.ndarray, np.ndarray]:
    z = rng.normal(size=arms)
    p = np.exp(log_softmax(z))
    advantage = rng.normal(size=arms)
    return z, advantage - p @ advantage + 0.8


def _removed(rng: np.random.Generator) -> Check:
    z, advantage = _row(rng)
    logmu, logpi = log_softmax(z + rng.normal(size=z.size)), log_softmax(z)
    row = Logps(logmu, logpi, logpi)

    def removed(a: np.ndarray) -> np.ndarray:
        return expected_gradient(correction("pg"), row, a) - expected_gradient(correction("sc"), row, a)

    return vectors(
        CLAIM,
        "what centring removes, (mu.A)(mu - pi), against the core's PG less SC",
        predicted=baseline_drift(np.exp(logmu), np.exp(logpi), advantage),
        computed=removed(advantage),
        control=("no mean advantage left", removed(advantage - np.exp(logmu) @ advantage)),
        unit="reward",
    )


def _orders(rng: np.random.Generator) -> list[Check]:
    z, advantage = _row(rng)
    p, delta = np.exp(log_softmax(z)), rng.normal(size=z.size)

    def order(name: str, centered: bool) -> float:
        left = []
        for size in (1e-2, 5e-3):
            row = Logps(log_softmax(z + size * delta), log_softmax(z), log_softmax(z))
            bias = expected_gradient(correction(name), row, advantage) - gradient(p, advantage)
            left.append(
                np.linalg.norm(bias - discrepancy_bias(p, advantage, size * delta, centered=centered))
            )
        return math.log2(left[0] / left[1])

    rows = [("pg", False, "H delta + Abar F delta", True), ("sc", True, "H delta", False)]
    return [
        law(
            CLAIM,
            f"order in the discrepancy of the bias of {name} beside {terms}",
            predicted=2.0,
            computed=order(name, centered),
            control=(f"the terms of {'SC' if wrong else 'PG'} in their place", order(name, wrong)),
            margin=ORDER,
            unit="order",
        )
        for name, centered, terms, wrong in rows
    ]


def _random_noise(rng: np.random.Generator) -> list[Check]:
    """Rms of both terms over frozen iid noise, at the core's own gradients."""
    z, advantage = _row(rng)
    p, scale, n = np.exp(log_softmax(z)), 0.02, 20_000
    delta = scale * rng.normal(size=(n, z.size))
    row = Logps(log_softmax(z + delta), *(np.broadcast_to(log_softmax(z), delta.shape) for _ in range(2)))
    pg, sc = (expected_gradient(correction(name), row, advantage + 0 * delta) for name in ("pg", "sc"))

    def rms(x: np.ndarray) -> Estimate:
        square = (x**2).sum(-1)
        value = math.sqrt(square.mean())
        return Estimate(value=value, stderr=float(square.std()) / math.sqrt(n) / (2 * value), unit="reward")

    removed, left = rms(pg - sc), rms(sc - gradient(p, advantage))
    return [
        law(
            CLAIM,
            "rms over random noise of what centring removes, s |Abar| |F|",
            predicted=float(rms_removed(p, advantage, scale)),
            computed=removed,
            control=("without the mean advantage", float(scale * np.linalg.norm(fisher(p)))),
            margin=0.03 * removed.value,
            unit="reward",
        ),
        law(
            CLAIM,
            "rms over random noise of what it leaves, s |H|",
            predicted=float(rms_left(p, advantage, scale)),
            computed=left,
            control=("|F| in place of |H|", float(scale * np.linalg.norm(fisher(p)))),
            margin=0.03 * left.value,
            unit="reward",
            note=f"here it removes {removed.value / left.value:.1f} times what it leaves",
        ),
    ]


def _fresh(rng: np.random.Generator) -> Check:
    """Mean drift under noise drawn anew, against draws; antithetic pairs cancel the first order."""
    z, advantage = _row(rng)
    p, scale = np.exp(log_softmax(z)), 0.2
    half = scale * rng.normal(size=(200_000, z.size))

    def drift(a: np.ndarray) -> np.ndarray:
        pair = (np.exp(log_softmax(z + half)) + np.exp(log_softmax(z - half))) / 2
        return (p @ a) * (pair.mean(axis=0) - p)

    predicted = fresh_noise_bias(p, advantage, scale)
    return vectors(
        CLAIM,
        "drift under fresh noise, Abar s^2 p (|p|^2 - p), against 400,000 draws",
        predicted=predicted,
        computed=drift(advantage),
        control=("no mean advantage left", drift(advantage - p @ advantage)),
        # the next order of the expansion is s^4 with constants of order one
        margin=0.1 * float(np.abs(predicted).max()),
        unit="reward",
    )


def _lemma(rng: np.random.Generator) -> Check:
    """On a prefix that a whole group shares, group-centred advantages make PG and SC one and the same."""
    z = rng.normal(size=5)
    logmu, logpi = log_softmax(z + 0.5 * rng.normal(size=5)), log_softmax(z)
    drawn = rng.choice(5, size=(1, 16), p=np.exp(logmu))
    reward = rng.normal(size=drawn.shape)

    def apart(advantage: np.ndarray) -> float:
        token = Logps(logmu[drawn], logpi[drawn], logpi[drawn])
        row = Logps(*(np.broadcast_to(x, (*drawn.shape, 5)) for x in (logmu, logpi, logpi)))
        grads = []
        for name in ("pg", "sc"):
            c = coefficients(correction(name), token, advantage, row=row)
            weight = c.token[..., None] * np.eye(5)[drawn] + (0 if c.row is None else c.row)
            grads.append((weight - weight.sum(-1, keepdims=True) * np.exp(logpi)).sum((0, 1)))
        return float(np.abs(grads[0] - grads[1]).max())

    return law(
        CLAIM,
        "PG less SC over a group of 16 sharing its prefix, advantages less their mean",
        predicted=0.0,
        computed=apart(reward - reward.mean()),
        control=("raw rewards", apart(reward)),
        unit="reward",
        note="so centring can act only where responses of a group have parted, or without a group baseline",
    )
