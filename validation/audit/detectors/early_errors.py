"""What errors at the start of rows depend on: a prompt that others share, a step after the first sync."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.evidence import Evidence, clustered_mean
from validation.audit.finding import Figure
from validation.audit.shapes import Shapes


class Condition(NamedTuple):
    """What errors early in the row depend on."""

    words: str
    """Ends the sentence "errors that ..." """
    figures: tuple[Figure, ...]


def early_by_condition(evidence: Evidence, shapes: Shapes, /) -> Condition | None:
    """Whether errors at the start of rows depend on shared prompts, or begin after the first step.

    Else None.
    """
    use = shapes.use & (4 * evidence.position < evidence.length)
    size, row = np.log1p(shapes.size[use]), evidence.row[use]
    if use.sum() < 60:
        return None
    out = []
    for name in ("prompt", "group"):
        key = evidence.rows[name]
        _, inverse, count = np.unique(key, return_inverse=True, return_counts=True)
        shared = (count[inverse] > 1) & (key != UNKNOWN)
        on = shared[row]
        if 30 <= on.sum() <= len(on) - 30:
            out.append(("larger for prompts that repeat", on, "repeated prompts", "unique prompts"))
            break
    step = evidence.step[use]
    if step.min() != UNKNOWN and step.min() < step.max():
        later = step > step.min()
        if 16 <= later.sum() <= len(later) - 16:
            out.append(("absent at the first step", later, "later steps", "the first step"))
    words, figures = [], []
    for word, on, one, other in out:
        a, b = clustered_mean(size[on], row[on]), clustered_mean(size[~on], row[~on])
        error = math.hypot(a.stderr, b.stderr)
        if math.expm1(a.value) > 1.7 * math.expm1(b.value) and a.value - b.value > 4 * error:
            words.append(word)
            figures += [
                Figure(
                    what=f"scaled |d| early in the row, {one}", value=math.expm1(a.value), stderr=a.stderr
                ),
                Figure(
                    what=f"scaled |d| early in the row, {other}", value=math.expm1(b.value), stderr=b.stderr
                ),
            ]
    return Condition(" and ".join(words), tuple(figures)) if words else None
