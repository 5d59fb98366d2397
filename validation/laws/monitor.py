"""Claims ``forecast`` and ``monitor`` on simulated lags whose population ESS is known exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from theory.crossing import extrapolated, first_below
from theory.ess import ess_fraction
from theory.estimate import Estimate, mean_estimate
from theory.families import cn_gamma, crossing_variance, gaussian
from theory.forecast import forecast
from theory.monitor import read_batch
from theory.tail_ess import tail_corrected_ess
from validation.check import Check
from validation.laws.law import law, share

RUNS = 300
LEVEL = 0.9
COVERAGE = 0.05
"""Shares: coverage of a 90% interval is to lie in 85% to 95%"""
AT = 0.75
"""ESS at which a forecast is made: half of the way for a linear lag, 54% of the crossing step"""
STEP = 1.0
SIXTH = 1 / 6
"""Shares: an estimator that is right by the median to within a third to two thirds"""
LN2 = math.log(2)


def checks(seed: int, /) -> list[Check]:
    """Forecasts, the estimator behind the monitor, and its trigger."""
    return [*_forecasts(seed), *_estimator(seed), *_trigger(seed), _missing(seed)]


class _Case(NamedTuple):
    crossing: float
    """Step at which the exact ESS falls below 1/2"""
    made_at: int
    low: float
    step: float
    high: float
    square: float
    """Crossing extrapolated from the variance as the square of the lag"""


def _cases(seed: int, diffusion: float) -> Iterator[_Case]:
    """Gaussian lags that drift, diffuse and slow down, read off batches of 2,000 draws."""
    rng = np.random.default_rng([seed, 60])
    dims, steps, draws = 20, 80, 2000
    while True:
        drift, noise = rng.uniform(0.03, 0.15), rng.uniform(0, diffusion)
        moves = noise / math.sqrt(dims) * rng.normal(size=(steps, dims))
        moves[:, 0] += drift * np.arange(1, steps + 1) ** -rng.uniform(0, 0.5)
        variance = (np.cumsum(moves, axis=0) ** 2).sum(-1)
        crossing = first_below(np.exp(-variance))
        if not math.isfinite(crossing):
            continue
        last = int(crossing)
        x = rng.normal(size=(last, draws)) * np.sqrt(variance[:last, None])
        sampled = np.asarray(ess_fraction(x))
        at = first_below(sampled, AT)
        if not 3 <= at < crossing:
            continue
        n = int(at)
        got = forecast(sampled[:n], level=LEVEL, paths=300, seed=n)
        square = first_below(extrapolated(x.var(axis=-1)[:n], fit=n, horizon=20 * n))
        yield _Case(crossing, n, got.low, got.step, got.high, square)


def _forecasts(seed: int) -> list[Check]:
    cases = [case for case, _ in zip(_cases(seed, 0.15), range(RUNS), strict=False)]
    covered = sum(c.low <= c.crossing <= c.high for c in cases)
    # an interval of the same centre and no width but the step
    pointed = sum(abs(c.step - c.crossing) < 0.5 for c in cases)

    def within(steps: float, ahead: tuple[float, float]) -> tuple[int, int, int]:
        some = [c for c in cases if ahead[0] <= c.crossing - c.made_at <= ahead[1]]
        return (
            sum(abs(c.step - c.crossing) <= steps for c in some),
            sum(abs(c.square - c.crossing) <= steps for c in some),
            len(some),
        )

    near, square, short = within(STEP, (1, 2))
    far, far_square, long = within(STEP, (3, math.inf))
    width = float(np.median([c.high - c.low for c in cases]))
    errors = [abs(math.log(c.step / c.crossing)) for c in cases if math.isfinite(c.step)]
    squares = [abs(math.log(c.square / c.crossing)) for c in cases if math.isfinite(c.square)]
    return [
        law(
            "forecast",
            f"coverage of the 90% interval, {RUNS} lags that drift, diffuse and slow down, made at ESS {AT}",
            predicted=LEVEL,
            computed=share(covered, len(cases)),
            control=("the point forecast as an interval", share(pointed, len(cases))),
            margin=COVERAGE,
            unit="share",
            note=f"median width {width:g} steps, crossings at step {_median(c.crossing for c in cases):g}, "
            f"made at step {_median(c.made_at for c in cases):g}",
        ),
        law(
            "forecast",
            "share of forecasts within one step of the crossing, two steps ahead or less",
            predicted=0.9,
            computed=share(near, short),
            control=("three steps ahead or more", share(far, long)),
            form="at least",
            margin=0.0,
            unit="share",
            note=f"the square-law extrapolation: {square}/{short} and {far_square}/{long}; further ahead the "
            "sampling noise still to come decides, and one step is out of reach",
        ),
        law(
            "forecast",
            "mean error of the forecast in ln steps, against the square-law extrapolation's",
            predicted=float(np.mean(squares)),
            computed=mean_estimate(errors, unit="ln steps"),
            control=("no forecast: the step it was made at", _naive(cases)),
            form="at most",
            margin=0.0,
            unit="ln steps",
        ),
    ]


def _median(values: Iterator[float]) -> float:
    return float(np.median(list(values)))


def _naive(cases: list[_Case]) -> Estimate:
    return mean_estimate([math.log(c.crossing / c.made_at) for c in cases], unit="ln steps")


def _laws(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> dict[str, np.ndarray]:
    """Log ratios of mean ratio one; at scale 1 their population ESS is 1/2."""
    heavy = crossing_variance(cn_gamma(2.0)).s2 * scale**2 * rng.gamma(0.5, 2.0, size=shape)
    light = crossing_variance(gaussian()).s2 * scale**2
    normal = rng.normal(size=(2, *shape))
    return {
        "a heavy mixture": normal[0] * np.sqrt(heavy) - heavy / 2,
        "a Gaussian": normal[1] * math.sqrt(light) - light / 2,
    }


def _estimator(seed: int) -> list[Check]:
    """How often one batch reads below 1/2 where the population ESS is 1/2."""
    rng = np.random.default_rng([seed, 61])
    n, repeats = 1024, 1500
    found = []
    for name, x in _laws(rng, (repeats, n), 1.0).items():
        corrected = int((tail_corrected_ess(x) < 0.5).sum())
        plain = int((ess_fraction(x) < 0.5).sum())
        healthy = _laws(rng, (repeats, n), 0.6)[name]
        control = ("the plain sample ESS", share(plain, repeats))
        if name == "a Gaussian":  # its plain ESS is nearly right already; a healthy batch must not read low
            control = ("at ESS .78", share(int((tail_corrected_ess(healthy) < 0.5).sum()), repeats))
        found.append(
            law(
                "monitor",
                f"share of batches at ESS 1/2 that the tail-corrected ESS calls below it, {name}",
                predicted=0.5,
                computed=share(corrected, repeats),
                control=control,
                margin=SIXTH,
                unit="share",
                note=f"{n} draws; plain {plain / repeats:.2f}",
            )
        )
    return found


def _trigger(seed: int) -> list[Check]:
    """Count the steps between true crossing and firing, lag growing linearly, 512 tokens a step."""
    rng = np.random.default_rng([seed, 62])
    crossing, runs = 12, 60
    late = {"monitor": 0, "plain": 0}
    early: list[float] = []
    for _ in range(runs):
        fired = plain = math.inf
        before: list[float] = []
        for step in range(1, 2 * crossing):
            x = _laws(rng, (64, 8), (step - 0.5) / (crossing - 0.5))["a heavy mixture"]
            reading = read_batch(None, -np.maximum(x, 0), np.minimum(x, 0), k_before=before[-4:], resamples=0)
            before.append(reading.k_hat)
            fired = min(fired, step if reading.resync else math.inf)
            plain = min(plain, step if reading.ess_token < 0.5 else math.inf)
        late["monitor"] += fired > crossing + 1
        late["plain"] += plain > crossing + 1
        early.append(crossing - fired)
    false = sum(e > 2 for e in early)
    return [
        law(
            "monitor",
            f"share of heavy-tailed runs where it fires later than one step after the crossing ({runs} runs)",
            predicted=0.3,
            computed=share(late["monitor"], runs),
            control=("the plain ESS below 1/2", share(late["plain"], runs)),
            form="at most",
            margin=0.0,
            unit="share",
            note=f"fires {-float(np.mean(early)):+.1f} steps from the crossing on average; {false} of {runs} "
            "more than two steps early. Predicted: two looks, each right half of the time, and a little",
        )
    ]


def _missing(seed: int) -> Check:
    """Move trainer mass to an action the sampler never draws: ESS stays 1, the shortfall of w sees it."""
    rng = np.random.default_rng([seed, 63])
    repeats, moved = 40, 0.3

    def shortfall(mass: float) -> Estimate:
        values = []
        for _ in range(repeats):
            noise = 0.1 * rng.normal(size=(64, 8))
            x = noise - 0.005 + math.log1p(-mass)
            reading = read_batch(None, -np.maximum(x, 0), np.minimum(x, 0), resamples=0)
            values.append(reading.missing.value)
        return mean_estimate(values, unit="share")

    return law(
        "monitor",
        "mass that left the sampler's support, from the shortfall of the mean ratio",
        predicted=moved,
        computed=shortfall(moved),
        control=("no mass moved", shortfall(0.0)),
        margin=0.005,
        unit="share",
        note="the ESS of these batches is .99: blind to it",
    )
