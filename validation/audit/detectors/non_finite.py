"""Values that are no log-probabilities, and single tokens that decide all weights."""

from __future__ import annotations

import math

import numpy as np

from theory.ess import ess_fraction
from validation.audit.collect import Place
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.sums import MISMATCH_NAMES

PART_MEASURED = 0.3
"""Share of holes beyond which the trainer may have been scored on some tokens only: less sure of a fault"""
IMPOSSIBLE = 8.0
"""Nats: a ratio of 3000 on a single token; BF16 and FP8 errors stay below 2 (public maxima: 1.4 to 1.5)"""
ISOLATED = 0.4
"""The largest ordinary |d| must be below this share of the smallest impossible one"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Broken values in any column, then isolated impossible tokens."""
    return [*_broken(evidence), *_dominating(evidence)]


def _broken(evidence: Evidence) -> list[Finding]:
    exact = evidence.exact
    found = []
    for column in ("logmu", "logpi_s", "logpi", "advantage"):
        counts = {k: n for (c, k), n in exact.broken.items() if c == column and k != "unmeasured" and n > 0}
        holes = counts.get("missing or NaN", 0)
        measured = exact.measured[column]
        if measured == 0 and not evidence.null_is_broken:
            counts.pop("missing or NaN", None)  # a column without a single number was not measured
        by_choice = (
            column != "logmu"
            and not evidence.null_is_broken
            and holes > PART_MEASURED * (measured + holes)
            and holes == sum(counts.values())
        )
        if column == "advantage":
            counts = {k: n for k, n in counts.items() if k == "infinite"}
        if not counts:
            continue
        rows = sum(exact.broken_rows[column, k] for k in counts)
        total = sum(counts.values())
        places = [p for k in counts for p in exact.broken_places.get((column, k), [])]
        what = f"log-probs of the {MISMATCH_NAMES[column]}" if column in MISMATCH_NAMES else "advantages"
        words = ", ".join(f"{n} {k}" for k, n in counts.items())
        side = "engine" if column == "logmu" else "trainer"
        found.append(
            Finding(
                kind="non-finite",
                fault=(
                    f"{rows} rows have {what} that are no usable numbers ({words}): a fault of the {side}"
                    + (", unless it scored some tokens only by choice" if by_choice else "")
                ),
                confidence=0.6 if by_choice else 0.97,
                explains=1.0,
                figures=(
                    Figure(what="tokens without a usable number", value=total, where=_places(places)),
                    Figure(what="rows they stand in", value=rows),
                    Figure(what="share of tokens", value=total / (measured + total)),
                ),
                rules_out=("they are left out of every other figure and counted here, not set to ratio 1",),
                first=_REMEDY[column if column in _REMEDY else side],
            )
        )
    return found


_REMEDY = {
    "engine": (
        "a NaN or floored log-prob means that the whole row of logits is broken: find the engine step"
        " (kernels, communication, precision) that made it; do not replace it by ratio 1"
    ),
    "trainer": (
        "find the trainer's forward pass that gave NaN or infinity (loss scale, masks, precision) before "
        "trusting any update since"
    ),
    "advantage": (
        "find where the advantages are made (a reward that is no number, a division by a spread of 0) and the"
        " updates they went into"
    ),
}


def _places(places: list[Place]) -> str:
    return "; ".join(p.words for p in places[:3])


def _dominating(evidence: Evidence) -> list[Finding]:
    """Detect: a few tokens with |d| far beyond all others."""
    sizes = sorted(evidence.exact.largest, reverse=True)
    allowed = max(3, int(2e-4 * evidence.exact.discrepancy.n))
    count = 0
    for k in range(1, min(allowed, len(sizes) - 1) + 1):
        gap = sizes[k].size / max(sizes[k - 1].size, 1e-12)
        alone = gap < ISOLATED / 2 or (gap < ISOLATED and sizes[k].size < IMPOSSIBLE / 2)
        if sizes[k - 1].size > IMPOSSIBLE and alone:
            count = k
    if not count or evidence.exact.discrepancy.n < 50:
        return []
    cut = sizes[count - 1].size
    tokens = np.abs(evidence.d) >= cut
    total = evidence.exact.discrepancy.rms**2 * evidence.exact.discrepancy.n
    share = sum(p.size**2 for p in sizes[:count]) / total if total > 0 else 0.0
    without = float(ess_fraction(-evidence.d[~tokens])) if (~tokens).any() else math.nan
    evidence.live &= ~tokens
    top = sizes[0]
    ratio = math.exp(min(abs(top.logmu - top.reference), 700.0))
    return [
        Finding(
            kind="non-finite",
            fault=(
                f"{count} token(s) with impossible ratios decide all weights: log mu {top.logmu:.4g} beside "
                f"{top.reference:.4g}, a ratio of {ratio:.3g}"
            ),
            confidence=0.85,
            explains=min(share, 1.0),
            figures=(
                Figure(what="largest |log ratio|, nats", value=top.size, where=_places(sizes[:count])),
                Figure(what="largest of all other tokens, nats", value=sizes[count].size),
                Figure(what="token ESS, raw, all tokens", value=evidence.exact.discrepancy.ess),
                Figure(what="token ESS, raw, without them", value=without),
            ),
            rules_out=("ordinary numerics: nothing lies between these tokens and the rest",),
            first="look at these tokens' logits in the engine; do not let a clamp hide them",
            tokens=tokens,
        )
    ]
