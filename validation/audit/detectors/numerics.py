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
from validation.audit.evidence import Evidence, clustered_mean
from validation.audit.finding import Figure, Finding
from validation.audit.profiles import Rows
from validation.audit.shapes import Shapes

LARGEST_HEALTHY = 0.19
"""rms d in nats of the largest floor that is healthy: FP8 with an FP8 cache on a 1.7B model shows .18"""
LARGEST_PLAIN = 0.165
"""The same for noise that does not vanish where the model is sure, which no rounding of weights gives"""
CONFOUNDED = 0.6
"""rms d where lag may be part of it"""
FROM_THE_START = 0.25
"""The same where the log begins at the first step, in which there is no lag, and the size does not change"""
PLATEAU = 0.5
"""Of the tokens beyond 6 medians of |d|, the share beyond 12 from which there are two kinds of tokens. Real
tails are heavy but smooth: emulated FP8 on the mini-Qwen3 gives .29, bf16 .22, a Student t of 3 dof .14"""
BROKEN = 3e-3
"""Share of tokens off by more than a nat that no healthy precision reaches (emulated FP8: 8e-4)"""


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Trainer noise first, then shape along rows, steps and rows, then tails and size."""
    found = []
    if (finding := _self_noise(evidence)) is not None:
        found.append(finding)
    if not shapes.enough:
        return found
    for look in (_position, _drift, _unequal, _heavy, _size, _per_token):
        finding = look(evidence, shapes)
        if finding is not None:
            found.append(finding)
            break
    return found


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x * x))) if x.size else math.nan


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
    rms = _rms(g)
    if rms < 3e-3:
        return None
    first = step == step.min()
    growth = _rms(g[~first]) / max(_rms(g[first]), 1e-9) if (~first).any() and first.any() else 1.0
    if growth > (2.0 if versions else 1.3):
        return None  # it moves with the trainer: that is lag, at tokens whose version says there is none
    if not _shapeless(np.abs(g), evidence.g_ref[same]):
        return (
            None  # it vanishes where the model is sure: an update more than the version says does that, too
        )
    outside = float((np.abs(np.expm1(-g)) > 0.1).mean())
    whole = _rms(evidence.d) if evidence.d.size else rms
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


def _shapeless(size: np.ndarray, logp: np.ndarray) -> bool:
    """Whether differences do not shrink where the model is sure; no change of weights or logits does that."""
    sure, unsure = size[logp > math.log(0.9)], size[logp < math.log(0.5)]
    if sure.size < 20 or unsure.size < 20:
        return False
    return float(sure.mean()) > 0.4 * float(unsure.mean())


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
    if course.shape != "drift" or shapes.by_rows or evidence.lag_free == "no":
        return None
    assumed = evidence.lag_free == "assumed" and not evidence.in_lockstep
    if course.ratio < (1.5 if assumed else 1.35) or (assumed and len(shapes.series.step) < 6):
        return None
    use, step = shapes.use, evidence.step
    series = shapes.series
    quarter = max(len(series.step) // 4, 1)
    early = use & (step <= series.step[quarter - 1])
    late = use & (step >= series.step[-quarter])
    first, last = _rms(evidence.d[early]), _rms(evidence.d[late])
    grown = max(0.0, 1 - (first / last) ** 2) if last > 0 else 0.0
    explains = evidence.explains(use) * max(grown, 0.5)
    evidence.live &= ~use
    return Finding(
        kind="engine-numerics",
        fault=(
            f"the mismatch at equal weights grows over the run, rms d {first:.3g} -> {last:.3g} nats:"
            " numerics drift with the policy (entropy, weight range, stale scales), not lag by version"
        ),
        confidence=0.55 if assumed else 0.8,
        explains=explains,
        figures=(
            Figure(what="rms d, first quarter of the steps, nats", value=first),
            Figure(what="rms d, last quarter, nats", value=last),
            Figure(what="ratio at equal probability", value=course.ratio),
            Figure(what="chi-square of a constant, in its standard deviations", value=course.z),
        ),
        rules_out=(
            "constant numerics: do not extrapolate the floor of the first step",
            "lag, if the run syncs before each step" if assumed else "lag: version gap is 0 throughout",
            "a sampler that stopped receiving weights is the other explanation: compare checksums",
        ),
        first=(
            "compare the engine in higher precision (bf16, or fp16/fp32 head) on the last checkpoint; reset"
            " its caches"
        ),
    )


def _unequal(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: some rows are far off, the others fine."""
    found = shapes.rows
    if found is None:
        return None
    tokens = shapes.tokens_of(found.row[found.bad])
    bad_rms = _rms(evidence.d[tokens])
    least = {"yes": 0.0, "assumed": 0.5, "no": 0.8}[evidence.lag_free]
    if not shapes.by_rows or bad_rms < max(least, 0.03):
        return None
    explains = evidence.explains(tokens)
    good = _rms(evidence.d[shapes.use & ~tokens])
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


def _heavy(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: a few tokens carry the mismatch: routing flips, single broken positions."""
    use = shapes.use
    d, size = evidence.d[use], shapes.size[use]
    rms, mean = _rms(d), float(np.abs(d).mean()) if d.size else 0.0
    if d.size < 300 or rms < 0.06:
        return None
    # tokens of several lags are of several kinds, too; those differ by row or by step
    if evidence.lag_free == "no" and (
        shapes.rows is not None or shapes.course.shape != "flat" or float(np.median(evidence.length)) < 40
    ):
        return None
    far, farther = int((size > 6).sum()), int((size > 12).sum())
    two_kinds = far >= max(15, 0.004 * d.size) and farther > PLATEAU * far
    broken = float((np.abs(d) > 1).mean())
    if not two_kinds and not (broken > BROKEN and float(np.quantile(np.abs(d), 0.9)) < 0.35):
        return None
    order = np.sort(d * d)[::-1]
    top = max(1, d.size // 100)
    carried = float(order[:top].sum() / order.sum())
    weight = evidence.explains(use)
    evidence.live &= ~use
    few = rms / mean > 6
    return Finding(
        kind="engine-numerics",
        fault=(
            f"a few broken tokens carry the mismatch (rms/mean |d| = {rms / mean:.1f}; healthy 2 to 3.3)"
            if few
            else f"two kinds of tokens: most are fine and {far / d.size:.1%} far off at equal probability"
        )
        + ": experts routed differently, or single positions computed wrongly",
        confidence=0.75 if few else 0.65,
        explains=carried * weight,
        figures=(
            Figure(what="rms d, nats", value=rms),
            Figure(what="mean |d|, nats", value=mean),
            Figure(what="share of tokens beyond 6 medians of |d|", value=far / d.size),
            Figure(what="of those, beyond 12 (a smooth tail: below .3)", value=farther / max(far, 1)),
            Figure(what="share of tokens off by more than a nat", value=broken),
            Figure(what="share of sum d^2 on 1% of the tokens", value=carried),
            Figure(what="largest |d|, nats", value=float(np.abs(d).max())),
        ),
        rules_out=("uniform precision: its tail is smooth, with no second kind of tokens",),
        scattered=True,
        first="for a mixture of experts compare with routing replay; else re-score the worst tokens in fp32",
    )


def _size(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Too large for any healthy precision, with no shape that says more."""
    use = shapes.use
    d, mu = evidence.d[use], evidence.mu[use]
    rms = _rms(d)
    p = np.exp(np.minimum(mu, 0.0))
    sure, unsure = np.abs(d)[p > 0.9], np.abs(d)[p < 0.5]
    plain = _shapeless(np.abs(d), mu)
    limit = LARGEST_PLAIN if plain else LARGEST_HEALTHY
    if evidence.lag_free != "yes" and not plain:
        limit = CONFOUNDED
        steps = shapes.series.step
        if len(steps) >= 3 and steps[0] <= 1 and shapes.course.shape == "flat":
            limit = LARGEST_HEALTHY if evidence.lag_free == "assumed" else FROM_THE_START
    error = clustered_mean(d * d, evidence.row[use])
    low = math.sqrt(max(error.value - 3 * error.stderr, 0.0))
    if low < limit * 0.97:
        return None
    weight = evidence.explains(use)
    evidence.live &= ~use
    ess = evidence.exact.discrepancy.ess
    useless = ess < 0.5
    return Finding(
        kind="engine-numerics",
        fault=(
            f"the engine differs by rms {rms:.2g} nats at equal weights, from the first step and at every"
            " position: more than any healthy precision gives"
        )
        + (
            f"; importance sampling cannot mend it (token ESS {ess:.2g})"
            if useless
            else "; a difference in the model's definition or a broken low-precision path"
        ),
        confidence=0.75 if evidence.lag_free == "yes" else 0.5,
        explains=weight * (max(0.0, 1 - (LARGEST_PLAIN / rms) ** 2) if rms > 0.25 else 0.5),
        figures=(
            Figure(what="rms d, nats", value=rms, stderr=error.stderr / (2 * rms)),
            Figure(what="mean |d|, nats", value=float(np.abs(d).mean())),
            Figure(what="mean |d| where p > 0.9, nats", value=float(sure.mean()) if sure.size else math.nan),
            Figure(
                what="mean |d| where p < 0.5, nats", value=float(unsure.mean()) if unsure.size else math.nan
            ),
            Figure(what="token ESS of pi/mu, raw", value=ess),
        ),
        rules_out=(
            (
                "lag: the weights are equal"
                if evidence.lag_free == "yes"
                else "lag is not excluded: versions are not logged"
            ),
            "growth with position, step or row: none is seen",
        ),
        first=(
            "score one batch with the trainer's own forward pass in the engine's precision; compare layer by"
            " layer"
        ),
    )


def _per_token(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: an error fixed per token id: the head's precision."""
    use = shapes.use
    if evidence.token is None or use.sum() < 1000 or evidence.lag_free == "no":
        return None
    d, token = evidence.d[use], evidence.token[use]
    if (token < 0).any():
        return None
    names, index, count = np.unique(token, return_inverse=True, return_counts=True)
    often = count[index] >= 4
    if often.sum() < 500 or len(names) < 10:
        return None
    d, index = d[often], index[often]
    size = np.bincount(index, minlength=len(names))
    mean = np.bincount(index, weights=d, minlength=len(names)) / np.maximum(size, 1)
    between = float((size * mean**2).sum()) - float(d.mean() ** 2) * len(d)
    within = float(((d - mean[index]) ** 2).sum())
    kinds = int((size > 0).sum())
    spare = max(len(d) - kinds, 1)
    share = max(0.0, between - kinds * within / spare) / max(between + within, 1e-12)
    rms = _rms(d)
    if share < 0.5 or rms < 0.01:
        return None
    lag = _rms(evidence.g) if evidence.has_lag else math.nan
    both = (0.8, 1.2)
    clipped = float(((np.exp(-d) < both[0]) | (np.exp(-d) > both[1])).mean())
    return Finding(
        kind="engine-numerics",
        fault=(
            f"the error is fixed per token id ({share:.0%} of its variance, rms {rms:.2g} nats): a precision"
            " error of the output head that every update sees with the same sign"
        ),
        confidence=0.7,
        explains=share * evidence.explains(use),
        figures=(
            Figure(what="share of Var(d) between token ids", value=share),
            Figure(what="rms d, nats", value=rms),
            Figure(what="rms lag, nats", value=lag),
            Figure(what="share of tokens a clip of .2 hits through d alone", value=clipped),
        ),
        rules_out=("unstructured rounding: it averages out over a token's occurrences", "lag"),
        first="compute the output head in fp32 on both sides",
    )
