"""Log-probs that belong to other tokens: lists of other lengths, other ids, wrong pairs, re-tokenised ids."""

from __future__ import annotations

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.detectors import mispaired, shifts
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding

OUTLIER = 4.0
"""Nats by which a re-scored id of another token is less likely, at least"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Look at counts and ids, then at pairs of whole rows and row ends, then at single ids."""
    found = [*_lengths(evidence), *_ids(evidence), *shifts.detect(evidence), *mispaired.detect(evidence)]
    finding = _replaced(evidence) if evidence.live.sum() >= shifts.LEAST_TOKENS else None
    return found if finding is None else [*found, finding]


def _lengths(evidence: Evidence) -> list[Finding]:
    errors = evidence.exact.length_errors
    if not errors:
        return []
    rows = sum(errors.values())
    share = rows / max(evidence.exact.rows, 1)
    typical, count = errors.most_common(1)[0]
    return [
        Finding(
            kind="alignment-tokens-masks",
            fault=(
                f"{rows} of {evidence.exact.rows} rows have log-probs and ids of different counts "
                f"(most often {typical:+d}): the ids are not those that were sampled"
            ),
            confidence=0.9,
            explains=max(share, 0.5),
            figures=(
                Figure(what="share of rows", value=share),
                Figure(what="log-probs minus ids, most often", value=typical),
                Figure(what="rows with that difference", value=count),
            ),
            rules_out=("numerics and lag: neither changes a count",),
            first="have the engine return token ids (return_token_ids) and never re-tokenise its text",
        )
    ]


def _ids(evidence: Evidence) -> list[Finding]:
    rows, tokens = evidence.exact.id_errors
    if not rows:
        return []
    return [
        Finding(
            kind="alignment-tokens-masks",
            fault=(
                f"the two lists of token ids differ in {rows} rows ({tokens} tokens): the trainer scored"
                " other ids than the engine sampled"
            ),
            confidence=0.95,
            explains=0.9,
            figures=(
                Figure(what="rows whose ids differ", value=rows),
                Figure(what="tokens that differ", value=tokens),
            ),
            rules_out=("numerics: ids are integers",),
            first="pass the engine's ids to the trainer, token in, token out",
        )
    ]


def _replaced(evidence: Evidence) -> Finding | None:
    """Single tokens the trainer finds absurd while the engine did not, and nothing in between."""
    live = evidence.live
    size = np.abs(evidence.d)
    ordinary = float(np.quantile(size[live], 0.8))
    if ordinary > 0.7:
        return None
    out = live & (size > OUTLIER)
    between = live & (size > max(1.5, 4 * ordinary)) & (size <= OUTLIER)
    count = int(out.sum())
    share = count / int(live.sum())
    if count < 4 or not 3e-4 < share < 0.2:
        return None
    one_sided = float((evidence.d[out] > 0).mean())
    if one_sided < 0.9 or between.sum() > 0.8 * count:
        return None
    if _sets_in(evidence, out):
        return None
    tokens = out | (live & (evidence.d > max(1.5, 6 * ordinary)))
    ratio = evidence.clustered(np.exp(-evidence.d), live)
    explains = evidence.explains(tokens)
    evidence.live &= ~tokens
    rows = np.unique(evidence.row[tokens])
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"{count} scattered tokens ({share:.2%}) are {OUTLIER:g} to {size[out].max():.0f} nats less"
            " likely to the trainer, never more: other ids were scored there than sampled (re-tokenised or"
            " replaced)"
        ),
        confidence=0.85,
        explains=explains,
        figures=(
            Figure(what="share of tokens", value=share, where=evidence.place(int(rows[0]))),
            Figure(what="share of them with d > 0", value=one_sided),
            Figure(what="rows they stand in", value=len(rows)),
            Figure(
                what="mean of pi/mu (1 if tokens were drawn from mu)", value=ratio.value, stderr=ratio.stderr
            ),
        ),
        rules_out=(
            "heavy-tailed numerics: noise goes both ways and leaves no gap between small and huge",
            "lag: a policy does not change by nats on 1 token in 50 and not at all elsewhere",
        ),
        first="log both lists of ids and compare them; look at what follows tool turns and at merged tokens",
        tokens=tokens,
    )


def _sets_in(evidence: Evidence, out: np.ndarray) -> bool:
    """Whether hardly any outlier stands in the first third of the steps: then weights are the cause."""
    step = evidence.step
    if step.min() == UNKNOWN or len(np.unique(step)) < 3:
        return False
    low, high = np.quantile(step, [0.33, 0.67])
    early, late = evidence.live & (step <= low), evidence.live & (step >= high)
    if not early.any() or not late.any():
        return False
    return float(out[early].mean()) < 0.2 * float(out[late].mean())
