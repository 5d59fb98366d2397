"""Whole rows whose two sides do not belong together: they fit at a lag of their own, or fit another row."""

from __future__ import annotations

import numpy as np

from validation.audit.detectors.shifts import (
    BROKEN_RMS,
    LEAST_TOKENS,
    SEARCHED_ROWS,
    SHORTEST,
    first_row,
    rows_of,
)
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding


def detect(evidence: Evidence, /) -> list[Finding]:
    """Look at rows that no small shift explains."""
    finding = _mispaired(evidence) if evidence.live.sum() >= LEAST_TOKENS else None
    return [] if finding is None else [finding]


def _mispaired(evidence: Evidence) -> Finding | None:
    """Rows that fit at a larger lag (padding cut from the wrong side), fit another row, or fit nothing."""
    looked = _bad_rows(evidence)
    if not looked:
        return None
    lags, lagged = [], []
    rest = []
    for at in looked:
        mu, ref = evidence.mu[at], evidence.ref[at]
        if float(np.corrcoef(mu, ref)[0, 1] if mu.std() > 0 and ref.std() > 0 else 0.0) > 0.5:
            continue
        lag = _best_lag(mu, ref)
        if lag:
            lags.append(lag)
            lagged.append(at)
        else:
            rest.append(at)
    rows = len(np.unique(evidence.row[evidence.live]))
    if lagged and len(lagged) >= max(2, len(rest)):
        return _finding(
            evidence,
            lagged,
            f"each of {len(lagged)} rows fits the other side at its own shift ({min(lags)} to {max(lags)}"
            " tokens): padding was cut from the wrong side",
            "read left-padded and right-padded lists by their masks, not by their first entries",
            0.92,
        )
    if len(rest) < max(2, 0.02 * rows):
        return None
    matched = _matches_other_rows(evidence, rest)
    if matched >= max(2, 0.3 * len(rest)):
        return _finding(
            evidence,
            rest,
            f"rows are paired wrongly: {matched} of {len(rest)} rows that do not fit their own log-probs fit"
            " another row's",
            "join the engine's and the trainer's sides by sample id, not by place in a list",
            0.95,
        )
    at = np.concatenate(rest)
    mu, ref = evidence.mu[at], evidence.ref[at]
    same_law = abs(mu.mean() - ref.mean()) < 0.35 * (mu.std() + ref.std()) / 2
    corr = float(np.corrcoef(mu, ref)[0, 1]) if mu.std() > 0 and ref.std() > 0 else 0.0
    if corr < 0.2 and same_law:
        return _finding(
            evidence,
            rest,
            f"in {len(rest)} rows the two sides have nothing to do with each other (correlation {corr:.2f})"
            " although both look like log-probs of this model: they belong to other tokens",
            "check how samples and their log-probs are joined",
            0.8,
        )
    return None


def _bad_rows(evidence: Evidence) -> list[np.ndarray]:
    """Those that are far off as a whole, a bounded number."""
    bad = [at for at in rows_of(evidence) if float(np.mean(evidence.d[at] ** 2)) > BROKEN_RMS**2]
    return bad[:SEARCHED_ROWS]


def _best_lag(mu: np.ndarray, ref: np.ndarray) -> int:
    """Find the lag at which a row's two sides fit; 0 if there is none."""
    n = len(mu)
    if n < 2 * SHORTEST:
        return 0
    best, found = 0.8, 0
    for lag in range(-(n - SHORTEST), n - SHORTEST + 1):
        a = mu[max(0, lag) : n + min(0, lag)]
        b = ref[max(0, -lag) : n - max(0, lag)]
        if len(a) < SHORTEST or a.std() == 0 or b.std() == 0:
            continue
        corr = float(np.corrcoef(a, b)[0, 1])
        # few tokens correlate by chance: the bar is higher where less overlaps
        if corr - 1.0 / np.sqrt(len(a)) > best - 0.25 and corr > best:
            best, found = corr, lag
    return found


def _matches_other_rows(evidence: Evidence, rows: list[np.ndarray]) -> int:
    """How many rows' engine side fits the trainer side of another of these rows."""
    length = min(64, int(np.median([len(at) for at in rows])))
    rows = [at for at in rows if len(at) >= length]
    if length < 12 or len(rows) < 2:
        return 0

    def unit(values: np.ndarray) -> np.ndarray:
        centred = values - values.mean(axis=1, keepdims=True)
        norm = np.linalg.norm(centred, axis=1, keepdims=True)
        return centred / np.where(norm > 0, norm, 1)

    mu = unit(np.stack([evidence.mu[at[:length]] for at in rows]))
    ref = unit(np.stack([evidence.ref[at[:length]] for at in rows]))
    return int(((mu @ ref.T).max(axis=1) > 0.9).sum())


def _finding(
    evidence: Evidence, rows: list[np.ndarray], fault: str, first: str, confidence: float
) -> Finding:
    tokens = np.zeros(len(evidence.d), dtype=bool)
    tokens[np.concatenate(rows)] = True
    explains = evidence.explains(tokens)
    evidence.live &= ~tokens
    return Finding(
        kind="alignment-tokens-masks",
        fault=fault,
        confidence=confidence,
        explains=explains,
        figures=(
            Figure(what="rows", value=len(rows), where=evidence.place(first_row(evidence, tokens))),
            Figure(what="mean |d| there, nats", value=float(np.abs(evidence.d[tokens]).mean())),
        ),
        rules_out=("numerics: noise of this size would make the engine's tokens unlikely, these are not",),
        first=first,
        tokens=tokens,
    )
