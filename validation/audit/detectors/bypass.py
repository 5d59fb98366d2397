"""Columns that copy each other: a difference of exactly zero is no measurement."""

from __future__ import annotations

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

COPIED = 0.99
"""Share of tokens with bit-equal log-probs from which one column is a copy of the other"""


def detect(evidence: Evidence, /) -> list[Finding]:
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
