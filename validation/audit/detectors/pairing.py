"""Log-probs that stand beside the wrong tokens: shifted rows, shifted row ends, rows of another sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

SHIFTS = (-3, -2, -1, 1, 2, 3)


LEAST_TOKENS = 50


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
    """Look at shifts of whole rows, then of row ends, then at rows that fit elsewhere or nowhere."""
    found = []
    for look in (_shift, _suffix, _mispaired):
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


def _rows(evidence: Evidence) -> list[np.ndarray]:
    """Live tokens of each row that has enough of them."""
    live = np.flatnonzero(evidence.live)
    row = evidence.row[live]
    starts = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    ends = np.append(starts[1:], len(row))
    return [live[a:b] for a, b in zip(starts, ends, strict=True) if b - a >= SHORTEST]


def _bad_rows(evidence: Evidence) -> list[np.ndarray]:
    """Those that are far off as a whole, a bounded number."""
    bad = [at for at in _rows(evidence) if float(np.mean(evidence.d[at] ** 2)) > BROKEN_RMS**2]
    return bad[:SEARCHED_ROWS]


def _suffix(evidence: Evidence) -> Finding | None:
    """Rows that are clean up to one position and shifted from there on."""
    typical = float(np.median(np.abs(evidence.d[evidence.live])))
    limit = max(0.5, 12 * typical)
    verified, positions, suffix = 0, [], np.zeros(len(evidence.d), dtype=bool)
    far_off = np.abs(evidence.d) > limit
    looked = [at for at in _rows(evidence) if far_off[at].sum() >= 3][:SEARCHED_ROWS]
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
                where=evidence.place(_row_of(evidence, suffix)),
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


def _row_of(evidence: Evidence, tokens: np.ndarray) -> int:
    return int(evidence.row[np.flatnonzero(tokens)[0]])


def _mispaired(evidence: Evidence) -> Finding | None:
    """Rows that fit at a larger lag (padding read from the wrong side), or fit another row.

    Or nothing at all.
    """
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
        return _mispaired_finding(
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
        return _mispaired_finding(
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
        return _mispaired_finding(
            evidence,
            rest,
            f"in {len(rest)} rows the two sides have nothing to do with each other (correlation {corr:.2f})"
            " although both look like log-probs of this model: they belong to other tokens",
            "check how samples and their log-probs are joined",
            0.8,
        )
    return None


def _best_lag(mu: np.ndarray, ref: np.ndarray) -> int:
    """Detect: the lag at which a row's two sides fit; 0 if there is none."""
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


def _mispaired_finding(
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
            Figure(what="rows", value=len(rows), where=evidence.place(_row_of(evidence, tokens))),
            Figure(what="mean |d| there, nats", value=float(np.abs(evidence.d[tokens]).mean())),
        ),
        rules_out=("numerics: noise of this size would make the engine's tokens unlikely, these are not",),
        first=first,
        tokens=tokens,
    )
