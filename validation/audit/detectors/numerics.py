"""What the engine's arithmetic does at equal weights: precision, kernels, routing.

And the trainer's own noise.

Healthy floors (public, at T = 1): bf16 rms .02 to .05 nats, FP8 .13 to .18, vanishing where the model is
sure, flat
along the row and over the steps. What differs in shape or size is named here.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.detectors import precision
from validation.audit.detectors.precision import root_mean_square, shapeless
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.shapes import Shapes
from validation.audit.unequal_rows import Rows


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Trainer noise first, then shape along rows, steps and rows, then tails and size."""
    finding = _self_noise(evidence)
    found = [] if finding is None else [finding]
    if not shapes.enough or evidence.apart:
        return found  # what the engine does at equal weights is in no token of such a log
    for look in (_position, _drift, _unequal):
        finding = look(evidence, shapes)
        if finding is not None:
            found.append(finding)
            return [*found, _or_pinned(finding, shapes)] if look is _drift and _steep(shapes) else found
    return [*found, *precision.detect(evidence, shapes)]


def _self_noise(evidence: Evidence) -> Finding | None:
    """Find two passes of the trainer that disagree at equal weights."""
    if not evidence.has_lag:
        return None
    same, versions = evidence.g_gap == 0, True
    step = evidence.g_step
    if not (evidence.g_gap >= 0).any():
        # without versions: in the first step of a run nothing has been updated yet
        starts = step.min() != UNKNOWN and step.min() <= 1 and step.min() < step.max()
        same, versions = np.full(len(step), starts), False
    if same.sum() < 100:
        return None
    g, step = evidence.g[same], step[same]
    rms = root_mean_square(g)
    if rms < 3e-3:
        return None
    first = step == step.min()
    growth = (
        root_mean_square(g[~first]) / max(root_mean_square(g[first]), 1e-9)
        if (~first).any() and first.any()
        else 1.0
    )
    if growth > (2.0 if versions else 1.3):
        return None  # it moves with the trainer: that is lag, at tokens whose version says there is none
    if not shapeless(np.abs(g), evidence.g_ref[same]):
        return (
            None  # it vanishes where the model is sure: an update more than the version says does that, too
        )
    outside = float((np.abs(np.expm1(-g)) > 0.1).mean())
    whole = root_mean_square(evidence.d) if evidence.d.size else rms
    return Finding(
        kind="engine-numerics",
        fault=(
            f"the trainer disagrees with itself at the same weights: two passes differ by {rms:.3f} nats rms,"
            " so ratios are not 1 on-policy and clipping sees noise"
        ),
        confidence=0.88 if versions else 0.6,
        explains=min(1.0, (rms / max(whole, rms)) ** 2),
        figures=(
            Figure(
                what="rms log pi_s - log pi"
                + (" at version gap 0, nats" if versions else " from the first step on, nats"),
                value=rms,
            ),
            Figure(what="rms log mu - log pi_s, nats", value=whole),
            Figure(what="share of ratios outside [.9, 1.1]", value=outside),
            Figure(what="later steps over the first", value=growth),
        ),
        side="trainer",
        rules_out=(
            "the engine: it takes no part in this number",
            "lag: there are no updates between the two passes",
        ),
        first=(
            "use one batch shape (micro-batch, chunk, padding) and one precision for both passes of the"
            " trainer"
        ),
    )


def _position(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Errors that grow along the row."""
    profile = shapes.along
    least = 5.0 if evidence.lag_free == "no" else 2.5
    if profile is None or profile.growth < least or profile.z < 6:
        return None
    use = shapes.use
    quarter = np.minimum(4 * evidence.position // np.maximum(evidence.length, 1), 3)
    sizes = [float(np.abs(evidence.d[use & (quarter == q)]).mean()) for q in range(4)]
    split = shapes.changes
    sharp = profile.stepwise or (split is not None and split.share > 0.3 and split.sudden)
    explains = evidence.explains(use)
    evidence.live &= ~use
    how = "sets in at one position" if sharp else "grows along the row"
    return Finding(
        kind="engine-numerics",
        fault=f"the engine's error {how}: |d| by quarter is "
        + " / ".join(f"{s:.3g}" for s in sizes)
        + " at version gap 0 (attention kernel, position encoding or cache precision)",
        confidence=0.85,
        explains=explains,
        figures=tuple(Figure(what=f"mean |d|, quarter {q + 1}, nats", value=s) for q, s in enumerate(sizes)),
        rules_out=(
            "healthy precision: its error is flat along the row",
            "lag and prompts: neither grows with the position at equal weights",
        ),
        first=(
            "switch the attention backend (cascade attention off, another kernel) or the cache precision and"
            " compare"
        ),
    )


def _drift(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Numerics that change while the weights stay equal."""
    course = shapes.course
    if course.shape != "drift" or shapes.by_rows:
        return None
    total = evidence.lag_free == "no"
    assumed = total or (evidence.lag_free == "assumed" and not evidence.in_lockstep)
    least = STEEP_TOTAL if total else 1.5 if assumed else 1.35
    if course.ratio < least or (assumed and not _still_growing(shapes.series.value)):
        return None
    use, step = shapes.use, evidence.step
    series = shapes.series
    quarter = max(len(series.step) // 4, 1)
    early = use & (step <= series.step[quarter - 1])
    late = use & (step >= series.step[-quarter])
    first, last = root_mean_square(evidence.d[early]), root_mean_square(evidence.d[late])
    grown = max(0.0, 1 - (first / last) ** 2) if last > 0 else 0.0
    explains = evidence.explains(use) * max(grown, 0.5)
    evidence.live &= ~use
    return Finding(
        kind="engine-numerics",
        fault=(
            f"the mismatch at equal weights grows over the run, rms d {first:.3g} -> {last:.3g} nats:"
            " numerics drift with the policy (entropy, weight range, stale scales), not lag by version"
        ),
        confidence=0.45 if total else 0.55 if assumed else 0.8,
        explains=explains,
        figures=(
            Figure(what="rms d, first quarter of the steps, nats", value=first),
            Figure(what="rms d, last quarter, nats", value=last),
            Figure(what="ratio at equal probability", value=course.ratio),
            Figure(what="chi-square of a constant, in its standard deviations", value=course.z),
        ),
        rules_out=(
            "constant numerics: do not extrapolate the floor of the first step",
            "lag of a fixed period of syncs: it levels off"
            if total
            else "lag, if the run syncs before each step"
            if assumed
            else "lag: version gap is 0 throughout",
        ),
        first=(
            "compare the engine in higher precision (bf16, or fp16/fp32 head) on the last checkpoint; reset"
            " its caches"
        ),
    )


STEEP_TOTAL = 5.0
"""Growth of mu against pi, to the end of the run, that the lag of a run that syncs at all does not show"""
STEEP = 3.0
"""Growth of the mismatch from which a sampler that no sync reaches is as well an explanation"""


def _steep(shapes: Shapes) -> bool:
    return shapes.course.ratio > STEEP


def _or_pinned(drift: Finding, shapes: Shapes) -> Finding:
    """Give the other explanation of a steep growth, which no figure of this log rules out."""
    return Finding(
        kind="weights-caches-versions",
        fault=(
            "the other explanation of the same growth: the sampler stopped receiving weights, and the trainer"
            " moves away from what it holds"
        ),
        confidence=0.4,
        explains=drift.explains,
        figures=(
            Figure(what="ratio at equal probability, last steps over first", value=shapes.course.ratio),
        ),
        rules_out=(),
        first="compare a checksum of the engine's weights before and after a sync: equal ones settle it",
    )


def _still_growing(value: np.ndarray) -> bool:
    """Whether a long series grows to its end; the lag of a run that starts to be asynchronous levels off."""
    third = len(value) // 3
    return len(value) >= 9 and float(value[-third:].mean()) > 1.15 * float(value[third:-third].mean())


def _unequal(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: some rows are far off, the others fine."""
    found = shapes.rows
    if found is None:
        return None
    tokens = shapes.tokens_of(found.row[found.bad])
    bad_rms = root_mean_square(evidence.d[tokens])
    least = {"yes": 0.0, "assumed": 0.5, "no": 0.8}[evidence.lag_free]
    if not shapes.by_rows or bad_rms < max(least, 0.03):
        return None
    explains = evidence.explains(tokens)
    good = root_mean_square(evidence.d[shapes.use & ~tokens])
    evidence.live &= ~tokens
    share = float(found.bad.mean())
    by_prompt = _by_prompt(evidence, found)
    return Finding(
        kind="engine-numerics",
        fault=(
            f"rows are of two kinds: {share:.0%} are off by rms {bad_rms:.2g} nats, the rest by {good:.2g}; a"
            " mean over them says nothing"
        )
        + (" (the same prompts each time)" if by_prompt > 0.9 else ""),
        confidence=0.75,
        explains=explains,
        figures=(
            Figure(what="share of rows", value=share, where=evidence.place(int(found.row[found.bad][0]))),
            Figure(what="rms d of those rows, nats", value=bad_rms),
            Figure(what="rms d of the others, nats", value=good),
            Figure(what="share of prompts whose rows agree", value=by_prompt),
        ),
        rules_out=("lag: rows of one step and one version differ", "uniform precision: most rows are clean"),
        first="re-score those rows with another kernel or batch size; look for what their prompts share",
    )


def _by_prompt(evidence: Evidence, found: Rows) -> float:
    """Share of prompts with several rows whose rows are all bad or all good; NaN if there are none."""
    group = evidence.rows["group"][found.row]
    names, index = np.unique(group, return_inverse=True)
    count = np.bincount(index)
    bad = np.bincount(index, weights=found.bad)
    several = count > 1
    if several.sum() < 3 or len(names) < 2:
        return math.nan
    return float(((bad == 0) | (bad == count))[several].mean())
