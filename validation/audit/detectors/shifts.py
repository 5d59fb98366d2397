"""Log-probs that stand beside the wrong tokens of their own row: shifted rows, shifted row ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

SHIFTS = (-3, -2, -1, 1, 2, 3)
LEAST_TOKENS = 50
"""Live tokens without which nothing is looked for"""
SHORTEST = 8
"""Tokens a row needs before a shift is looked for in it"""
BROKEN_RMS = 0.7
"""rms of d in nats from which a row may be misaligned: pairing other tokens costs nats"""
CAPPED = 4.0
"""Nats at which a single |d| is capped: one wild token must not hide that a shift restores the others"""
RESTORED = 0.4
"""A shift explains a row if it takes rms of d below this share"""
SEARCHED_ROWS = 300
"""Rows for which every lag and every other row is tried"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Look at shifts of whole rows, then of row ends."""
    found = []
    for look in (_shift, _suffix):
        finding = look(evidence) if evidence.live.sum() >= LEAST_TOKENS else None
        if finding is not None:
            found.append(finding)
    return found


class _Fit(NamedTuple):
    rms: np.ndarray
    """Root mean square of d per row, each |d| capped"""
    corr: np.ndarray
    tokens: np.ndarray


def _fit(evidence: Evidence, live: np.ndarray, shift: int, rows: int) -> _Fit:
    """How well mu at token i fits the reference at token i + shift, per row."""
    mu, ref, row = evidence.mu[live], evidence.ref[live], evidence.row[live]
    if shift > 0:
        a, b, same, owner = mu[:-shift], ref[shift:], row[:-shift] == row[shift:], row[:-shift]
    elif shift < 0:
        a, b, same, owner = mu[-shift:], ref[:shift], row[-shift:] == row[:shift], row[-shift:]
    else:
        a, b, same, owner = mu, ref, np.ones(len(mu), dtype=bool), row
    a, b, owner = a[same], b[same], owner[same]

    def total(x: np.ndarray) -> np.ndarray:
        return np.bincount(owner, weights=x, minlength=rows)

    count = np.bincount(owner, minlength=rows)
    n = np.maximum(count, 1)
    mean_a, mean_b = total(a) / n, total(b) / n
    da, db = a - mean_a[owner], b - mean_b[owner]
    norm = np.sqrt(total(da * da) * total(db * db))
    corr = np.where(norm > 0, total(da * db) / np.where(norm > 0, norm, 1), 0.0)
    capped = np.minimum(np.abs(a - b), CAPPED)
    return _Fit(np.sqrt(total(capped**2) / n), corr, count)


def _shift(evidence: Evidence) -> Finding | None:
    """Rows whose log-probs fit the other side once moved by a few tokens."""
    rows = int(evidence.row.max()) + 1
    here = _fit(evidence, evidence.live, 0, rows)
    best, best_rms, best_corr = np.zeros(rows, dtype=int), here.rms.copy(), here.corr.copy()
    for shift in SHIFTS:
        moved = _fit(evidence, evidence.live, shift, rows)
        better = (moved.tokens >= SHORTEST - 3) & (moved.rms < best_rms)
        best[better], best_rms[better], best_corr[better] = shift, moved.rms[better], moved.corr[better]
    wrong = (
        (here.tokens >= SHORTEST)
        & (here.rms > BROKEN_RMS)
        & (best != 0)
        & (best_rms < RESTORED * here.rms)
        & (best_corr > here.corr + 0.2)
    )
    looked = here.tokens >= SHORTEST
    if not wrong.any():
        return None
    names, counts = np.unique(best[wrong], return_counts=True)
    shift = int(names[np.argmax(counts)])
    share = float(wrong.sum() / looked.sum())
    # rows too short to be judged alone share the fate of the others
    tokens = evidence.live.copy() if share > 0.5 else wrong[evidence.row] & evidence.live
    evidence.live &= ~tokens
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"the engine's log-probs are shifted by {-shift:+d} token(s) in {int(wrong.sum())} of "
            f"{int(looked.sum())} rows"
        ),
        confidence=0.97,
        explains=evidence.explains(tokens),
        figures=(
            Figure(what="share of rows", value=share, where=evidence.place(int(np.flatnonzero(wrong)[0]))),
            Figure(what="correlation of the two sides as logged", value=float(np.median(here.corr[wrong]))),
            Figure(what="correlation when moved back", value=float(np.median(best_corr[wrong]))),
            Figure(what="rms d as logged, nats", value=float(np.median(here.rms[wrong]))),
            Figure(what="rms d when moved back, nats", value=float(np.median(best_rms[wrong]))),
        ),
        rules_out=("numerics, lag and temperature: none of them is undone by a shift",),
        first=(
            f"move the log-probs by {shift:+d} (--align {shift:+d} audits them moved) and fix the slice that"
            " makes it"
        ),
        tokens=tokens,
    )


def rows_of(evidence: Evidence, /) -> list[np.ndarray]:
    """Live tokens of each row that has enough of them."""
    live = np.flatnonzero(evidence.live)
    row = evidence.row[live]
    starts = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    ends = np.append(starts[1:], len(row))
    return [live[a:b] for a, b in zip(starts, ends, strict=True) if b - a >= SHORTEST]


def _suffix(evidence: Evidence) -> Finding | None:
    """Rows that are clean up to one position and shifted from there on."""
    typical = float(np.median(np.abs(evidence.d[evidence.live])))
    limit = max(0.5, 12 * typical)
    verified, positions, suffix = 0, [], np.zeros(len(evidence.d), dtype=bool)
    far_off = np.abs(evidence.d) > limit
    looked = [at for at in rows_of(evidence) if far_off[at].sum() >= 3][:SEARCHED_ROWS]
    for at in looked:
        start = _shifted_from(evidence.mu[at], evidence.ref[at], np.flatnonzero(far_off[at]), limit)
        if start is not None:
            verified += 1
            positions.append(int(evidence.position[at[start]]))
            suffix[at[start:]] = True
    if verified < max(1, 0.2 * len(looked)):
        return None  # where everything is off, chance fits a few ends
    rows = int(evidence.row.max()) + 1
    explains = evidence.explains(suffix)
    evidence.live &= ~suffix
    clean = evidence.live
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"in {verified} of {rows} rows the two sides agree up to one position and are shifted from there"
            " to the end: ids that were re-tokenised; figures before that position are clean"
        ),
        confidence=0.95,
        explains=explains,
        figures=(
            Figure(
                what="rows with a shifted end",
                value=verified,
                where=evidence.place(first_row(evidence, suffix)),
            ),
            Figure(what="first wrong position, median", value=float(np.median(positions))),
            Figure(what="mean |d| there, nats", value=float(np.abs(evidence.d[suffix]).mean())),
            Figure(what="mean |d| elsewhere, nats", value=float(np.abs(evidence.d[clean]).mean())),
        ),
        rules_out=("bad luck on single rows: moving the end by a token restores the fit",),
        first="return token ids from the engine and train on those; do not decode and encode again",
        tokens=suffix,
    )


def _shifted_from(mu: np.ndarray, ref: np.ndarray, far: np.ndarray, limit: float) -> int | None:
    """Token from which moving the engine's side restores a row; None if nothing does."""
    for k in far[:3]:
        rest_mu, rest_ref = mu[k:], ref[k:]
        if len(rest_mu) < 6 or (far >= k).sum() < 0.2 * len(rest_mu):
            continue
        # counts, not squares: the inserted token itself may be off by any amount
        moved = [_far_share(rest_mu, rest_ref, s, limit) for s in SHIFTS if len(rest_mu) - abs(s) >= 4]
        if min(moved) < RESTORED * _far_share(rest_mu, rest_ref, 0, limit):
            return int(k)
    return None


def _far_share(mu: np.ndarray, ref: np.ndarray, shift: int, limit: float) -> float:
    """Share of tokens further off than `limit` once mu at i is set against the reference at i + shift."""
    a = mu[max(0, -shift) : len(mu) - max(0, shift)]
    b = ref[max(0, shift) : len(ref) - max(0, -shift)]
    return float((np.abs(a - b) > limit).mean())


def first_row(evidence: Evidence, tokens: np.ndarray, /) -> int:
    """Row of the first of some tokens."""
    return int(evidence.row[np.flatnonzero(tokens)[0]])
