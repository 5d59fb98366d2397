"""Laws of claims ``off-support`` and ``invisible``: absorbing exit, bound, blindness of a sample."""

from __future__ import annotations

import itertools
import math

import numpy as np

from theory.estimate import mean_estimate
from theory.support import absorbing_chain, branch_share, kl_bound, two_step, unseen
from validation.check import Check
from validation.laws.law import law, share

RATE, LENGTH, SAMPLER = 0.04743, 200, 1e-4
"""A trainer nine tenths of whose tokens are off-support"""
HEALTHY = math.log(2) / 2
"""Nats per token: KL of a Gaussian lag at ESS 1/2, where importance weighting still works"""


def checks(seed: int, /) -> list[Check]:
    """All laws of the exit."""
    rng = np.random.default_rng([seed, 40])
    return [*_chain(rng), *_bound(rng), *_two_steps(), *_invisible(rng)]


def _chain(rng: np.random.Generator) -> list[Check]:
    """Share of off-support tokens by drawing responses; KL by adding up over where the exit falls."""
    chain = absorbing_chain(RATE, LENGTH, sampler_rate=SAMPLER)

    def drawn(rate: float) -> np.ndarray:
        exits = rng.geometric(rate, size=20_000) - 1
        return np.clip(LENGTH - exits, 0, None) / LENGTH

    return [
        law(
            "off-support",
            f"off-support share of tokens, exit rate {RATE}, {LENGTH} tokens, 20,000 responses drawn",
            predicted=chain.off_share,
            computed=mean_estimate(drawn(RATE).tolist(), unit="share"),
            control=("on-policy", mean_estimate(drawn(SAMPLER).tolist(), unit="share")),
            margin=0.005,
            unit="share",
        ),
        law(
            "off-support",
            "share of responses that have left",
            predicted=chain.left,
            computed=share(int((drawn(RATE) > 0).sum()), 20_000),
            control=("on-policy", share(int((drawn(SAMPLER) > 0).sum()), 20_000)),
            margin=0.005,
            unit="share",
        ),
        law(
            "invisible",
            "KL(mu||pi) per token before the exit, response by response",
            predicted=chain.kl_sampler,
            computed=_kl_of_responses(RATE, SAMPLER),
            control=("on-policy", _kl_of_responses(SAMPLER, SAMPLER)),
            unit="nats/token",
        ),
    ]


def _kl_of_responses(rate: float, sampler: float) -> float:
    """KL over whole responses that end at the exit, per token generated before or at it."""
    total = tokens = 0.0
    for stay in range(LENGTH + 1):
        out = stay < LENGTH
        mu = (1 - sampler) ** stay * (sampler if out else 1)
        pi = (1 - rate) ** stay * (rate if out else 1)
        total += mu * math.log(mu / pi)
        tokens += mu * (stay + out)
    return total / tokens


def _bound(rng: np.random.Generator) -> list[Check]:
    rates = rng.random(64) * 0.05
    left = float(1 - np.prod(1 - rates))
    # at every token the sampler draws one of two words and never exits; the trainer has moved between them
    # too
    moved = 0.5 + 0.05 * (rng.random(64) - 0.5)

    def paid(exits: np.ndarray) -> float:
        rows = np.stack([(1 - exits) * moved, (1 - exits) * (1 - moved)], axis=-1)
        return float((0.5 * np.log(0.5 / rows)).sum(-1).mean())

    even = absorbing_chain(1 - (1 - left) ** (1 / 64), 64)
    return [
        law(
            "invisible",
            "KL per token of a trainer that leaves at uneven rates: never below -ln(1 - P_off)/T",
            predicted=kl_bound(left, 64),
            computed=paid(rates),
            control=("one that never leaves", paid(0 * rates)),
            form="at least",
            unit="nats/token",
        ),
        law(
            "invisible",
            "the bound at a constant rate: attained",
            predicted=kl_bound(left, 64),
            computed=even.kl_sampler,
            control=("half of the length", 2 * even.kl_sampler),
            unit="nats/token",
        ),
    ]


def _enumerate_two_steps(rate: float, sampler: float = 1e-4, twist: float = 0.999) -> tuple[float, float]:
    """KL per token on the sampler's prefixes and off-support share, over all four responses."""
    mu = ([1 - sampler, sampler], ([1 - sampler, sampler], [1 - sampler, sampler]))
    pi = ([1 - rate, rate], ([1 - sampler, sampler], [1 - twist, twist]))
    forward = off = 0.0
    for first, second in itertools.product((0, 1), repeat=2):
        m, p = (law_[0][first] * law_[1][first][second] for law_ in (mu, pi))
        forward += m * math.log(m / p) / 2
        off += p * (first + first * second) / 2
    return forward, off


def _two_steps() -> list[Check]:
    got, (forward, off) = two_step(0.5), _enumerate_two_steps(0.5)
    still = _enumerate_two_steps(1e-4)
    return [
        law(
            "invisible",
            "two tokens, half of the responses leave: KL per token on the sampler's prefixes",
            predicted=got.kl_sampler,
            computed=forward,
            control=("on-policy at the exit", still[0]),
            unit="nats/token",
        ),
        law(
            "off-support",
            "the same: off-support share",
            predicted=got.off_share,
            computed=off,
            control=("on-policy at the exit", still[1]),
            unit="share",
        ),
    ]


def _invisible(rng: np.random.Generator) -> list[Check]:
    """Show nine tenths off-support at a healthy KL on the sampler's side, which long responses allow."""
    chain = absorbing_chain(RATE, LENGTH, sampler_rate=SAMPLER)
    # a batch of 512 responses of 64 tokens of a sampler that exits once in 10,000
    tokens, repeats = 512 * 64, 2000
    blind = int((rng.binomial(tokens, SAMPLER, size=repeats) == 0).sum())
    careless = int((rng.binomial(tokens, 20 * SAMPLER, size=repeats) == 0).sum())
    return [
        law(
            "invisible",
            f"KL per token on the sampler's prefixes at an off-support share of {chain.off_share:.2f}",
            predicted=HEALTHY,
            computed=_kl_of_responses(RATE, SAMPLER),
            control=("two tokens, .9 of the responses gone", kl_bound(0.9, 2)),
            form="at most",
            margin=0.0,
            unit="nats/token",
            note=f"predicted: a healthy lag at ESS 1/2. {LENGTH} tokens hide the collapse; so does a longer "
            f"branch after the exit: {branch_share(0.2, off_tokens=100, on_tokens=2):.2f} off at rate .2",
        ),
        law(
            "invisible",
            "probability that a batch of 512 x 64 tokens holds no exit, so that its ESS reads 1",
            predicted=unseen(SAMPLER, tokens),
            computed=share(blind, repeats),
            control=("a sampler that exits 20 times as often", share(careless, repeats)),
            margin=0.02,
            unit="share",
        ),
    ]
