"""The toy once more, in plain loops over prompts, samples and tokens: one step, and sums over every response.

Nothing is taken from toy/ but an environment's numbers, and nothing from theory/ but the fields of a rule
(`formulas` has the weights). Suffixes: C prompts, N samples, T positions, U memory states, V vocabulary.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from enumeration import Prefix, softmax
from formulas import clipped, ratio_of

from theory.corrections import Correction
from toy.task import Task


class Tables(NamedTuple):
    """Probabilities (C, T, U, V) of each policy."""

    mu: np.ndarray
    pi_s: np.ndarray
    pi: np.ndarray
    pi_old: np.ndarray


def policy(task: Task, weights: np.ndarray) -> np.ndarray:
    """Probabilities (C, T, U, V), state by state."""
    C, T, U, _ = task.logits_CTUV.shape
    out = np.zeros(task.logits_CTUV.shape)
    for state in itertools.product(range(C), range(T), range(U)):
        out[state] = softmax(
            task.logits_CTUV[state] + task.features_CTUD[state] @ weights @ task.projector_VV
        )
    return out


def memories(tokens: Any, memory: str, start: int) -> list[int]:
    """What the policy remembers at each token of one response."""
    seen = [start]
    for t in range(1, len(tokens)):
        seen.append(int(tokens[0] if memory == "first" else tokens[t - 1]))
    return seen


def _ratio(rule_ratio: str, tables: Tables, states: list[tuple[int, ...]], tokens: Any) -> float:
    """Product over one response of a ratio's tokens."""
    reference = {"lag": tables.pi_s, "total": tables.mu, "batch": tables.pi_old}[rule_ratio]
    return float(np.prod([tables.pi[s][a] / reference[s][a] for s, a in zip(states, tokens, strict=True)]))


def gradient(
    rule: Correction,
    task: Task,
    tables: Tables,
    tokens_CNT: np.ndarray,
    advantage_CN: np.ndarray,
    memory: str,
) -> np.ndarray:
    """Gradient (D, V) of one batch, one token at a time."""
    C, N, _ = tokens_CNT.shape
    V = task.projector_VV.shape[0]
    start = task.logits_CTUV.shape[2] - 1
    kept = _second_moment(rule, tables, tokens_CNT, memory, start)
    total = np.zeros(task.weights_shape)
    for c, n in itertools.product(range(C), range(N)):
        tokens = tokens_CNT[c, n]
        states = [(c, t, u) for t, u in enumerate(memories(tokens, memory, start))]
        gain = float(advantage_CN[c, n])
        for t, state in enumerate(states):
            a = int(tokens[t])
            at = Prefix(*(table[state] for table in tables), advantage=np.full(V, gain))
            on = rule.clip_on or rule.ratio
            if rule.level == "sequence":
                w = _ratio(rule.ratio, tables, states, tokens)
                row = np.full(V, clipped(rule, w, w, gain))
            elif rule.clip == "second-moment":
                row = np.full(V, ratio_of(rule.ratio, at, a) * kept[c, n, t])
            else:
                row = np.array(
                    [clipped(rule, ratio_of(rule.ratio, at, b), ratio_of(on, at, b), gain) for b in range(V)]
                )
            total += np.outer(task.features_CTUD[state], task.projector_VV @ _update(rule, at, a, row, gain))
    return total / (C * N)


def _update(rule: Correction, at: Prefix, a: int, wc: np.ndarray, gain: float) -> np.ndarray:
    """Logit gradient of one token with clipped weights `wc` of its row."""
    e_a = np.eye(len(at.mu))[a]
    if rule.center == "none":
        return gain * wc[a] * (e_a - at.pi)
    q = (at.mu if rule.center != "numerics" else at.mu - at.pi_s) * wc
    if rule.center == "matched":
        return gain * wc[a] * (e_a - q / q.sum()) if q.sum() > 0 else np.zeros(len(at.mu))
    return gain * (wc[a] * (e_a - at.pi) - (q - q.sum() * at.pi))


def _second_moment(
    rule: Correction, tables: Tables, tokens_CNT: np.ndarray, memory: str, start: int
) -> np.ndarray:
    """Tokens (C, N, T) that stay when the largest squared log ratios are dropped one by one, as 0 or 1."""
    squares = np.zeros(tokens_CNT.shape)
    for c, n in np.ndindex(tokens_CNT.shape[:2]):
        for t, u in enumerate(memories(tokens_CNT[c, n], memory, start)):
            a = tokens_CNT[c, n, t]
            squares[c, n, t] = np.log(tables.pi[c, t, u, a] / tables.mu[c, t, u, a]) ** 2
    kept = np.ones(tokens_CNT.shape)
    if rule.clip == "second-moment":
        # of equal ratios the later token goes first
        for place in np.argsort(squares, axis=None, kind="stable")[::-1]:
            if kept.sum() == 0 or squares[kept > 0].mean() <= rule.high:
                break
            kept.flat[place] = 0
    return kept


def own_ess(rule: Correction, tables: Tables, tokens_CNT: np.ndarray, memory: str) -> float:
    """ESS of the rule's ratio over whole responses."""
    start = tables.pi.shape[2] - 1
    w = []
    for c, n in np.ndindex(tokens_CNT.shape[:2]):
        tokens = tokens_CNT[c, n]
        states = [(c, t, u) for t, u in enumerate(memories(tokens, memory, start))]
        w.append(_ratio(rule.ratio, tables, states, tokens))
    return float(np.sum(w) ** 2 / (len(w) * np.sum(np.square(w))))


def sequence_probabilities(table_TUV: np.ndarray, memory: str) -> dict[tuple[int, ...], float]:
    """Probability of every response to one prompt."""
    T, U, V = table_TUV.shape
    out = {}
    for tokens in itertools.product(range(V), repeat=T):
        seen = memories(tokens, memory, U - 1)
        out[tokens] = float(np.prod([table_TUV[t, seen[t], tokens[t]] for t in range(T)]))
    return out
