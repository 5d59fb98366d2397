"""A law the engine samples and reports truly, and the trainer does not share: a temperature, a penalty.

The identities of `sampled` hold for it. It is seen in how d depends on the token.
"""

from __future__ import annotations

import numpy as np

from validation.audit.detectors.sampled import LEAST_TOKENS, SIGMAS, slope
from validation.audit.evidence import BINS, Evidence, clustered_mean
from validation.audit.finding import Figure, Finding

DETERMINED = 0.5
"""Share of d^2 on likely tokens that log mu determines, from which two temperatures are at work; noise: below
.2"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Ids seen before, then the dependence on the probability; the first that fires is it."""
    if evidence.live.sum() < LEAST_TOKENS:
        return []
    for look in (_penalty, _temperature):
        finding = look(evidence)
        if finding is not None:
            return [finding]
    return []


def _temperature(evidence: Evidence) -> Finding | None:
    """Engine and trainer at two temperatures, both reported truly.

    D is almost a function of the probability.
    """
    use = evidence.numerics
    d, bins, row = evidence.d[use], evidence.bin[use], evidence.row[use]
    if d.size < LEAST_TOKENS or float(np.sqrt(np.mean(d * d))) < 0.05:
        return None
    count = np.bincount(bins, minlength=BINS)
    mean = np.bincount(bins, weights=d, minlength=BINS) / np.maximum(count, 1)
    likely = bins >= BINS // 2
    told = (
        float(np.mean(mean[bins[likely]] ** 2) / max(float(np.mean(d[likely] ** 2)), 1e-12))
        if likely.any()
        else 0.0
    )
    rarest = evidence.mu[use] <= np.quantile(evidence.mu[use], 0.06)
    rare, sure = clustered_mean(d[rarest], row[rarest]), clustered_mean(d[likely], row[likely])
    opposite = rare.value * sure.value < 0 and abs(rare.z) > 3 and abs(sure.z) > SIGMAS
    # a policy that sharpens leans the same way, but not as a function of the probability alone
    if not opposite or told < (0.8 if evidence.lag_free == "no" else DETERMINED):
        return None
    tilt = slope(evidence.mu[use], evidence.ref[use])
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            "engine and trainer score at two temperatures: d is a function of the probability,"
            f" {'positive' if sure.value > 0 else 'negative'} on likely tokens and of the other sign on rare"
            f" ones (the engine is {'colder' if sure.value > 0 else 'hotter'})"
        ),
        confidence=0.85,
        explains=max(0.5, min(told, 1.0)),
        figures=(
            Figure(what="mean d on the rarest tokens, nats", value=rare.value, stderr=rare.stderr),
            Figure(what="mean d on the likelier half, nats", value=sure.value, stderr=sure.stderr),
            Figure(what="share of d^2 there that log mu determines", value=told),
            Figure(what="slope of log pi on log mu", value=tilt),
        ),
        rules_out=("numerics: noise has no sign that depends on the probability",),
        first="divide the trainer's logits by the sampling temperature before log_softmax",
    )


def _penalty(evidence: Evidence) -> Finding | None:
    """Detect: a repetition penalty on one side: ids seen before in the row differ from the others."""
    if evidence.token is None or (evidence.token[evidence.live] < 0).any():
        return None
    use = evidence.numerics
    d, row, token, bins = evidence.d[use], evidence.row[use], evidence.token[use], evidence.bin[use]
    seen = _seen_before(row, token)
    if seen.sum() < 50 or (~seen).sum() < 50:
        return None
    # within bins of probability, so that only repetition differs
    fresh_mean = np.bincount(bins[~seen], weights=d[~seen], minlength=BINS)
    fresh_count = np.bincount(bins[~seen], minlength=BINS)
    comparable = fresh_count[bins[seen]] >= 20
    if comparable.sum() < 50:
        return None
    expected = fresh_mean[bins[seen]] / np.maximum(fresh_count[bins[seen]], 1)
    contrast = clustered_mean((d[seen] - expected)[comparable], row[seen][comparable])
    rms = float(np.sqrt(np.mean(d * d)))
    if abs(contrast.z) < SIGMAS or abs(contrast.value) < max(0.02, 0.3 * rms):
        return None
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            f"d differs by {contrast.value:+.3f} nats on ids that occurred before in the row: a repetition or"
            " presence penalty on one side only"
        ),
        confidence=0.8,
        explains=0.8,
        figures=(
            Figure(what="d on repeated ids minus others, nats", value=contrast.value, stderr=contrast.stderr),
            Figure(what="share of tokens with a repeated id", value=float(seen.mean())),
            Figure(what="rms d, nats", value=rms),
        ),
        rules_out=("numerics: kernels do not know which ids came before",),
        first=(
            "switch penalties off in the engine (repetition_penalty = 1, presence_penalty = frequency_penalty"
            " = 0)"
        ),
    )


def _seen_before(row: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Whether the same id stood earlier in the same row."""
    order = np.lexsort((np.arange(len(row)), token, row))
    again = np.append(False, (np.diff(row[order]) == 0) & (np.diff(token[order]) == 0))
    seen = np.zeros(len(row), dtype=bool)
    seen[order] = again
    return seen
