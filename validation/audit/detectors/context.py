"""The two sides scored different contexts.

An extra start token, a prompt cut differently, packs without a reset.
"""

from __future__ import annotations

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.detectors.early_errors import early_by_condition
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.shapes import Shapes


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Errors that fade along every row, then packs."""
    if not shapes.enough:
        return []
    for look in (_fading, _packs):
        finding = look(evidence, shapes)
        if finding is not None:
            return [finding]
    return []


def _fading(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Large at the start of each row and gone later: the prompt was not the same."""
    profile = shapes.along
    least = 5.0 if evidence.lag_free == "no" else 2.5
    if profile is None or profile.growth * least > 1 or profile.z < 6 or profile.early_share < 0.62:
        return None
    if early_by_condition(evidence, shapes) is not None:
        return None
    use = shapes.use
    quarter = np.minimum(4 * evidence.position // np.maximum(evidence.length, 1), 3)
    sizes = [float(np.abs(evidence.d[use & (quarter == q)]).mean()) for q in range(4)]
    explains = evidence.explains(use)
    evidence.live &= ~use
    return Finding(
        kind="alignment-tokens-masks",
        fault="the two sides scored different prompts: |d| by quarter of the row is "
        + " / ".join(f"{s:.3g}" for s in sizes)
        + ", in every row (an extra start token, another chat template, a cut prompt)",
        confidence=0.85,
        explains=explains,
        figures=tuple(Figure(what=f"mean |d|, quarter {q + 1}, nats", value=s) for q, s in enumerate(sizes)),
        rules_out=(
            "numerics: errors of kernels do not fade with the distance from the prompt",
            "a stale prefix cache: rows of the first step and of new prompts show it too",
        ),
        first="compare the prompt ids of both sides token by token (a second BOS is the usual cause)",
    )


def _packs(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Rows that are clean once per pack and off otherwise."""
    found = shapes.rows
    if found is None or evidence.lag_free == "no":
        return None
    clean = ~found.bad
    index = evidence.rows["pack"][found.row]
    known = (index != UNKNOWN).all() and len(np.unique(index)) > 1
    period = 0
    if known:
        first = index == index.min()
        agrees = float((clean == first).mean())
    else:
        agrees, period = _period(found.row, clean)
    if agrees < 0.95:
        return None
    rms = evidence.d[shapes.tokens_of(found.row[found.bad])]
    tokens = shapes.tokens_of(found.row[found.bad])
    explains = evidence.explains(tokens)
    evidence.live &= ~tokens
    by = "by the pack index" if known else f"every {period} rows in the file's order"
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"the first sequence of each pack is clean and the later ones are off ({by}): packing without a"
            " reset of positions or attention"
        ),
        confidence=0.8,
        explains=explains,
        figures=(
            Figure(what="rows that fit the pattern", value=agrees),
            Figure(what="rms d of the later sequences, nats", value=float(np.sqrt(np.mean(rms**2)))),
            Figure(what="share of rows that are clean", value=float(clean.mean())),
        ),
        rules_out=("prompts: the pattern follows the place in the pack",),
        first="reset position ids and cut attention at sequence borders (or compare with packing off)",
        tokens=tokens,
    )


def _period(row: np.ndarray, clean: np.ndarray) -> tuple[float, int]:
    """Detect: the period at which clean rows come back in the order of the file.

    And how many rows agree with it.
    """
    places = row[clean]
    if len(places) < 4 or not 0.05 < clean.mean() <= 0.55:
        return 0.0, 0
    period = round(float(np.median(np.diff(places))))
    if period < 2:
        return 0.0, 0
    phase = int(np.bincount(places % period).argmax())
    return float((clean == (row % period == phase)).mean()), period
