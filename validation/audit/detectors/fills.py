"""Fill values counted as log-probs: 0.0 at tool tokens, 1.0 as a sentinel, padding under the mask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

MOST_VALUES = 6
"""Most frequent values that are looked at"""
FEWEST = 3
USUAL = (0.0, 1.0, -1.0, -100.0, -1000.0)
"""Fill values frameworks use: one constant on the other side does not clear them"""
NEAR_ZERO = 2**-7
"""Nats below which, 0 itself apart, equal values are rounding: float32 steps by up to 4e-6 where logits are,
and the bfloat16 next to 1 is 2^-8 less. Many tokens that are all but certain share such a value"""
DISAGREES = 0.3
"""Nats between the two sides from which a fill value is told from a true log-prob of the same size"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Exact values that repeat where the other side says something else."""
    found = []
    for side, values, other in (
        ("engine", evidence.mu, evidence.ref),
        ("trainer", evidence.ref, evidence.mu),
    ):
        if finding := _padding(evidence) if side == "engine" else None:
            found.append(finding)
        for value in _frequent(values[evidence.live]):
            finding = _fill(evidence, side, values, other, value)
            if finding is not None:
                found.append(finding)
    if not len(evidence.mu):
        found += _alone(evidence)
    return found


def _frequent(values: np.ndarray) -> list[float]:
    """Values that occur often enough to be looked at, most frequent first."""
    if not values.size:
        return []
    least = max(FEWEST, int(3e-4 * values.size))
    exact = values[(values == 0) | (np.abs(values) > NEAR_ZERO)]
    names, counts = np.unique(exact, return_counts=True)
    order = np.argsort(-counts)[:MOST_VALUES]
    return [float(names[i]) for i in order if counts[i] >= least]


def _fill(
    evidence: Evidence, side: str, values: np.ndarray, other: np.ndarray, value: float
) -> Finding | None:
    """Detect: a finding if tokens of this exact value disagree with the other side.

    And their neighbours do not.
    """
    here = evidence.live & (values == value)
    rest = evidence.live & ~here
    typical = _typical(evidence, values, rest, value)
    apart = np.abs(values - other) > max(DISAGREES, 8 * typical)
    bad = here & apart
    near = rest & (np.abs(values - value) < 0.05)
    compared = near if near.sum() >= 20 else rest
    usual = float(apart[compared].mean()) if compared.any() else 0.0
    possible = value < 0.2
    if bad.sum() < FEWEST or (possible and bad.sum() / here.sum() < 3 * usual + 0.02):
        return None
    if value not in USUAL:
        # the same prefix sampled again and again repeats on both sides; a clipped log-prob mostly agrees
        repeats = len(np.unique(other[bad])) < max(FEWEST, 0.5 * bad.sum())
        if repeats or bad.sum() < 0.5 * here.sum():
            return None
    runs = _runs(evidence, here, bad)
    tokens = here & (runs.inside | bad)
    evidence.live &= ~tokens
    share = float(tokens.sum()) / len(tokens)
    impossible = "" if possible else " (above 0: no probability)"
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"{runs.story}: the {side}'s log-prob is exactly {value:g}{impossible} on {tokens.sum()} counted "
            f"tokens in {len(np.unique(evidence.row[tokens]))} rows, where the other side says "
            f"{np.median(other[bad]):.3g}"
        ),
        confidence=0.95 if not possible or runs.longest > 3 else 0.9,
        explains=evidence.explains(tokens),
        figures=(
            Figure(what="share of counted tokens", value=share, where=_where(evidence, bad)),
            Figure(what="tokens in a row, mean", value=runs.mean),
            Figure(what="mean |d| there, nats", value=float(np.abs(evidence.d[bad]).mean())),
            Figure(what="mean |d| elsewhere, nats", value=_mean_size(evidence.d[evidence.live])),
        ),
        rules_out=("numerics and lag: neither gives one exact value on tokens of different probability",),
        first=runs.remedy,
        tokens=tokens,
    )


def _typical(evidence: Evidence, values: np.ndarray, rest: np.ndarray, value: float) -> float:
    """Median |d| of the tokens whose log-prob is nearest to a value.

    Noise is larger where tokens are rare.
    """
    at = np.flatnonzero(rest)
    if not at.size:
        return 0.0
    near = min(200, at.size)
    nearest = at[np.argpartition(np.abs(values[at] - value), near - 1)[:near]]
    return float(np.median(np.abs(evidence.d[nearest])))


class _Runs(NamedTuple):
    story: str
    remedy: str
    mean: float
    longest: int
    inside: np.ndarray


def _runs(evidence: Evidence, here: np.ndarray, bad: np.ndarray) -> _Runs:
    """Where the tokens of one value stand: in runs, at the rows' ends, at their beginnings, or scattered."""
    at = np.flatnonzero(here)
    fresh = np.append(True, (np.diff(at) != 1) | (np.diff(evidence.row[at]) != 0))
    run = np.cumsum(fresh) - 1
    length = np.bincount(run)
    has_bad = np.bincount(run, weights=bad[at]) > 0
    inside = np.zeros(len(here), dtype=bool)
    inside[at[has_bad[run]]] = True
    kept = length[has_bad]
    first, last = at[fresh][has_bad], at[np.append(np.flatnonzero(fresh)[1:] - 1, len(at) - 1)][has_bad]
    row_first = np.append(True, np.diff(evidence.row) != 0)
    row_last = np.append(np.diff(evidence.row) != 0, True)
    at_end, at_start = float(row_last[last].mean()), float(row_first[first].mean())
    mean, longest = float(kept.mean()), int(kept.max())
    if at_end > 0.8 and mean < 1.5:
        story, remedy = (
            "one appended token per row, always the last (an end token the engine never sampled)",
            "mask appended end tokens out, or take their log-prob from the engine",
        )
    elif at_start > 0.8:
        story, remedy = (
            "tokens at the start of each row that the engine did not sample (prompt tokens under the mask)",
            "move the start of the loss mask to the first sampled token",
        )
    elif mean >= 4:
        story, remedy = (
            "runs of tokens the engine did not sample (tool or environment tokens) under the loss mask",
            "mask tool and observation tokens out of the loss and of every metric",
        )
    else:
        story, remedy = (
            "a fill value counted as a log-prob",
            "carry missing log-probs as null and mask them; find what dropped them",
        )
    return _Runs(story, remedy, mean, longest, inside)


def _padding(evidence: Evidence) -> Finding | None:
    """Tails of rows where both sides are exactly 0: padding under the mask."""
    zero = evidence.live & (evidence.mu == 0) & (evidence.ref == 0)
    if zero.sum() < 3:
        return None
    # a tail: zeros up to the row's last token
    at = np.flatnonzero(np.append(True, np.diff(evidence.row) != 0))
    ends = np.append(at[1:], len(zero))
    tokens = np.zeros(len(zero), dtype=bool)
    tails = 0
    for start, end in zip(at, ends, strict=True):
        broken = np.flatnonzero(~zero[start:end])
        tail = start + (int(broken[-1]) + 1 if broken.size else 0)
        same = evidence.token is None or len(np.unique(evidence.token[tail:end])) <= 1
        if end - tail >= 4 and same:
            tokens[tail:end] = True
            tails += 1
    if tails < 2:
        return None
    evidence.live &= ~tokens
    share = float(tokens.mean())
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"padding under the mask: {tails} rows end in {int(tokens.sum() / tails)} tokens with log-prob 0"
            " on both sides, one id; every mean is diluted by them"
        ),
        confidence=0.85,
        explains=share,
        figures=(
            Figure(what="share of counted tokens that is padding", value=share),
            Figure(what="mean |d| with it, nats", value=float(np.abs(evidence.d).mean())),
            Figure(what="mean |d| without it, nats", value=_mean_size(evidence.d[~tokens])),
        ),
        first="mask the padding; sums and means over it change with the batch's width",
        tokens=tokens,
    )


def _alone(evidence: Evidence) -> list[Finding]:
    """Impossible values where only the engine's side was logged."""
    mu = evidence.mu_all
    if not mu.size:
        return []
    found = []
    for value in _frequent(mu):
        if value < 0.2:
            continue
        here = mu == value
        found.append(
            Finding(
                kind="alignment-tokens-masks",
                fault=(
                    f"a fill value counted as a log-prob: exactly {value:g} (above 0: no probability) on "
                    f"{int(here.sum())} counted tokens"
                ),
                confidence=0.95,
                explains=1.0,
                figures=(Figure(what="share of counted tokens", value=float(here.mean())),),
                first="apply the loss mask before any statistic, and carry missing log-probs as null",
            )
        )
    exact_zero = float((mu == 0).mean())
    nearly = float(((mu < 0) & (mu > -1e-4)).mean())
    if exact_zero > 0.01 and nearly < 0.25 * exact_zero:
        found.append(
            Finding(
                kind="alignment-tokens-masks",
                fault=(
                    f"a fill value counted as a log-prob: exactly 0 on {exact_zero:.1%} of the tokens, "
                    "while hardly any lie just below"
                ),
                confidence=0.6,
                explains=0.5,
                figures=(
                    Figure(what="share of exact zeros", value=exact_zero),
                    Figure(what="share between -1e-4 and 0", value=nearly),
                ),
                first="check the loss mask: tool and prompt tokens carry 0.0 in most frameworks",
            )
        )
    return found


def _mean_size(d: np.ndarray) -> float:
    return float(np.abs(d).mean()) if d.size else float("nan")


def _where(evidence: Evidence, tokens: np.ndarray) -> str:
    first = int(np.flatnonzero(tokens)[0])
    return f"{evidence.place(int(evidence.row[first]))} position {evidence.position[first]}"
