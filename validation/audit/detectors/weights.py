"""Did the engine hold the weights its version claims? Lost syncs, stale caches, corrupted copies.

At equal weights d is numerics: it does not know of syncs, prompts or steps. Where it does, the weights or a
cache behind it are not those claimed.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.detectors.early_errors import early_by_condition
from validation.audit.detectors.lag_course import correlation, spanning
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.shapes import Shapes

_NOT_LAG = "lag by version: these tokens were sampled at the weights they are compared with"


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Within rows first, then the course over the steps, then between rows."""
    if not shapes.enough:
        return []
    looks = (_prefix_cache, _within_rows, _by_step, _some_rows)
    for look in (_within_rows, _jump_of_the_total) if evidence.lag_free == "no" else looks:
        finding = look(evidence, shapes)
        if finding is not None:
            return [finding]
    return []


def _claim(evidence: Evidence, tokens: np.ndarray) -> float:
    """Mark tokens as explained and return their share of the mismatch."""
    explains = evidence.explains(tokens)
    evidence.live &= ~tokens
    return explains


def _prefix_cache(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Errors that fade along the row, where prompts are shared and only after the first sync."""
    profile = shapes.along
    if profile is None or profile.growth > 0.6 or profile.z < 3 or profile.early_share < 0.62:
        return None
    split = early_by_condition(evidence, shapes)
    if split is None:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault="errors at version gap 0 that fade along the row, "
        + split.words
        + ": keys and values of older weights were reused (prefix cache not reset at the sync)",
        confidence=0.85,
        explains=_claim(evidence, shapes.use.copy()),
        figures=(
            Figure(
                what="scaled |d|, first quarter of the row",
                value=profile.quarters[0],
                stderr=profile.stderr[0],
            ),
            Figure(what="scaled |d|, last quarter", value=profile.quarters[3], stderr=profile.stderr[3]),
            *split.figures,
        ),
        rules_out=(
            _NOT_LAG,
            "a prompt that differs on both sides: it would show in each row and from the first step",
        ),
        first="reset the prefix cache after each weight update (vLLM: reset_prefix_cache)",
    )


def _within_rows(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: a sharp change inside rows, downward in the middle, or upward at a place of each row's own."""
    profile = shapes.along
    if profile is None or shapes.by_rows:
        return None
    if profile.z < 6 or 0.7 < profile.growth < 2:
        return None
    split = shapes.changes
    downward = profile.growth < 1
    if downward and profile.stepwise:
        ratio = 1 / profile.growth
        return spanning(1.0, ratio, "difference", _claim(evidence, shapes.use.copy()))
    if split is None or split.share < 0.3 or (downward and profile.early_share > 0.62):
        return None
    sudden = (
        split.sharpness > 0.5 if downward and profile.growth < 0.5 else split.sudden and split.spread > 0.08
    )
    if not sudden:
        return None
    if evidence.lag_free == "no" and (split.share < 0.6 or split.sharpness < 0.7 or split.ratio < 2.5):
        return None
    return spanning(split.share, split.ratio, "difference", _claim(evidence, shapes.use.copy()))


def _by_step(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Discrepancy at equal weights that sets in at one step, or comes and goes."""
    course = shapes.course
    if shapes.by_rows or course.shape not in ("onset", "bursts", "drop"):
        return _from_nothing(evidence, shapes)
    assumed = evidence.lag_free == "assumed"
    if course.ratio < (5.0 if assumed else 1.8):
        return None
    series = shapes.series
    step = evidence.step
    match course.shape:
        case "onset":
            high = step >= course.at
            first_rms = evidence.d[shapes.use & ~high]
            nothing = float(np.sqrt(np.mean(first_rms**2))) < 1e-3 if first_rms.size else False
            story = (
                f"d at equal weights jumps at step {course.at:g} by a factor {course.ratio:.1f} and stays"
                + (
                    " (it was 0 before): rounding of a small update, or weights lost at that sync"
                    if nothing
                    else ": from there on the engine does not hold the weights it claims"
                )
            )
            remedy = (
                "look at the sync before that step: what was pushed, in which precision, and whether all"
                " tensors came"
            )
        case "drop":
            high = step < course.at
            story = (
                f"d at equal weights is {course.ratio:.1f} times larger before step {course.at:g} than after:"
                " the engine held other weights or a stale cache until then"
            )
            remedy = "look at what was restarted or synced at that step"
        case _:
            high = np.isin(step, course.where)
            shown = ", ".join(map(str, course.where[:6]))
            story = (
                f"d at equal weights is {course.ratio:.1f} times larger at steps {shown} and ordinary"
                " between: syncs before those steps did not arrive"
            )
            remedy = "check that the sync before each of those steps finished before sampling began"
    tokens = shapes.use & high
    rms_high = float(np.sqrt(np.mean(evidence.d[tokens] ** 2))) if tokens.any() else math.nan
    rest = shapes.use & ~high
    rms_low = float(np.sqrt(np.mean(evidence.d[rest] ** 2))) if rest.any() else math.nan
    jump = _likelihood(evidence, tokens, rest)
    return Finding(
        kind="weights-caches-versions",
        fault=story,
        confidence=0.65 if assumed else 0.87,
        explains=_claim(evidence, tokens),
        figures=(
            Figure(what="rms d there, nats", value=rms_high),
            Figure(what="rms d elsewhere, nats", value=rms_low),
            Figure(what="steps compared", value=len(series.step)),
            Figure(what="chi-square of a constant, in its standard deviations", value=course.z),
            *jump,
        ),
        rules_out=(
            ("lag, if the run syncs before each step" if assumed else _NOT_LAG),
            "precision: kernels do not change between steps",
        ),
        first=remedy,
    )


EXACT = 2e-3
"""rms d in nats below every low-precision floor (bf16 on the mini-Qwen3: 9e-3)"""


def _from_nothing(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Find d that is exact at the first step and grows from there: numerics would have been there at once."""
    course, series = shapes.course, shapes.series
    if course.shape != "drift" or shapes.by_rows or len(series.step) < 4 or evidence.lag_free != "yes":
        return None
    at_first = evidence.d[shapes.use & (evidence.step == series.step[0])]
    at_last = evidence.d[shapes.use & (evidence.step >= series.step[-2])]
    first, last = (float(np.sqrt(np.mean(d * d))) for d in (at_first, at_last))
    if first > EXACT or last < 20 * max(first, 1e-9):
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=f"engine and trainer agree at the first step (rms d {first:.2g} nats) and drift apart with "
        f"each update ({last:.2g} at the end): some weights do not reach the engine (tied head, adapter)",
        confidence=0.85,
        explains=_claim(evidence, shapes.use.copy()),
        figures=(
            Figure(what="rms d, first step, nats", value=first),
            Figure(what="rms d, last steps, nats", value=last),
            Figure(what="steps compared", value=len(series.step)),
        ),
        rules_out=("precision: rounding is there from the first step on", _NOT_LAG),
        first="compare checksums tensor by tensor after a sync; look at tied and adapted tensors first",
    )


def _likelihood(evidence: Evidence, tokens: np.ndarray, rest: np.ndarray) -> tuple[Figure, ...]:
    """How surprising the engine's own tokens are there: a corrupt engine changes that as well."""
    if not tokens.any() or not rest.any():
        return ()
    return (
        Figure(what="mean -log mu there, nats", value=float(-evidence.mu[tokens].mean())),
        Figure(what="mean -log mu elsewhere, nats", value=float(-evidence.mu[rest].mean())),
    )


def _some_rows(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Bad rows beside good ones, none at first and more or worse with each step."""
    found, mixed = shapes.rows, shapes.mixed
    if found is None or mixed is None or not shapes.by_rows:
        return None
    step = evidence.rows["step"][found.row]
    if (step == UNKNOWN).any() or step.min() == step.max():
        return None
    bad_step, score = step[found.bad], found.score[found.bad]
    clean_until = bad_step.min() > step.min()
    before = step < bad_step.min()
    share = float(found.bad[~before].mean())
    # rows that could have been bad before the first one was
    chance = (1 - share) ** int(before.sum())
    grows = correlation(bad_step.astype(float), np.log(score)) if len(score) >= 6 else 0.0
    later = bad_step >= np.median(bad_step)
    larger = float(np.median(score[later]) / max(np.median(score[~later]), 1e-9)) if (~later).any() else 1.0
    if not ((clean_until and chance < 1e-3) or (grows > 0.6 and larger > 1.5)):
        return None
    if clean_until and chance < 1e-3 and not grows > 0.6:
        story = (
            f"from step {int(bad_step.min())} on {share:.0%} of the rows are corrupted, none before: bad"
            " weights or cache"
        )
    else:
        story = (
            f"{share:.0%} of the rows drift away from the others step by step: one engine of several does not"
            " receive the weights"
        )
    return Finding(
        kind="weights-caches-versions",
        fault=story,
        confidence=0.85,
        explains=_claim(evidence, shapes.tokens_of(found.row[found.bad])),
        figures=(
            Figure(
                what="share of rows",
                value=float(found.bad.mean()),
                where=evidence.place(int(found.row[found.bad][0])),
            ),
            Figure(what="scaled |d| of those rows, median", value=float(np.median(score))),
            Figure(what="scaled |d| of the others, median", value=found.low),
            Figure(what="first step with such a row", value=float(bad_step.min())),
            Figure(what="correlation of their size with the step", value=grows),
        ),
        rules_out=(_NOT_LAG, "prompts: the same kinds of rows were clean at first"),
        first="name the engine (replica, rank) of those rows and compare its weights with the others'",
    )


def _jump_of_the_total(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Engine against the trainer now: a jump too large and too sudden for a policy that moves by steps."""
    course = shapes.course
    if shapes.by_rows or course.shape != "onset" or course.ratio < 8:
        return None
    tokens = shapes.use & (evidence.step >= course.at)
    rms = float(np.sqrt(np.mean(evidence.d[tokens] ** 2)))
    if rms < 0.8:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=(
            f"the engine leaves the trainer within one step (step {course.at:g}, {course.ratio:.0f}-fold,"
            f" rms {rms:.2f} nats): its weights are corrupt, or the trainer's update was"
        ),
        confidence=0.6,
        explains=_claim(evidence, tokens),
        figures=(Figure(what="rms log mu - log pi from there on, nats", value=rms),),
        rules_out=("gradual lag",),
        first="compare a checksum of the weights on both sides at that step",
    )
