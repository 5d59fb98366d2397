"""Laws of claim ``ess-half``: what one half means, pools, responses, and what a sample makes of it."""

from __future__ import annotations

import math

import numpy as np

from theory.crossing import crossing_step
from theory.ess import ess_fraction, response_ess
from theory.estimate import Estimate, mean_estimate
from theory.families import crossing_variance, gaussian
from theory.finite_sample import gaussian_ess_bias, log_ess_variance
from theory.pooling import pooled_ess, sequence_ess
from validation.check import Check
from validation.laws.law import law

CLAIM = "ess-half"
LN2 = math.log(2)
SAMPLED = 0.01
"""Shares; twice the standard error that a million draws leave at ESS 1/2, heavy pools included"""


def checks(seed: int, /) -> list[Check]:
    """All laws of the ESS itself."""
    rng = np.random.default_rng([seed, 20])
    return [
        _one_half(rng),
        _threshold(),
        _pool(rng),
        _response(rng),
        _bias(rng),
        _spread(rng),
        _diffusion(rng),
    ]


def _at_half(rng: np.random.Generator, shape: int | tuple[int, ...], s2: float = LN2) -> np.ndarray:
    return rng.normal(size=shape) * math.sqrt(s2) - s2 / 2


def _one_half(rng: np.random.Generator) -> Check:
    """Measure CV(w) where ESS is 1/2."""

    def spread(s2: float) -> Estimate:
        return mean_estimate(
            [float(np.exp(_at_half(rng, 100_000, s2)).std()) for _ in range(10)], unit="ratio"
        )

    return law(
        CLAIM,
        "standard deviation of w over its mean at ESS 1/2: one, and nothing else happens there",
        predicted=1.0,
        computed=spread(LN2),
        control=("at ESS .7", spread(-math.log(0.7))),
        margin=0.03,
        unit="ratio",
        note="margin: the spread of w itself is heavy-tailed, 10 x 100,000 draws leave .01",
    )


def _threshold() -> Check:
    """Count the steps at which exp(-sigma^2) of a linear lag passes .3 and .5."""
    steps = np.arange(1, 100_001)
    ess = np.exp(-((1e-4 * steps) ** 2))
    first = {t: int(np.argmax(ess < t)) + 1 for t in (0.3, 0.5, 0.05)}
    law_ratio = math.sqrt(crossing_variance(gaussian(), threshold=0.3).s2 / LN2)
    return law(
        CLAIM,
        "crossing step at threshold .3 over that at 1/2: a third later, so 1/2 is no knife edge",
        predicted=law_ratio,
        computed=first[0.3] / first[0.5],
        control=("threshold .05", first[0.05] / first[0.5]),
        margin=1e-3,
        unit="ratio",
    )


def _pool(rng: np.random.Generator) -> Check:
    variance = np.array([0.01, 0.3, 1.0])
    x = np.concatenate([_at_half(rng, (10, 100_000), v) for v in variance], axis=-1)
    return law(
        CLAIM,
        "ESS of prefixes of unequal lag pooled: the harmonic mean of theirs",
        predicted=float(pooled_ess(np.exp(-variance))),
        computed=mean_estimate(ess_fraction(x).tolist(), unit="share"),
        control=("lag spread evenly: exp(-mean variance)", math.exp(-variance.mean())),
        margin=SAMPLED,
        unit="share",
    )


def _response(rng: np.random.Generator) -> Check:
    tokens = 8
    x = _at_half(rng, (10, 20_000, tokens), LN2 / tokens)
    return law(
        CLAIM,
        "response ESS of 8 independent tokens of variance ln2/8: the product of theirs, 1/2",
        predicted=float(sequence_ess(np.full(tokens, math.exp(-LN2 / tokens)))),
        computed=mean_estimate(response_ess(x).tolist(), unit="share"),
        control=(
            "token ESS of the same draws",
            mean_estimate(ess_fraction(x.reshape(10, -1)).tolist(), unit="share"),
        ),
        margin=2 * SAMPLED,
        unit="share",
    )


def _bias(rng: np.random.Generator) -> Check:
    n, repeats = 512, 8000
    found = mean_estimate((n * (ess_fraction(_at_half(rng, (repeats, n))) - 0.5)).tolist(), unit="draws")
    plain = mean_estimate(
        (n * (ess_fraction(_at_half(rng, (repeats, n), 0.02)) - math.exp(-0.02))).tolist(), unit="draws"
    )
    return law(
        CLAIM,
        f"bias of the sample ESS at 1/2 times n, {n} draws: reads high",
        predicted=n * gaussian_ess_bias(LN2, n),
        computed=found,
        control=("at ESS .98", plain),
        margin=3.0,
        unit="draws",
        note="5/n is the first term; the next, of order (5/n)^2 and negative, is the margin at this n",
    )


def _spread(rng: np.random.Generator) -> Check:
    n = 8192
    samples = np.log(np.array([ess_fraction(_at_half(rng, n)) for _ in range(1000)]))
    value = float(samples.std(ddof=1) * math.sqrt(n))
    return law(
        CLAIM,
        f"standard deviation of log ESS^ times sqrt(n), {n} draws",
        predicted=math.sqrt(log_ess_variance(2.0, 8.0, 64.0)),
        computed=Estimate(value=value, stderr=value / math.sqrt(2 * 999), unit="nats"),
        control=("a Gaussian estimator's guess, sqrt(2)", math.sqrt(2)),
        margin=0.4,
        unit="nats",
        note="delta method; w^2 is so heavy-tailed that at 256 draws the spread is a third below it",
    )


def _diffusion(rng: np.random.Generator) -> Check:
    """Mean lag variance of simulated parameters that drift and diffuse, against the crossing formula."""
    drift, diffusion, dims, runs = 0.03, 0.08, 50, 400
    moves = diffusion / math.sqrt(dims) * rng.normal(size=(runs, 60, dims))
    moves[:, :, 0] += drift
    variance = (np.cumsum(moves, axis=1) ** 2).sum(-1)

    def crossing(v: np.ndarray) -> Estimate:
        steps = np.arange(0, 61)
        each = [
            float(np.interp(LN2, np.concatenate([[0], row]), steps))
            for row in np.maximum.accumulate(v, axis=-1)
        ]
        return mean_estimate(each, unit="steps")

    still = np.cumsum(np.full((1, 60), drift), axis=-1) ** 2
    return law(
        CLAIM,
        "crossing step of lags that drift and diffuse",
        predicted=crossing_step(LN2, drift=drift, diffusion=diffusion),
        computed=crossing(variance),
        control=("drift alone", float(np.interp(LN2, np.concatenate([[0], still[0]]), np.arange(0, 61)))),
        margin=0.5,
        unit="steps",
    )
