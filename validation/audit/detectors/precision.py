"""Size and tails of the numerics: what no healthy precision gives, with no shape along rows or steps.

Healthy floors (public, at T = 1): bf16 rms .02 to .05 nats, FP8 .13 to .18, vanishing where the model is
sure.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.evidence import Evidence, clustered_mean
from validation.audit.finding import Figure, Finding
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


WILD = 3.0
FEW_WILD = 5
"""Tokens off by more nats than the first that are no chance: emulated FP8 has none (public maximum: 1.5)"""


def detect(evidence: Evidence, shapes: Shapes, /) -> list[Finding]:
    """Kinds of tokens, then size, then what is fixed per id; the first that fires is it."""
    if not shapes.enough:
        return []
    for look in (_heavy, _size, _per_token):
        finding = look(evidence, shapes)
        if finding is not None:
            return [finding]
    return []


def root_mean_square(x: np.ndarray) -> float:
    """Root of the mean square; NaN for nothing."""
    return float(np.sqrt(np.mean(x * x))) if x.size else math.nan


def shapeless(size: np.ndarray, logp: np.ndarray) -> bool:
    """Whether differences do not shrink where the model is sure; no change of weights or logits does that."""
    sure, unsure = size[logp > math.log(0.9)], size[logp < math.log(0.5)]
    if sure.size < 20 or unsure.size < 20:
        return False
    return float(sure.mean()) > 0.4 * float(unsure.mean())


def _heavy(evidence: Evidence, shapes: Shapes) -> Finding | None:
    """Detect: a few tokens carry the mismatch: routing flips, single broken positions."""
    use = shapes.use
    d, size = evidence.d[use], shapes.size[use]
    rms, mean = root_mean_square(d), float(np.abs(d).mean()) if d.size else 0.0
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
    fine = float(np.quantile(np.abs(d), 0.9)) < 0.35
    # no healthy arithmetic is off by nats on a few tokens while the others are fine; a policy that learns may
    pure = evidence.lag_free == "yes" or float(np.quantile(np.abs(d), 0.95)) < 0.12
    wild = pure and int((np.abs(d) > WILD).sum()) >= FEW_WILD
    if not two_kinds and not (fine and (broken > BROKEN or wild)):
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
    rms = root_mean_square(d)
    p = np.exp(np.minimum(mu, 0.0))
    sure, unsure = np.abs(d)[p > 0.9], np.abs(d)[p < 0.5]
    plain = shapeless(np.abs(d), mu)
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
                else "lag is not excluded: the versions of both sides are not logged"
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
    rms = root_mean_square(d)
    if share < 0.5 or rms < 0.01:
        return None
    lag = root_mean_square(evidence.g) if evidence.has_lag else math.nan
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
