"""Columns that copy each other: a difference of exactly zero is no measurement."""

from __future__ import annotations

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

COPIED = 0.99
"""Share of tokens with bit-equal log-probs from which one column is a copy of the other"""


INTERPOLATED = 1e-3
"""Spread within a row of where log pi_s stands between log mu and log pi, from which it was put there"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Look for a column that is a copy of another, then for one that was made from two others."""
    return _copied(evidence) or _interpolated(evidence)


def _interpolated(evidence: Evidence) -> list[Finding]:
    """Detect: log pi_s lies at one share of the way from log mu to log pi on all tokens of a row."""
    if not evidence.has_lag or evidence.reference != "logpi_s":
        return []
    both = np.intersect1d(evidence.at, evidence.lag_at, assume_unique=True)
    here, there = np.searchsorted(evidence.at, both), np.searchsorted(evidence.lag_at, both)
    d, g, row = evidence.d[here], evidence.g[there], evidence.row[here]
    moved = np.abs(d + g) > 1e-4
    if moved.sum() < 50:
        return []
    share, row = (d / np.where(moved, d + g, 1.0))[moved], row[moved]
    _, index, count = np.unique(row, return_inverse=True, return_counts=True)
    off = share - (np.bincount(index, weights=share) / count)[index]
    several = count[index] > 2
    if several.sum() < 50 or not float(np.quantile(np.abs(off[several]), 0.9)) < INTERPOLATED:
        return []
    typical = float(np.median(share))
    if not 0.01 < typical < 0.99:
        return []
    return [
        Finding(
            kind="misleading-metrics",
            fault=(
                "log pi_s was not computed: on every token it stands at one share of the way from log mu to"
                f" log pi ({typical:.2f}, median of the rows), so numerics are booked as lag and the reverse"
            ),
            confidence=0.9,
            explains=1.0,
            figures=(
                Figure(what="(log mu - log pi_s) / (log mu - log pi), median", value=typical),
                Figure(
                    what="its spread within rows, 90%", value=float(np.quantile(np.abs(off[several]), 0.9))
                ),
            ),
            rules_out=("a measurement: numerics and lag are not proportional token by token",),
            first=(
                "recompute the trainer's log-probs at the sampler's weights (AReaL:"
                " prox_logp_method=recompute)"
            ),
        )
    ]


def _copied(evidence: Evidence) -> list[Finding]:
    """Detect: the engine's log-probs and the trainer's are one and the same column."""
    telling = evidence.live & (evidence.mu < -1e-4)
    if telling.sum() < 10:
        return []
    share = float((evidence.d[telling] == 0).mean())
    if share < COPIED:
        return []
    name = "trainer's" if evidence.reference == "logpi" else "recomputed (old)"
    return [
        Finding(
            kind="misleading-metrics",
            fault=(
                f"d = 0 exactly on {share:.1%} of the tokens: the {name} log-probs are a copy of the engine's"
                " or overwrote them (bypass mode); the mismatch was not measured, and every metric of it"
                " reads 0"
            ),
            confidence=0.8,
            explains=1.0,
            figures=(
                Figure(what="share of tokens with d = 0 to the bit", value=share),
                Figure(what="tokens compared", value=float(np.sum(telling))),
            ),
            rules_out=(
                (
                    "equal kernels: two engines that agree to the bit on every token are rare; if yours do,"
                    " this is healthy"
                ),
            ),
            first=(
                "log the trainer's own recomputed log-probs beside the engine's (verl: bypass_mode=false;"
                " AReaL: keep logprobs when prox_logp is computed)"
            ),
        )
    ]
