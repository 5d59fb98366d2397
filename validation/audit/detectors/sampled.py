r"""Was the reported distribution the one that was sampled? Identities that hold for any numerics and any lag.

If tokens are drawn from mu and mu is reported, then for any policy pi of the same support, whatever its
distance,

.. math:: E_\mu[\pi/\mu] = 1, \qquad E_\mu[(\pi/\mu) (-\log \pi - H(\pi))] = 0

The first fails for a wrong temperature, truncation and draft log-probs; the second, which needs the entropy,
also for
what is reported before processing, where all ratios are 1. A processed temperature the trainer does not
share keeps
both: it is seen in how d depends on log mu.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.evidence import Evidence, Mean, clustered_mean
from validation.audit.finding import Figure, Finding

SIGMAS = 6.0
"""Standard errors that a broken identity must show: errors over rows are themselves estimates"""


LEAST_TOKENS = 200


SMALLEST_SHIFT = 0.004
"""|E[pi/mu] - 1| below which nothing is said: rounding of reported log-probs reaches a few 1e-4 (public:
1.0005)"""


FEWEST_IDS = 20
"""Distinct ids over which the error of a mean can be taken"""


LEAST_ESS = 0.15
"""Token ESS of the ratio below which its sample mean is not to be trusted"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Units first, then the identity; the first that fires is it."""
    if evidence.live.sum() < LEAST_TOKENS:
        return []
    for look in (_units, _ratio):
        finding = look(evidence)
        if finding is not None:
            return [finding]
    return []


def _units(evidence: Evidence) -> Finding | None:
    """Other bases, or a multiple, in place of natural logs."""
    mu, ref = evidence.mu[evidence.live], evidence.ref[evidence.live]
    square = float(mu @ mu)
    if square == 0:
        return None
    slope = float(mu @ ref) / square
    left = float(np.mean((ref - slope * mu) ** 2)) / max(float(np.mean(ref**2)), 1e-12)
    if left > 0.02 or abs(slope - 1) < 0.15:
        return None
    named = {math.log(10): "logs to base 10", math.log(2): "logs to base 2", -1.0: "negative log-probs"}
    word = next((w for b, w in named.items() if abs(slope / b - 1) < 0.03), f"1/{slope:.3g} of the log-probs")
    return _unit_finding(
        f"{word}, not natural logs", slope, "slope of log pi on the reported value, through 0"
    )


def _unit_finding(word: str, value: float, what: str) -> Finding:
    return Finding(
        kind="sampled-vs-reported",
        fault=f"the engine's column holds {word}",
        confidence=0.9,
        explains=1.0,
        figures=(Figure(what=what, value=value),),
        rules_out=("noise: the relation is exact",),
        first="convert the engine's column to natural logs before it is used or logged",
    )


def _ratio(evidence: Evidence) -> Finding | None:
    """E[pi/mu] away from 1."""
    live = evidence.live
    d, row = evidence.d[live], evidence.row[live]
    r = np.exp(np.minimum(-d, 300.0))
    ess = float(r.sum() ** 2 / (len(r) * (r @ r)))
    if ess < LEAST_ESS:
        return None
    ratio, mean_d = clustered_mean(r, row), clustered_mean(d, row)
    off = Mean(ratio.value - 1, ratio.stderr)
    if abs(off.value) < SMALLEST_SHIFT or abs(off.z) < SIGMAS or abs(mean_d.z) < SIGMAS:
        return None
    if not _beyond_ids(evidence, r):
        return None
    # +1 if tokens were drawn from mu, -1 if from the trainer's law, 0 for symmetric noise on a log-prob,
    # large if
    # mu is the trainer's law without its tail
    leaning = mean_d.value / (0.5 * float(np.mean(d * d)))
    below = d[d < 0]
    one_sided = mean_d.value > 0 and float(below @ below) < 0.02 * float(d @ d)
    if off.value < 0 and (leaning > 2 or one_sided):
        return _truncated(evidence, d, ratio, mean_d)
    if off.value > 0 and leaning < -0.3:
        return _raw(evidence, d, ratio, mean_d)
    return None


def _beyond_ids(evidence: Evidence, r: np.ndarray) -> bool:
    """Whether the mean of pi/mu is further from 1 than errors fixed per id (an output head's) put it."""
    if evidence.token is None:
        return True
    token = evidence.token[evidence.live]
    if (token < 0).any() or len(np.unique(token)) < FEWEST_IDS:
        return True
    by_id = clustered_mean(r, token)
    return abs(by_id.value - 1) > SIGMAS / 2 * by_id.stderr


def _common(ratio: Mean, mean_d: Mean) -> tuple[Figure, ...]:
    return (
        Figure(what="mean of pi/mu (1 if tokens were drawn from mu)", value=ratio.value, stderr=ratio.stderr),
        Figure(what="mean of log mu - log pi, nats", value=mean_d.value, stderr=mean_d.stderr),
    )


def _truncated(evidence: Evidence, d: np.ndarray, ratio: Mean, mean_d: Mean) -> Finding:
    zero = float((d == 0).mean())
    never_below = float((d >= -1e-6).mean())
    figures = (
        *_common(ratio, mean_d),
        Figure(what="share of tokens with mu >= pi", value=never_below),
        Figure(what="largest log mu - log pi, nats", value=float(d.max())),
        Figure(what="share of tokens with d = 0 exactly", value=zero),
    )
    if float((d > 1.0).mean()) > 0.05:
        fault = (
            "the log-prob of another, likelier token was stored in place of the sampled one's (the first"
            f" entry, rank 1): mu >= pi on {never_below:.0%} of the tokens, equal on {zero:.0%}, E[pi/mu] ="
            f" {ratio.value:.3f}"
        )
        first = "pick the log-prob by the sampled id, not the first entry of the engine's dictionary"
    else:
        fault = (
            "truncated sampling reported renormalised, the trainer scores the full vocabulary: E[pi/mu] = "
            f"{ratio.value:.4f} is the kept mass"
        )
        first = "set top_p = 1, top_k = -1, min_p = 0, or log the kept set and score the trainer on it"
        figures = (*figures, *_kept(evidence))
    return Finding(
        kind="sampled-vs-reported",
        fault=fault,
        confidence=0.93,
        explains=_shift_share(d),
        figures=figures,
        rules_out=(
            "numerics and lag: both keep E[pi/mu] = 1",
            "the offset is not counted as discrepancy: it is a known factor per prefix",
        ),
        first=first,
    )


def _kept(evidence: Evidence) -> tuple[Figure, ...]:
    """Detect: what is left of d once the logged kept mass is taken out."""
    if evidence.kept is None:
        return ()
    known = evidence.live & (evidence.kept > 0)
    if not known.any():
        return ()
    left = evidence.d[known] + np.log(evidence.kept[known])
    return (
        Figure(what="kept mass as logged, mean", value=float(evidence.kept[known].mean())),
        Figure(what="rms of d without the kept mass, nats", value=float(np.sqrt(np.mean(left**2)))),
    )


def _shift_share(d: np.ndarray) -> float:
    """Share of the mean square of d that an offset of one sign makes.

    All but what a symmetric noise would show.
    """
    below = d[d < 0]
    total = float(d @ d)
    return max(0.0, 1 - 2 * float(below @ below) / total) if total > 0 else 1.0


def _raw(evidence: Evidence, d: np.ndarray, ratio: Mean, mean_d: Mean) -> Finding:
    p = np.exp(np.minimum(evidence.mu[evidence.live], 0.0))
    inverse = clustered_mean(np.exp(np.clip(d, -300, 300)), evidence.row[evidence.live])
    sure, unsure = np.abs(d)[p > 0.9], np.abs(d)[p < 0.5]
    tilt = slope(evidence.mu[evidence.live], evidence.ref[evidence.live])
    hint = "T < 1" if tilt > 1.02 else "T > 1" if tilt < 0.98 else "another law"
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            f"the reported log-probs are not those sampled from: E[pi/mu] = {ratio.value:.3f} +-"
            f" {ratio.stderr:.3f}, which no numerics or lag gives; consistent with raw log-probs reported at"
            f" {hint}"
        ),
        confidence=0.93,
        explains=0.95,
        figures=(
            *_common(ratio, mean_d),
            Figure(
                what="mean of mu/pi (1 if tokens were drawn from pi)",
                value=inverse.value,
                stderr=inverse.stderr,
            ),
            Figure(what="mean |d| where p > 0.9, nats", value=float(sure.mean()) if sure.size else math.nan),
            Figure(
                what="mean |d| where p < 0.5, nats", value=float(unsure.mean()) if unsure.size else math.nan
            ),
            Figure(what="slope of log pi on log mu", value=tilt),
        ),
        rules_out=(
            "numerics and lag: both keep E[pi/mu] = 1",
            "noise on the log-probs: it has no preferred sign",
        ),
        first=(
            "set logprobs_mode = processed_logprobs in the engine, and score the trainer at the same"
            " temperature"
        ),
    )


def slope(mu: np.ndarray, ref: np.ndarray) -> float:
    """Slope of the regression of one log-prob on the other; 1 where there is no spread."""
    spread = float(np.var(mu))
    return float(np.mean((mu - mu.mean()) * (ref - ref.mean()))) / spread if spread > 0 else 1.0
