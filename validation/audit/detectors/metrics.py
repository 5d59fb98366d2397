"""Metrics that hide the failure: an ESS of clamped weights over raw weights that have none."""

from __future__ import annotations

import numpy as np

from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.peers import VERL_CLAMP

LOOKS_FINE = 0.8
FAILED = 0.5
"""A clamped ESS above the first over a raw one below the second misleads; the second is the articles'
threshold"""


LONG = 100
"""Tokens a row needs before a few heavy ones of its own do not make it stand out"""
CARRIED = 0.85
"""Share of sum d^2 on the worst quarter of the rows from which the tail stands on rows, not on tokens"""


def _by_rows(evidence: Evidence) -> bool:
    square = np.bincount(evidence.row, weights=evidence.d**2)
    length = np.bincount(evidence.row)
    square = np.sort(square[length > 0])[::-1]
    worst = square[: max(len(square) // 4, 1)].sum()
    return float(np.median(length[length > 0])) >= LONG and float(worst) > CARRIED * float(square.sum())


def detect(evidence: Evidence, found: list[Finding], /) -> list[Finding]:
    """Detect: the clamped ESS looks fine while the raw one has failed.

    And nothing structural explains the tail.
    """
    exact = evidence.exact
    if exact.discrepancy.n < 50 or any(f.kind == "non-finite" for f in found):
        return []
    peers = exact.peers.metrics()
    clamped, raw = peers["verl rollout_corr/rollout_is_eff_sample_size"], exact.discrepancy.ess
    if not (clamped > LOOKS_FINE and raw < FAILED):
        return []
    # where a detector has named single rows, steps or a few broken tokens, that comes first
    d = evidence.d
    few = float(np.sqrt(np.mean(d * d))) > 6 * float(np.abs(d).mean())
    named = [f for f in found if not f.scattered and f.explains > 0.1]
    # so does lag, where versions tell it from numerics: it is the cause, and the metric hides it
    lagging = evidence.reference == "logpi" and not evidence.pure.all()
    confidence = 0.4 if named or few or lagging or _by_rows(evidence) else 0.9
    return [
        Finding(
            kind="misleading-metrics",
            fault=(
                f"an ESS of weights clamped at {VERL_CLAMP:g} reads {clamped:.3f} while the raw token ESS is"
                f" {raw:.3g}: a rule on the clamped one never fires"
            ),
            confidence=confidence,
            explains=0.9 if confidence > 0.5 else 0.3,
            figures=(
                Figure(what="token ESS, raw and pooled", value=raw),
                Figure(what="verl rollout_is_eff_sample_size (clamp 2)", value=clamped),
                Figure(what="ms-swift ess (clamp [1/2, 2])", value=peers["ms-swift rollout_correction/ess"]),
                Figure(what="1/(1 + verl chi2_token)", value=1 / (1 + peers["verl rollout_corr/chi2_token"])),
                Figure(
                    what="exp(-Var log ratio), Gaussian", value=float(np.exp(-exact.discrepancy.variance))
                ),
            ),
            rules_out=("a healthy tail: the two agree to a few per cent when the ratio is near Gaussian",),
            first="log the raw ESS from pooled sums, or 1/(1 + chi2_token), and decide on that",
        )
    ]
