"""Claims checked without any run: laws against enumeration, sampling or simulation that do not use them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from theory.arrays import log_softmax
from theory.corrections import Correction, Logps, correction
from theory.ess import ess_fraction
from theory.estimate import Estimate, mean_estimate
from theory.feedback import centered_path
from theory.fisher import hessian_product
from theory.floor import floor_path
from theory.gradient import expected_gradient
from validation.check import Check, Control
from validation.checks import split
from validation.claims import CLAIMS
from validation.evidence import Evidence, Rows
from validation.floor import LN_FLOORS

ORDER_MARGIN = 0.2
"""Orders of a remainder: measured at finite steps, it is off by the next order, and 1 and 2 stay apart"""
LAW_MARGIN = math.log(1.05)
"""The covariance recursion is first order in the spread of the runs: a few per cent at these sizes"""
DRAWS = 1_000_000


def _split(seed: int) -> list[Check]:
    rng = np.random.default_rng([seed, 1])
    mu, pi_s, pi = (log_softmax(rng.uniform(-15, 15, size=(2000, 16))) for _ in range(3))
    rows = Rows(
        logmu=mu, logpi_s=pi_s, logpi=pi, what="2,000 random rows of 16 actions, logits up to 30 apart"
    )
    return split.checks(Evidence(engine="theory", seed=seed, worlds=(), rows=rows))


def _ess_half(seed: int) -> list[Check]:
    """ESS of Gaussian log ratios at variance ln 2 is one half; of Laplace ones it is far less."""
    rng = np.random.default_rng([seed, 2])

    def sampled(draw: Callable[[int], np.ndarray]) -> Estimate:
        return mean_estimate([float(ess_fraction(draw(DRAWS // 10))) for _ in range(10)], unit="share")

    sigma = math.sqrt(math.log(2))
    return [
        Check(
            claim="ess-half",
            reading="ESS of Gaussian log ratios with variance ln 2",
            form="within",
            predicted=Estimate(value=0.5, unit="share"),
            margin=0.01,
            measured=sampled(lambda n: rng.normal(0, sigma, n)),
            control=Control(
                what="Laplace log ratios of the same variance",
                measured=sampled(lambda n: rng.laplace(0, sigma / math.sqrt(2), n)),
            ),
            source=CLAIMS["ess-half"].law,
            note="the margin covers the estimator's bias, 5/n; the law ESS = 1/(1 + chi2) has no error",
        )
    ]


def _noise_floor(seed: int) -> list[Check]:
    """Propagated covariance against pairs of simulated runs of a bandit."""
    lr, steps, batch, runs = 0.2, 20, 64, 20_000
    logits = np.array([0.5, 0.2, 0.0, -0.1, -0.4, -0.2])
    advantage = np.array([1.0, 0.2, -0.3, -0.6, -0.9, -1.0])
    law = floor_path(logits, advantage, lr=lr, steps=steps, batch=batch).floor[-1]

    def simulated(size: int, stream: int) -> Estimate:
        rng = np.random.default_rng([seed, 3, stream])
        z = np.tile(logits, (2 * runs, 1))
        for _ in range(steps):
            p = np.exp(log_softmax(z))
            counts = rng.multinomial(size, p)
            weight = counts / size * (advantage - p @ advantage[:, None])
            z = z + lr * (weight - p * weight.sum(-1, keepdims=True))
        logp = log_softmax(z)
        kl = (np.exp(logp[:runs]) * (logp[:runs] - logp[runs:])).sum(-1)
        mean = mean_estimate(kl.tolist())
        return Estimate(value=math.log(mean.value / law), stderr=mean.stderr / mean.value, unit=LN_FLOORS)

    return [
        Check(
            claim="noise-floor",
            reading=f"simulated over propagated floor, {runs} pairs, lr {lr}, {steps} steps, batch {batch}",
            form="within",
            predicted=Estimate(value=0.0, unit=LN_FLOORS),
            margin=LAW_MARGIN,
            measured=simulated(batch, 0),
            control=Control(what="half the batch in the simulation alone", measured=simulated(batch // 2, 1)),
            source=CLAIMS["noise-floor"].law,
        )
    ]


def _stale(seed: int) -> list[Check]:
    """Enumerate a stale SC run: it moves on a straight line to an arm that is not the best."""
    logits, advantage = np.log([0.05, 0.60, 0.35]), np.array([1.0, 0.4, -1.0])
    lr, steps = 0.1, 400

    def end(rule: Correction) -> np.ndarray:
        z, pi_s = logits.copy(), log_softmax(logits)
        for _ in range(steps):
            z = z + lr * expected_gradient(rule, Logps(pi_s, pi_s, log_softmax(z)), advantage)
        return z - z.mean()

    straight = centered_path(logits, advantage, lr=lr, steps=steps)[-1]
    straight = straight - straight.mean()

    def distance(rule: Correction) -> Estimate:
        return Estimate(value=float(np.abs(end(rule) - straight).max()), unit="nats")

    best = int(np.argmax(advantage))
    return [
        Check(
            claim="stale",
            reading=f"distance of an enumerated stale SC run from the straight line, {steps} steps",
            form="within",
            predicted=Estimate(value=0.0, unit="nats"),
            margin=1e-9,
            measured=distance(correction("sc")),
            control=Control(what="IS in place of SC", measured=distance(correction("is"))),
            source=CLAIMS["stale"].law,
            note="the margin is rounding over the steps",
        ),
        Check(
            claim="stale",
            reading="probability of the best arm at its end: SC goes to a wrong one",
            form="at most",
            predicted=Estimate(value=0.01, unit="share"),
            margin=0.0,
            measured=Estimate(value=float(np.exp(log_softmax(end(correction("sc"))))[best]), unit="share"),
            control=Control(
                what="IS in place of SC",
                measured=Estimate(
                    value=float(np.exp(log_softmax(end(correction("is"))))[best]), unit="share"
                ),
            ),
            source=CLAIMS["stale"].law,
        ),
    ]


def _dlc(seed: int) -> list[Check]:
    """At any lag the matched centre leaves H delta, up to second order in the discrepancy."""
    rng = np.random.default_rng([seed, 4])
    z_s, lag, delta, advantage = (rng.normal(size=6) * scale for scale in (1.0, 0.7, 1.0, 1.0))

    def order(rule: Correction) -> Estimate:
        """Measure the order in the discrepancy of the bias beside H delta, per unit of centred mass."""
        p, pi, pi_s = np.exp(log_softmax(z_s + lag)), log_softmax(z_s + lag), log_softmax(z_s)
        left = []
        for size in (1e-2, 5e-3):
            d = delta * size
            mu = log_softmax(z_s + d)
            mass = float(np.exp(mu + pi - pi_s).sum())
            got = expected_gradient(rule, Logps(mu, pi_s, pi), advantage) / mass
            exact = p * (advantage - p @ advantage)
            left.append(np.linalg.norm(got - exact - hessian_product(p, advantage, d)))
        return Estimate(value=math.log2(left[0] / left[1]), unit="order")

    unclipped = {"clip": "none", "low": 0.0, "high": math.inf, "resync_below": 0.0}
    return [
        Check(
            claim="dlc",
            reading="order in the discrepancy of the bias beside H delta, lag of norm 1.7, no clip",
            form="within",
            predicted=Estimate(value=2.0, unit="order"),
            margin=ORDER_MARGIN,
            measured=order(correction("dlc", **unclipped)),
            control=Control(
                what="the same lag ratio without a centre",
                measured=order(correction("dlc", center="none", **unclipped)),
            ),
            source=CLAIMS["dlc"].law,
        )
    ]


CLOSED_FORMS: Mapping[str, Callable[[int], list[Check]]] = MappingProxyType(
    {"split": _split, "noise-floor": _noise_floor, "ess-half": _ess_half, "stale": _stale, "dlc": _dlc}
)


LAWS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "derived": frozenset({"split", "centering", "feedback", "ess-half", "heavy-tail", "excess"}),
        "biases": frozenset({"centering"}),
        "loops": frozenset({"feedback", "staleness-lr", "ppo-reference"}),
        "ess": frozenset({"ess-half"}),
        "tails": frozenset({"heavy-tail"}),
        "excesses": frozenset({"excess"}),
        "exits": frozenset({"off-support", "invisible"}),
        "toggles": frozenset(
            {"infra-top-p", "infra-retokenisation", "infra-reward-filter", "infra-deferred"}
        ),
        "monitor": frozenset({"forecast", "monitor"}),
    }
)
"""Modules of `validation.laws`, and the claims whose laws each holds"""


def selected(only: Iterable[str], /) -> list[str]:
    """Ids of the claims to check in closed form, in the order of the claims; all that have one if empty.

    Raises
    ------
    ValueError
        For an id that is unknown or has no closed form.
    """
    known = set(CLOSED_FORMS).union(*LAWS.values())
    wanted = list(only)
    for name in wanted:
        if name not in CLAIMS:
            raise ValueError(f"unknown claim {name!r}; known: {', '.join(CLAIMS)}")
        if name not in known:
            having = ", ".join(c for c in CLAIMS if c in known)
            raise ValueError(f"claim {name!r} has no closed form; those that have: {having}")
    return [name for name in CLAIMS if name in (wanted or known)]


def checks_of(claims: Iterable[str], /, *, seed: int) -> list[Check]:
    """Check claims in closed form, in the order of the claims; those that have none are left out."""
    wanted = set(claims)
    found = [check for name in CLOSED_FORMS if name in wanted for check in CLOSED_FORMS[name](seed)]
    for module, holds in LAWS.items():
        if holds & wanted:
            found += importlib.import_module(f"validation.laws.{module}").checks(seed)
    order = list(CLAIMS)
    return sorted((c for c in found if c.claim in wanted), key=lambda c: order.index(c.claim))
