"""Laws of claims ``infra-*``: exact bias vectors against the correction core, enumeration and draws."""

from __future__ import annotations

import itertools
import math

import numpy as np

from theory.corrections import Logps, correction
from theory.fisher import gradient
from theory.gradient import expected_gradient
from theory.infrastructure import deferred_bias, group_kept, nucleus, retokenised, reward_filter, top_p_bias
from validation.check import Check
from validation.laws.law import law, share, vectors

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
A = np.array([-0.2, 0.1, -0.5, 0.3, 1.0])
SUCCESS = np.array([0.2, 0.5, 0.1, 0.7, 0.9])
LONG = np.array([False, False, False, True, True])
SCORES = np.eye(5) - P


def checks(seed: int, /) -> list[Check]:
    """All infrastructure laws."""
    rng = np.random.default_rng([seed, 50])
    return [*_top_p(), *_retokenised(), *_filters(rng), *_deferred()]


def _truncated(keep: np.ndarray) -> Logps:
    with np.errstate(divide="ignore"):
        return Logps(np.log(np.where(keep, P / P[keep].sum(), 0.0)), np.log(P), np.log(P))


def _top_p() -> list[Check]:
    keep = nucleus(P, 0.85)
    bias = top_p_bias(P, A, keep)
    g = gradient(P, A)

    def of(name: str, row: Logps) -> np.ndarray:
        return expected_gradient(correction(name), row, A) - g

    whole = _truncated(np.ones(5, dtype=bool))
    masked = _truncated(keep)._replace(pi_s=_truncated(keep).mu, pi=_truncated(keep).mu)
    return [
        vectors(
            "infra-top-p",
            "bias of PG when the sampler draws from a nucleus of .85",
            predicted=bias.uncorrected,
            computed=of("pg", _truncated(keep)),
            control=("top-p = 1", of("pg", whole)),
            unit="reward",
        ),
        vectors(
            "infra-top-p",
            "what the ratio to the distribution really sampled leaves: the missing support",
            predicted=bias.corrected,
            computed=of("is", _truncated(keep)),
            control=("top-p = 1", of("is", whole)),
            unit="reward",
        ),
        vectors(
            "infra-top-p",
            "gradient of a trainer masked to the nucleus: exact for the restricted objective",
            predicted=bias.restricted,
            computed=of("pg", masked) + g,
            control=("the unrestricted gradient", g),
            unit="reward",
        ),
    ]


def _retokenised() -> list[Check]:
    first, second = np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.8, 0.1])
    law_ = retokenised(first, second, a=0, b=1, ab=2, advantage=1.0)
    units = np.eye(3)

    def trained(retokenise: bool) -> tuple[np.ndarray, np.ndarray]:
        """Gradient in both prefixes' logits, over the two responses that spell the same text."""
        grads = np.zeros(3), np.zeros(3)
        for tokens, p in (((0, 1), first[0] * second[1]), ((2,), first[2])):
            seen = (2,) if retokenise else tokens
            grads[0][:] += p * (units[seen[0]] - first)
            if len(seen) == 2:
                grads[1][:] += p * (units[seen[1]] - second)
        return grads

    kept, changed = trained(False), trained(True)
    ratio = math.log(first[2]) - math.log(first[0] * second[1])
    return [
        *(
            vectors(
                "infra-retokenisation",
                f"bias in the logits of the {name} prefix when (a, b) comes back as ab",
                predicted=bias,
                computed=changed[i] - kept[i],
                control=("token ids kept", kept[i] - kept[i]),
                unit="reward",
            )
            for i, (name, bias) in enumerate((("first", law_.first), ("second", law_.second)))
        ),
        law(
            "infra-retokenisation",
            "log ratio it adds, neither discrepancy nor lag",
            predicted=law_.log_ratio,
            computed=ratio,
            control=("token ids kept", 0.0),
            unit="nats",
        ),
    ]


def _kept(mu: np.ndarray, keep_wrong: float) -> tuple[np.ndarray, float]:
    """Mean gradient and mean reward of the responses a filter keeps, outcome by outcome."""
    total, reward, weight = np.zeros(5), 0.0, 0.0
    for action, right in itertools.product(range(5), (True, False)):
        p = mu[action] * (SUCCESS[action] if right else (1 - SUCCESS[action]) * keep_wrong)
        sign = 1 if right else -1
        total += p * sign * SCORES[action]
        reward += p * sign
        weight += p
    return total / weight, reward / weight


def _filters(rng: np.random.Generator) -> list[Check]:
    mu = P * np.exp([0.3, -0.2, 0.1, -0.4, 0.5])
    mu = mu / mu.sum()
    law_ = reward_filter(mu, P, SUCCESS, keep_wrong=0.0)
    plain = reward_filter(P, P, SUCCESS, keep_wrong=0.0)
    groups, samples, rho = 40_000, 8, 0.1
    right = rng.binomial(samples, rho, size=groups)
    kept = int(((right > 0) & (right < samples)).sum())
    return [
        vectors(
            "infra-reward-filter",
            "gradient of right responses alone under a discrepancy",
            predicted=law_.gradient,
            computed=_kept(mu, 0.0)[0],
            control=("no filter", _kept(mu, 1.0)[0]),
            unit="reward",
        ),
        vectors(
            "infra-reward-filter",
            "drift Abar_c (mu - pi) it adds, the part centring removes",
            predicted=law_.drift,
            computed=_kept(mu, 0.0)[0] - _centred(mu),
            control=("no filter", _kept(mu, 1.0)[1] * (mu - P)),
            unit="reward",
        ),
        vectors(
            "infra-reward-filter",
            "on-policy it only rescales the true gradient, by 1/(2 rho)",
            predicted=plain.scale * gradient(P, 2 * SUCCESS - 1),
            computed=_kept(P, 0.0)[0],
            control=("no filter", _kept(P, 1.0)[0]),
            unit="reward",
        ),
        law(
            "infra-reward-filter",
            "share of groups kept when groups of equal rewards are dropped, success .1, 8 samples",
            predicted=group_kept(rho, samples),
            computed=share(kept, groups),
            control=("success 1/2", group_kept(0.5, samples)),
            margin=0.01,
            unit="share",
        ),
    ]


def _centred(mu: np.ndarray) -> np.ndarray:
    """Gradient of the kept responses with the score centred at mu, outcome by outcome."""
    weight = mu * SUCCESS
    return (weight[:, None] * (np.eye(5) - mu)).sum(0) / weight.sum()


def _deferred() -> list[Check]:
    """Run a queue: each step trains on short responses drawn now and on long ones drawn a step ago."""
    lr, steps = 0.5, 6

    def run(delay: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, before, p, update = np.log(P), P, P, np.zeros(5)
        for _ in range(steps):
            before = np.exp(z - np.logaddexp.reduce(z))
            z = z + lr * update
            p = np.exp(z - np.logaddexp.reduce(z))
            batch = np.where(LONG, before if delay else p, p)
            update = ((batch * A)[:, None] * (np.eye(5) - p)).sum(0)
        return update - gradient(p, A), before, p

    bias, before, now = run(1)
    return [
        vectors(
            "infra-deferred",
            "bias in the steady state of a queue that hands over long responses one step late",
            predicted=deferred_bias(before, now, A, LONG),
            computed=bias,
            control=("no deferral", run(0)[0]),
            unit="reward",
        )
    ]
