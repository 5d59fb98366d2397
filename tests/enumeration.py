"""Expected updates by summing over every action or every response: no draw, no autograd, no law.

A correction is right if its update, averaged over everything the engine can sample, is the formula it is
meant to follow. This module turns the core's constants into that average; `formulas` has the formulas.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory.centering import coefficients
from theory.corrections import Correction, Logps


class Prefix(NamedTuple):
    """Probabilities (K,) of every action at one prefix under each policy, and the advantage of each."""

    mu: np.ndarray
    pi_s: np.ndarray
    pi: np.ndarray
    pi_old: np.ndarray
    advantage: np.ndarray

    @property
    def logs(self) -> Any:
        """`Logps` of all four as the core takes them; -inf where the engine cannot sample."""
        with np.errstate(divide="ignore"):
            return Logps(*(np.log(p) for p in (self.mu, self.pi_s, self.pi, self.pi_old)))


def softmax(z: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def prefix(rng: np.random.Generator, size: int = 6, *, error: float = 0.7, lag: float = 0.9) -> Prefix:
    """Random policies far enough apart for every clip of the table to bind somewhere."""
    z_s, delta, moved, inner, advantage = rng.normal(size=(5, size))
    return Prefix(
        mu=softmax(z_s + error * delta),
        pi_s=softmax(z_s),
        pi=softmax(z_s + lag * moved),
        pi_old=softmax(z_s + lag * moved + 0.5 * inner),
        advantage=advantage + 0.4,  # so that a mean advantage is left for the centre to act on
    )


def updates(rule: Correction, at: Prefix) -> np.ndarray:
    """Logit gradient (K, K) the core prescribes: row a is the update after drawing action a.

    Each action is a response of its own, of one token, so that ratios of responses are defined.
    """
    size = len(at.mu)
    token = Logps(*(x[:, None] for x in at.logs if x is not None))
    row = Logps(*(np.broadcast_to(x, (size, 1, size)) for x in at.logs if x is not None))
    constants = coefficients(rule, token, at.advantage[:, None], row=row if rule.centered else None)
    score = np.eye(size) - at.pi  # row b: the gradient of log pi(b) in the logits
    out = constants.token * score
    return out if constants.row is None else out + constants.row[:, 0] @ score


def expected_update(rule: Correction, at: Prefix) -> np.ndarray:
    """Mean of `updates` over the engine's draws, shape (K,)."""
    return at.mu @ updates(rule, at)


class Tree(NamedTuple):
    """Two-token responses: the policies at the root (K,) and after each first token (K, K).

    An `ending` first token stops the response; what the arrays hold after it is never reached.
    """

    mu: tuple[np.ndarray, np.ndarray]
    pi_s: tuple[np.ndarray, np.ndarray]
    pi: tuple[np.ndarray, np.ndarray]
    pi_old: tuple[np.ndarray, np.ndarray]
    advantage: np.ndarray
    """(K, K) by response; entry [a, 0] stands for the one-token response where a ends it"""
    ending: np.ndarray
    """(K,) bool"""


def tree(rng: np.random.Generator, size: int = 3) -> Tree:
    """Random tree in which the last first-token ends the response."""

    def policy(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return softmax(z[0]), softmax(z[1:])

    z_s, delta, moved, inner = rng.normal(size=(4, size + 1, size))
    return Tree(
        mu=policy(z_s + 0.7 * delta),
        pi_s=policy(z_s),
        pi=policy(z_s + 0.9 * moved),
        pi_old=policy(z_s + 0.9 * moved + 0.5 * inner),
        advantage=rng.normal(size=(size, size)) + 0.4,
        ending=np.arange(size) == size - 1,
    )


def responses(t: Tree) -> list[tuple[int, int | None]]:
    """Every response, as its one or two tokens."""
    size = len(t.ending)
    out: list[tuple[int, int | None]] = []
    for a in range(size):
        out += [(a, None)] if t.ending[a] else [(a, b) for b in range(size)]
    return out


def expected_tree_update(rule: Correction, t: Tree) -> np.ndarray:
    """Mean update (K + 1, K) over all responses, all in one padded batch with NaN in the padding."""
    every, size = responses(t), len(t.ending)

    def at_tokens(policy: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        root, after = policy
        return np.array([[np.log(root[a]), np.nan if b is None else np.log(after[a, b])] for a, b in every])

    def at_rows(policy: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        root, after = policy
        nothing = np.full(size, np.nan)
        return np.array([[np.log(root), nothing if b is None else np.log(after[a])] for a, b in every])

    policies = (t.mu, t.pi_s, t.pi, t.pi_old)
    mask = np.array([[True, b is not None] for _, b in every])
    advantage = np.array([[t.advantage[a, b or 0]] * 2 for a, b in every])
    row = Logps(*(at_rows(p) for p in policies)) if rule.centered else None
    constants = coefficients(rule, Logps(*(at_tokens(p) for p in policies)), advantage, mask=mask, row=row)
    out = np.zeros((size + 1, size))
    for i, (a, b) in enumerate(every):
        weight = t.mu[0][a] * (1 if b is None else t.mu[1][a, b])
        for step, action in enumerate((a, b)):
            if action is None:
                assert constants.token[i, step] == 0
                continue
            pi = t.pi[0] if step == 0 else t.pi[1][a]
            score = np.eye(size) - pi
            update = constants.token[i, step] * score[action]
            if constants.row is not None:
                update = update + constants.row[i, step] @ score
            out[0 if step == 0 else 1 + a] += weight * update
    return out
