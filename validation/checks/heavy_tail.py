"""Claim ``heavy-tail``: heavy tails bring the crossing earlier than a Gaussian predicts.

Three Gaussian predictions by name, since they disagree, and two that know more: the series of four cumulants
and a mixture of variances over prefixes. A cell is a world's stale importance sampling; its crossing is that
of the exact ESS where the engine has it. The controls are log-ratios drawn from other laws with the variance
that was measured. That left skew turns the claim round is judged in closed form (``check theory``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from theory.crossing import extrapolated, first_below, gaussian_kl, gaussian_var
from theory.cumulants import cumulants, ess_from_cumulants
from theory.ess import ess_fraction
from theory.estimate import Estimate
from theory.families import cn_gamma
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, World
from validation.floor import median_over_groups, over_groups
from validation.plan import IS

ARTICLE = math.log(11 / 14)
EARLIER = ARTICLE / 2
"""ln: "earlier" is at least half of the article's 11 against 14, so that a tie is not earlier"""
CLOSE = -ARTICLE
"""ln: a better predictor must come closer than the gap it is to explain"""
FIT_FROM = 0.8
"""ESS below which the extrapolation is made; it is fitted on the steps until then"""
FACTOR_TWO = math.log(2)
DRAWS = 2048
"""Log-ratios drawn a step for the controls; their ESS is exact, only the extrapolation sees the draws"""
SKEW_SHAPE = 4.0
"""Shape of the gamma law that is skewed: skewness 1 in size, kurtosis 1.5; log w of the toy has -.6 to -3"""
UNIT = "ln steps"
CLAIM = "heavy-tail"


class Series(NamedTuple):
    """What the runs of a cell report, each (S, K); log-ratios in nats."""

    ess: np.ndarray
    """Whose crossing is the true one"""
    sampled: np.ndarray
    """ESS of the batch: all that the extrapolation may see"""
    k: tuple[np.ndarray, ...]
    """First to fourth cumulant of log w"""
    mixture: np.ndarray | None
    """ESS of a gamma mixture of variances with the spread over prefixes, where that is known"""


Predictor = Callable[[Series], np.ndarray]
"""ESS a predictor reads, (S, K)"""

GAUSSIAN: dict[str, Predictor] = {
    "var": lambda s: gaussian_var(s.k[1]),
    "KL": lambda s: gaussian_kl(s.k[0]),
    "extrapolated": lambda s: _extrapolated(s),
}
BETTER: dict[str, Predictor] = {
    "four cumulants": lambda s: np.asarray(ess_from_cumulants(s.k)),
    "mixture of variances over prefixes": lambda s: (
        np.full_like(s.ess, math.nan) if s.mixture is None else s.mixture
    ),
}


def checks(evidence: Evidence, /) -> list[Check]:
    """Crossing over each prediction; earlier than the Gaussian ones, close to the better ones."""
    worlds = [w for w in evidence.worlds if IS in w.cells]
    series = {w.label: _series(w) for w in worlds}
    rng = np.random.default_rng([evidence.seed, 70])
    gaussian = {w.label: _drawn(series[w.label], rng, skew=0) for w in worlds}
    left = {w.label: _drawn(series[w.label], rng, skew=-1) for w in worlds}

    def read(of: dict[str, Series], predictor: Predictor) -> Estimate:
        return over_groups(((w.group, _log_ratio(of[w.label], predictor)) for w in worlds), unit=UNIT)

    controls = {
        "var": ("Gaussian log-ratios of the measured variance", gaussian),
        "KL": ("log-ratios skewed to the left, of the measured variance: later", left),
        "extrapolated": ("log-ratios skewed to the left, of the measured variance: later", left),
    }
    found = []
    for name, predictor in GAUSSIAN.items():
        what, drawn = controls[name]
        found.append(
            Check(
                claim=CLAIM,
                reading=f"crossing over the Gaussian prediction: {name}",
                form="at most",
                predicted=Estimate(value=EARLIER, unit=UNIT),
                margin=0.0,
                measured=read(series, predictor),
                control=Control(what=what, measured=read(drawn, predictor)),
                source=CLAIMS[CLAIM].article,
                note=_summary(worlds, series, predictor),
            )
        )
    found += [
        Check(
            claim=CLAIM,
            reading=f"crossing over the prediction from {name}",
            form="within",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=CLOSE,
            measured=read(series, predictor),
            control=Control(
                what="a Gaussian of a quarter of the variance", measured=read(series, _quarter_variance)
            ),
            source=CLAIMS[CLAIM].law,
            note=_summary(worlds, series, predictor),
        )
        for name, predictor in BETTER.items()
    ]
    return found


def _series(world: World) -> Series:
    cell = world.cells[IS]

    def column(name: str) -> np.ndarray:
        return np.stack([trace.steps[name] for trace in cell.traces])

    sampled = column("ess_token")
    exact = "ess_exact" in cell.traces[0].steps
    mixture = None
    if {"mean", "relative"} <= cell.exact.keys():
        spread = zip(cell.exact["mean"].T.ravel(), cell.exact["relative"].T.ravel(), strict=True)
        # a policy that has not moved has no spread to speak of
        shares = [1.0 if nu <= 0 or s2 <= 0 else cn_gamma(nu).ess(s2) for s2, nu in spread]
        mixture = np.array(shares).reshape(sampled.shape)
    k = tuple(column(f"k{i}") for i in (1, 2, 3, 4))
    return Series(column("ess_exact") if exact else sampled, sampled, k, mixture)


def _drawn(series: Series, rng: np.random.Generator, *, skew: int) -> Series:
    """Series of log-ratios drawn independently, with the measured variance and a mean ratio of one.

    Skew 0: Gaussian; -1: minus a gamma variable.
    """
    sigma = np.sqrt(series.k[1])
    shape = (*sigma.shape, DRAWS)
    if skew == 0:
        x = sigma[..., None] * rng.standard_normal(shape) - sigma[..., None] ** 2 / 2
        neg_log_ess = sigma**2
    else:
        scale = sigma / math.sqrt(SKEW_SHAPE)
        # E exp(-scale G) = (1 + scale)^-shape
        grown = SKEW_SHAPE * np.log1p(scale)
        x = grown[..., None] - scale[..., None] * rng.standard_gamma(SKEW_SHAPE, shape)
        neg_log_ess = 2 * grown - SKEW_SHAPE * np.log1p(2 * scale)
    return Series(np.exp(-neg_log_ess), np.asarray(ess_fraction(x)), tuple(cumulants(x)), None)


def _extrapolated(series: Series) -> np.ndarray:
    """Extrapolate each run from its own first steps."""
    k = series.ess.shape[-1]
    made = np.minimum(first_below(series.sampled, FIT_FROM), k).astype(int)
    return np.stack(
        [
            extrapolated(row[:at], fit=at, horizon=k)
            for row, at in zip(series.k[1], np.atleast_1d(made), strict=True)
        ]
    )


def _quarter_variance(series: Series) -> np.ndarray:
    return gaussian_var(series.k[1] / 4)


def _log_ratio(series: Series, predictor: Predictor) -> float:
    """Ln of crossing over predicted step, mean over the runs that cross.

    A prediction beyond the end counts as one step past it: a lower bound. NaN if no run crosses, or nothing
    was predicted.
    """
    steps = series.ess.shape[-1]
    crossing, predicted = np.atleast_1d(first_below(series.ess), first_below(predictor(series)))
    known = np.isfinite(crossing) & ~np.isnan(predicted)
    if not known.any():
        return math.nan
    return float(np.log(crossing[known] / np.minimum(predicted[known], steps + 1)).mean())


def _at_crossing(series: Series) -> tuple[float, float]:
    """Skewness of log w, and ``k3 + 7/12 k4``, at the crossing: mean over the runs that cross."""
    crossing = np.atleast_1d(first_below(series.ess))
    at = [(i, int(c) - 1) for i, c in enumerate(crossing) if math.isfinite(c)]
    if not at:
        return math.nan, math.nan
    _, k2, k3, k4 = (np.array([k[i] for i in at]) for k in series.k)
    return float(np.mean(k3 / k2**1.5)), float(np.mean(k3 + 7 / 12 * k4))


def _summary(worlds: list[World], series: dict[str, Series], predictor: Predictor) -> str:
    ratios = np.array([_log_ratio(series[w.label], predictor) for w in worlds])
    skew, beyond = np.array([_at_crossing(series[w.label]) for w in worlds]).T
    known = ~np.isnan(ratios)
    if not known.any():
        return f"no cell of {len(worlds)} could be compared"
    some = ratios[known]
    middle, low, high = map(
        math.exp, median_over_groups([(w.group, r) for w, r in zip(worlds, ratios, strict=True)])
    )
    split = float(np.median(skew[known]))

    def earlier(of: np.ndarray) -> str:
        chosen = ratios[known & of]
        return f"{int((chosen <= EARLIER).sum())} of {len(chosen)}"

    return (
        f"{len(some)} of {len(worlds)} cells; median factor {middle:.2f} [{low:.2f}, {high:.2f}], "
        f"{int((np.abs(some) <= FACTOR_TWO).sum())} within a factor 2; earlier by half the article's gap in "
        f"{earlier(skew >= split)} with a skewness of log w from {split:.1f} up at the crossing, "
        f"{earlier(skew < split)} below, {earlier(beyond > 0)} where k3 + 7/12 k4 > 0"
    )
