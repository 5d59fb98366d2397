"""Was a distribution sampled that nobody reported? What the ratios cannot show: both sides report the same.

Tokens drawn from the reported law are as surprising as its entropy says, under any numerics and any lag.
Truncation, temperature and penalties that act after the report break this and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from validation.audit.detectors.lag_course import correlation
from validation.audit.detectors.sampled import LEAST_TOKENS, SIGMAS
from validation.audit.evidence import Evidence, Mean, clustered_mean
from validation.audit.finding import Figure, Finding
from validation.audit.sums import in_use

RELATED = 0.2
"""Correlation with the tokens' surprise that a column of entropies has at least"""


CALIBRATION = 0.012
"""Nats of -log pi - H that are reported at least"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Compare surprise with entropy, on both sides or the engine's alone; else read what the log states."""
    finding = None
    if evidence.live.sum() >= LEAST_TOKENS:
        finding = _calibration(evidence)
    finding = finding or _entropy_alone(evidence) or _declared(evidence.settings)
    return [] if finding is None else [finding]


def _calibration(evidence: Evidence) -> Finding | None:
    """Surprise against entropy.

    What was sampled under a law other than the reported one, with all ratios near 1.
    """
    if evidence.entropy is None:
        return None
    use = evidence.live & np.isfinite(evidence.entropy)
    if use.sum() < LEAST_TOKENS:
        return None
    d, row = evidence.d[use], evidence.row[use]
    surprise_ref = -evidence.ref[use] - evidence.entropy[use]
    surprise_mu = -evidence.mu[use] - evidence.entropy[use]
    weight = np.exp(np.clip(-d, -20, 20))
    if correlation(evidence.entropy[use], -evidence.ref[use]) < RELATED:
        return None  # whatever this column is, it is not the entropy these tokens were drawn with
    # the weighted one is exact under numerics and lag; the plain ones guard against noise that is no
    # distribution
    means = [clustered_mean(x, row) for x in (weight * surprise_ref, surprise_ref, surprise_mu)]
    signs = {np.sign(m.value) for m in means}
    weakest = min(means, key=lambda m: abs(m.value))
    if len(signs) != 1 or min(abs(m.z) for m in means) < SIGMAS - 1 or abs(weakest.value) < CALIBRATION:
        return None
    return _calibration_finding(means[0], evidence.clustered(np.exp(-evidence.d), evidence.live))


def _calibration_finding(surprise: Mean, ratio: Mean | None) -> Finding:
    sharper = surprise.value < 0
    cause = (
        "truncation (top-p, top-k) or T < 1 in the sampler"
        if sharper
        else "a penalty or T > 1 in the sampler"
    )
    extra = () if ratio is None else (Figure(what="mean of pi/mu", value=ratio.value, stderr=ratio.stderr),)
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            f"tokens are {abs(surprise.value):.3f} nats {'less' if sharper else 'more'} surprising than the"
            f" reported distribution's entropy allows: {cause}, with log-probs reported before it; the ratios"
            " cannot show it"
        ),
        confidence=0.9,
        explains=0.9,
        figures=(
            Figure(
                what="mean of -log pi - H, nats (0 if sampled as reported)",
                value=surprise.value,
                stderr=surprise.stderr,
            ),
            *extra,
        ),
        rules_out=(
            "numerics and lag: both keep the mean of (pi/mu)(-log pi - H) at 0",
            "a clean bill from the ratios: they compare two reports, not a report with the samples",
        ),
        first=(
            "set logprobs_mode = processed_logprobs and look at temperature, top_p, top_k, min_p and"
            " penalties"
        ),
    )


def _entropy_alone(evidence: Evidence) -> Finding | None:
    """Detect: the same test where only the engine's side was logged, with entropy."""
    tokens = evidence.sample.tokens
    if len(evidence.mu) or "entropy" not in tokens or "logmu" not in tokens:
        return None
    mask = tokens["mask"] & in_use(tokens["logmu"]) & in_use(tokens["entropy"])
    if mask.sum() < LEAST_TOKENS:
        return None
    owner = np.repeat(np.arange(len(evidence.sample.starts) - 1), np.diff(evidence.sample.starts))
    surprise = clustered_mean(-tokens["logmu"][mask] - tokens["entropy"][mask], owner[mask])
    if abs(surprise.z) < SIGMAS or abs(surprise.value) < 0.05:
        return None
    return _calibration_finding(surprise, None)


def _declared(settings: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """Detect: what the log itself states about sampling, where no figure could show it."""
    for stated in settings.values():
        mode = str(stated.get("logprobs_mode") or "")
        changed = _changes(stated)
        trainer, engine = stated.get("T_trainer"), stated.get("T")
        if mode.startswith("raw") and changed:
            said = f"raw log-probs with {', '.join(changed)}"
        elif _number(trainer) and _number(engine) and abs(float(trainer) - float(engine)) > 1e-9:
            said = f"T = {float(engine):g} in the engine and {float(trainer):g} in the trainer"
        else:
            continue
        return Finding(
            kind="sampled-vs-reported",
            fault=f"the log states {said}: what is reported is not what is sampled, and no ratio shows it",
            confidence=0.7,
            explains=0.5,
            figures=(),
            first="set logprobs_mode = processed_logprobs and one temperature on both sides",
        )
    return None


def _changes(stated: Mapping[str, Any]) -> list[str]:
    """Detect: sampling parameters away from their neutral value."""
    neutral = {"T": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    out = [
        f"{name} = {got:g}"
        for name, value in neutral.items()
        if _number(got := stated.get(name)) and abs(got - value) > 1e-9
    ]
    top_k = stated.get("top_k")
    if _number(top_k) and float(top_k) > 0:
        out.append(f"top_k = {float(top_k):g}")
    return out


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
