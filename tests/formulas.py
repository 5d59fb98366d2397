"""The corrections written a second time, from probabilities, one action at a time.

They come from the theory (gradient bias, centring and DLC) and from the papers' objectives; nothing is taken
from theory/corrections.py but the fields of a rule. Tests compare the core's constants with these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from enumeration import Prefix
from strategies import Rows
from tolerances import algebra

from theory.corrections import Correction

CLIPS = {
    "none": {"clip": "none"},
    "trunc2": {"clip": "truncate", "high": 2.0},
    "trunc5": {"clip": "truncate", "high": 5.0},
    "trunc10": {"clip": "truncate", "high": 10.0},
    "mask": {"clip": "mask", "low": 0.6, "high": 1.5},
    "ppo": {"clip": "ppo", "low": 0.8, "high": 1.2},
    "ppo-dual": {"clip": "ppo", "low": 0.8, "high": 1.2, "dual": 1.6},
}


def ratio_of(name: str, at: Prefix, b: int) -> float:
    """Ratio at action b."""
    return {
        "none": 1.0,
        "lag": at.pi[b] / at.pi_s[b],
        "total": at.pi[b] / at.mu[b],
        "batch": at.pi[b] / at.pi_old[b],
    }[name]


def clipped(rule: Correction, w: float, c: float, advantage: float) -> float:
    """Weight after the clip: w the ratio that weights, c the ratio the clip looks at."""
    if rule.clip == "truncate":
        return rule.high if c > rule.high else w
    if rule.clip == "mask":
        return w if rule.low <= c <= rule.high else 0.0
    if rule.clip == "ppo":
        if advantage >= 0:
            return 0.0 if c > rule.high else w
        if c < rule.low or (rule.dual is not None and c > rule.dual):
            return 0.0
    return w


def formula(rule: Correction, at: Prefix) -> np.ndarray:
    """sum_a mu_a G_a with the centre of the rule, one action at a time."""
    size = len(at.mu)
    total = np.zeros(size)
    for a in range(size):
        gain = at.advantage[a]
        on = rule.clip_on or rule.ratio
        wc = np.array(
            [clipped(rule, ratio_of(rule.ratio, at, b), ratio_of(on, at, b), gain) for b in range(size)]
        )
        e_a = np.eye(size)[a]
        if rule.center == "none":
            update = gain * wc[a] * (e_a - at.pi)
        elif rule.center == "matched":
            q = at.mu * wc
            # a clip that drops the whole row leaves nothing to push: wc_a is 0 as well
            update = gain * wc[a] * (e_a - q / q.sum()) if q.sum() > 0 else np.zeros(size)
        else:
            measure = at.mu if rule.center == "form-i" else at.mu - at.pi_s
            q = measure * wc
            update = gain * (wc[a] * (e_a - at.pi) - (q - q.sum() * at.pi))
        total += at.mu[a] * update
    return total


def policy_gradient(p: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """g(p) = p * (A - p.A), the exact gradient of p.A in the logits."""
    return p * (advantage - p @ advantage)


def assert_same(got: np.ndarray, expected: np.ndarray, *magnitudes: object) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=algebra(expected, *magnitudes, 1.0))


def prefix_of(row: Rows, advantage: np.ndarray) -> Prefix:
    """Prefix with the policies of drawn rows; the batch starts at the trainer now."""
    mu, pi_s, pi = (np.exp(x) for x in row.logs)
    return Prefix(mu, pi_s, pi, pi, advantage)


def plain(weight: Callable[[Prefix, int], float]) -> Callable[[Prefix], np.ndarray]:
    def mean(at: Prefix) -> np.ndarray:
        size = len(at.mu)
        return sum(
            at.mu[a] * at.advantage[a] * weight(at, a) * (np.eye(size)[a] - at.pi) for a in range(size)
        )  # pyright: ignore[reportReturnType]

    return mean


def centred(weight: Callable[[Prefix, int], float]) -> Callable[[Prefix], np.ndarray]:
    def mean(at: Prefix) -> np.ndarray:
        size = len(at.mu)
        wc = np.array([weight(at, b) for b in range(size)])
        q = at.mu * wc / (at.mu @ wc)
        return sum(at.mu[a] * at.advantage[a] * wc[a] * (np.eye(size)[a] - q) for a in range(size))  # pyright: ignore[reportReturnType]

    return mean


def ppo_weight(at: Prefix, a: int, ratio: float) -> float:
    if at.advantage[a] >= 0:
        return ratio if ratio <= 1.2 else 0.0
    return ratio if 0.8 <= ratio <= 3.0 else 0.0


BY_NAME: dict[str, Callable[[Prefix], np.ndarray]] = {
    "pg": plain(lambda at, a: 1.0),
    "is": plain(lambda at, a: at.pi[a] / at.mu[a]),
    "tis": plain(lambda at, a: min(at.pi[a] / at.mu[a], 2.0)),
    "seq-is": plain(lambda at, a: at.pi[a] / at.mu[a]),  # a response of one token
    "sc": centred(lambda at, a: 1.0),
    "is-sc": centred(lambda at, a: at.pi[a] / at.pi_s[a]),
    "mis": plain(lambda at, a: at.pi[a] / at.mu[a] if at.pi[a] / at.mu[a] <= 2.0 else 0.0),
    "icepop": plain(lambda at, a: at.pi[a] / at.mu[a] if 0.5 <= at.pi[a] / at.mu[a] <= 5.0 else 0.0),
    "ppo": plain(lambda at, a: ppo_weight(at, a, at.pi[a] / at.pi_old[a])),
    "decoupled-ppo": plain(
        lambda at, a: (
            at.pi[a] / at.mu[a]
            if (at.pi[a] / at.pi_old[a] <= 1.2 if at.advantage[a] >= 0 else at.pi[a] / at.pi_old[a] >= 0.8)
            else 0.0
        )
    ),
    "vcpo": plain(lambda at, a: min(at.pi[a] / at.mu[a], 8.0)),
    "dlc": centred(lambda at, a: min(at.pi[a] / at.pi_s[a], 5.0)),
}
BY_BATCH = {"m2po"}
"""Its budget is over a batch: enumerated below on one"""
