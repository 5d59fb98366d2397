"""Did the engine hold the weights its version claims? Syncs that did not arrive, stale caches.

Corrupted copies.

At equal weights d is numerics: it does not know of syncs, prompts or steps. Where it does, the weights or a
cache
behind it are not those claimed.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.evidence import Evidence, clustered_mean
from validation.audit.finding import Figure, Finding
from validation.audit.profiles import along, changes
from validation.audit.shapes import Shapes

_NOT_LAG = "lag by version: these tokens were sampled at the weights they are compared with"


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Lag that ignores versions first, then the course over steps, then within and between rows."""
    found = []
    for look in (_pinned, _pinned_claims):
        finding = look(evidence)
        if finding is not None:
            found.append(finding)
            evidence.live[:] = False
            return found
    if (finding := _lag_changes(evidence)) is not None:
        found.append(finding)
    if not shapes.enough:
        return found
    if evidence.lag_free == "no":
        for look_at in (_within_rows, _jump_of_the_total):
            finding = look_at(evidence, shapes)
            if finding is not None:
                return [*found, finding]
        return found
    for look_at in (_prefix_cache, _within_rows, _by_step, _some_rows):
        finding = look_at(evidence, shapes)
        if finding is not None:
            found.append(finding)
            break
    return found


def _claim(evidence: Evidence, tokens: np.ndarray) -> float:
    """Mark tokens as explained and return their share of the mismatch."""
    explains = evidence.explains(tokens)
    evidence.live &= ~tokens
    return explains


# -- lag against versions
# ----------------------------------------------------------------------------------------------


def _pinned(evidence: Evidence) -> Finding | None:
    """Lag that grows with the step and not with the version gap: the sampler stays where it was."""
    if evidence.has_lag:
        size, step, gap, row = np.abs(evidence.g), evidence.g_step, evidence.g_behind, evidence.g_row
    elif evidence.reference == "logpi" or evidence.lag_free == "assumed":
        size, step, gap, row = np.abs(evidence.d), evidence.step, evidence.behind, evidence.row
    else:
        return None
    known = (gap != UNKNOWN) & (gap >= -1) & (step != UNKNOWN)
    if known.sum() < 200 or len(np.unique(gap[known])) < 2 or len(np.unique(step[known])) < 4:
        return None
    size, step, gap, row = size[known] ** 2, step[known], gap[known], row[known]
    cell, index = np.unique(np.stack([step, gap]), axis=1, return_inverse=True)
    index = index.ravel()
    count = np.bincount(index)
    mean = np.bincount(index, weights=size) / count
    large = count >= 16
    if large.sum() < 5:
        return None
    level = np.sqrt(mean[large])
    since, behind = (cell[0] - cell[0].min())[large].astype(float), cell[1][large].astype(float)
    by_step, by_gap = _correlation(since, level), _correlation(behind, level)
    fresh, old = since <= np.quantile(since, 0.34), since >= np.quantile(since, 0.66)
    zero = behind == behind.min()
    if not (zero & old).any() or not (zero & fresh).any():
        return None
    early, late = float(level[zero & fresh].mean()), float(level[zero & old].mean())
    if by_step < 0.8 or by_step < by_gap + 0.3 or late < 3 * max(early, 1e-6) or late < 0.02:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=(
            "lag does not reset at the recorded syncs: it grows with the steps since the start, not with the"
            " version gap; the sampler appears pinned to its first weights"
        ),
        confidence=0.92,
        explains=0.95,
        figures=(
            Figure(what="correlation of the lag's size with the step", value=by_step),
            Figure(what="correlation with the version gap", value=by_gap),
            Figure(what="rms lag at the smallest gap, first third of the steps, nats", value=early),
            Figure(what="rms lag at the smallest gap, last third, nats", value=late),
        ),
        rules_out=("staleness as recorded: tokens of the smallest version gap lag as well",),
        first=(
            "compare a checksum of the engine's weights before and after a sync (LoRA tensors, tied heads"
            " included)"
        ),
    )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0


def _pinned_claims(evidence: Evidence) -> Finding | None:
    """Discrepancy at the claimed weights runs along the lag.

    The engine is further back than its version says.
    """
    if not evidence.has_lag or evidence.lag_free != "yes" or evidence.reference != "logpi_s":
        return None
    both = np.intersect1d(evidence.at, evidence.lag_at, assume_unique=True)
    if len(both) < 300:
        return None
    d = evidence.d[np.searchsorted(evidence.at, both)]
    at = np.searchsorted(evidence.lag_at, both)
    g, gap, row = evidence.g[at], evidence.g_gap[at], evidence.g_row[at]
    moving = (np.abs(g) > 1e-9) & ((gap > 0) | (gap < 0))
    if moving.sum() < 300:
        return None
    d, g, row = d[moving], g[moving], row[moving]
    product = clustered_mean((d - d.mean()) * (g - g.mean()), row)
    norm = float(d.std() * g.std())
    corr = product.value / norm if norm > 0 else 0.0
    # trainer noise at pi_s enters d and g with opposite signs; it can only lower the correlation
    if corr < 0.3 or product.z < 6 or float(np.sqrt(np.mean(d * d))) < 0.02:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=(
            "what the engine differs by at its claimed weights points along the lag (correlation"
            f" {corr:.2f}): it holds older weights than its version says, so syncs were not delivered"
        ),
        confidence=0.88,
        explains=0.9,
        figures=(
            Figure(what="correlation of d with the lag", value=corr, stderr=abs(corr / product.z)),
            Figure(what="rms d at the claimed weights, nats", value=float(np.sqrt(np.mean(d * d)))),
            Figure(what="rms lag since then, nats", value=float(np.sqrt(np.mean(g * g)))),
        ),
        rules_out=("numerics: rounding does not know in which direction the trainer moves",),
        first="compare a checksum of the engine's weights before and after a sync",
    )


def _lag_changes(evidence: Evidence) -> Finding | None:
    """Detect: the lag itself changes within rows although each claims one version."""
    if not evidence.has_lag:
        return None
    size, row = np.abs(evidence.g), evidence.g_row
    known = np.flatnonzero(size > 0)
    if len(known) < 200 or float(np.sqrt(np.mean(size**2))) < 1e-4:
        return None
    versions = evidence.sample.tokens["version"][evidence.lag_at]
    if (np.diff(versions)[np.diff(row) == 0] != 0).any():
        return None  # spans are recorded: a change is what they say
    starts = np.flatnonzero(np.append(True, np.diff(row) != 0))
    length = np.repeat(np.diff(np.append(starts, len(row))), np.diff(np.append(starts, len(row))))
    place = np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))
    profile = along(size / float(np.median(size[known])), place, length, row)
    if profile is None or profile.z < 6:
        return None
    at_one_place = profile.stepwise and not 0.7 < profile.growth < 1.4
    split = changes(size / float(np.median(size[known])), row)
    own_places = split is not None and split.share > 0.3 and split.sudden and not 0.4 < profile.growth < 2.5
    if not (at_one_place or own_places):
        return None
    ratio = max(profile.growth, 1 / profile.growth)
    return _spanning(split.share if split is not None and own_places else 1.0, ratio, "lag", 0.8)


def _spanning(share: float, ratio: float, what: str, explains: float) -> Finding:
    return Finding(
        kind="weights-caches-versions",
        fault=(
            f"a change point inside {share:.0%} of the rows: the {what} is {ratio:.1f} times larger on one"
            " side of it; rows span a weight sync but claim one version"
        ),
        confidence=0.8,
        explains=explains,
        figures=(
            Figure(what="share of rows with a change point", value=share),
            Figure(what=f"ratio of the {what} across it", value=ratio),
        ),
        rules_out=("context errors and long-range numerics: they fade or grow gradually",),
        first="record a version per token (spans), or abort and regenerate what is in flight at a sync",
    )


# -- within rows
# -------------------------------------------------------------------------------------------------------


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


class _Condition:
    def __init__(self, words: str, figures: tuple[Figure, ...]) -> None:
        self.words, self.figures = words, figures


def early_by_condition(evidence: Evidence, shapes: Shapes, /) -> _Condition | None:
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
    return _Condition(" and ".join(words), tuple(figures)) if words else None


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
        return _spanning(1.0, ratio, "difference", _claim(evidence, shapes.use.copy()))
    if split is None or split.share < 0.3 or (downward and profile.early_share > 0.62):
        return None
    sudden = (
        split.sharpness > 0.5 if downward and profile.growth < 0.5 else split.sudden and split.spread > 0.08
    )
    if not sudden:
        return None
    if evidence.lag_free == "no" and (split.share < 0.6 or split.sharpness < 0.7 or split.ratio < 2.5):
        return None
    return _spanning(split.share, split.ratio, "difference", _claim(evidence, shapes.use.copy()))


# -- over steps
# --------------------------------------------------------------------------------------------------------


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
    grows = _correlation(bad_step.astype(float), np.log(score)) if len(score) >= 6 else 0.0
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
