"""Policy lag: how far the trainer has moved since the sampler's weights.

And whether weights still carry it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from theory.resync import FAILURE_THRESHOLD
from validation.audit.collect import Collector
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.shapes import Shapes
from validation.audit.sums import describe

LARGEST_BF16 = 0.06
"""rms in nats up to which a total without a floor beside it may be numerics alone"""
LEAST_RMS = 2e-3
"""nats of lag from which it is worth a line"""


def detect(
    evidence: Evidence, shapes: Shapes, found: list[Finding], forecast: Mapping[str, Any] | None, /
) -> list[Finding]:
    """Measured lag, or, where only the total is known.

    Lag inferred from the version gap or from its growth.
    """
    if any(
        f.kind in ("weights-caches-versions", "alignment-tokens-masks") and f.confidence > 0.5 for f in found
    ):
        return []
    if evidence.has_lag:
        if any(f.side == "trainer" for f in found):
            return []
        return _measured(evidence, forecast)
    kinds = {f.kind for f in found} - {"misleading-metrics"}
    if kinds == {"engine-numerics"} and _moves_with_gap(evidence):
        return _by_gap(evidence)  # the numerics were judged on the other tokens
    if kinds:
        return []
    return _by_gap(evidence) or _by_growth(evidence, shapes)


def lowest_ess(table: list[tuple[Any, np.ndarray]], /) -> tuple[float, Any]:
    """Smallest token ESS of the steps with enough tokens, with its step."""
    shares = [(describe(sums)["ess_token"], key) for key, sums in table if sums[0] >= 64]
    return min(shares, default=(math.nan, None), key=lambda pair: pair[0])


def _measured(evidence: Evidence, forecast: Mapping[str, Any] | None) -> list[Finding]:
    exact = evidence.exact
    rms, numerics = exact.lag.rms, exact.discrepancy.rms
    if not rms > LEAST_RMS:
        return []
    share = exact.lag.variance / max(
        exact.lag.variance + (exact.discrepancy.variance if numerics > 0 else 0), 1e-12
    )
    low, step = lowest_ess(exact.lag_by_step.rows())
    ess = exact.lag.ess
    failed = ess < FAILURE_THRESHOLD or low < FAILURE_THRESHOLD
    worst = min(v for v in (ess, low) if not math.isnan(v))
    figures = [
        Figure(what="rms lag, nats", value=rms),
        Figure(what="rms numerics, nats", value=numerics),
        Figure(what="share of the variance that is lag", value=share),
        Figure(what="token ESS of pi/pi_s, raw and pooled", value=ess),
        Figure(
            what="lowest token ESS of a step", value=low, where=f"step {step}" if step is not None else ""
        ),
    ]
    figures += [
        Figure(what=f"rms lag at version gap {gap}, nats", value=describe(sums)["rms_d"])
        for gap, sums in exact.lag_by_gap.rows()[:4]
    ]
    if forecast and forecast.get("crossing_lag") is not None:
        figures.append(
            Figure(what="updates after a sync at which ESS reaches 1/2", value=forecast["crossing_lag"])
        )
    return [_finding(failed, worst, share, figures, 0.9, measured=True)]


def _finding(
    failed: bool,
    worst: float,
    share: float,
    figures: list[Figure],
    confidence: float,
    *,
    measured: bool,
    floor: bool = True,
) -> Finding:
    ratio = "pi/pi_s" if measured else "pi/mu"
    name = "policy lag" if floor else "policy lag, numerics included (no token of equal version),"
    if failed:
        fault = (
            f"{name} has outrun importance weighting: the token ESS of {ratio} is {worst:.3g}, below "
            f"{FAILURE_THRESHOLD:g}"
        )
        first = "sync the sampler more often, or when the ESS of the lag ratio falls below 1/2"
    else:
        fault = (
            f"healthy {name.rstrip(',')}: the trainer has moved on since the sync, token ESS of {ratio}"
            f" {worst:.3g}"
        )
        first = "nothing: log the ESS of the lag ratio and sync when it falls below 1/2"
    if not floor:
        first = (
            "log the trainer's log-probs at the sampler's weights (pi_s), or a step right after a sync: that"
            " parts lag from numerics; if it is lag, sync more often"
        )
    return Finding(
        kind="lag",
        fault=fault,
        confidence=confidence,
        explains=min(max(share, 0.0), 1.0),
        figures=tuple(figures),
        rules_out=("an engine fault: numerics are measured apart and are ordinary",) if measured else (),
        first=first,
    )


def _by_gap(evidence: Evidence) -> list[Finding]:
    """Only the total was logged, but versions tell which tokens have no lag, or that all may have some."""
    if evidence.reference != "logpi" and not evidence.apart:
        return []
    level = {g: describe(sums)["rms_d"] for g, sums in evidence.exact.by_gap.rows() if sums[0] >= 64}
    if not level:
        return []
    side = "log pi" if evidence.reference == "logpi" else "log old"
    figures = [
        Figure(what=f"rms log mu - {side} at version gap {gap}, nats", value=rms)
        for gap, rms in list(level.items())[:6]
    ]
    top = max(level.values())
    if 0 in level:
        floor = level[0]
        if top < 1.3 * floor or top < 0.01:
            return []
        return _total(evidence.exact, figures, 1 - (floor / top) ** 2, 0.75)
    if top < LARGEST_BF16:
        return []
    # lag grows with the gap; where it cannot be seen to, numerics are as good an explanation
    grows = level[max(level)] > 1.3 * level[min(level)]
    share = 1 - (LARGEST_BF16 / top) ** 2
    return _total(evidence.exact, figures, share, 0.6 if grows else 0.45, floor=False)


def _moves_with_gap(evidence: Evidence) -> bool:
    """Whether most tokens of unequal versions differ by more than those of equal ones, not a few of them."""
    size, known = np.abs(evidence.d), evidence.dated
    equal, apart = size[known & (evidence.gap == 0)], size[known & (evidence.gap != 0)]
    return min(equal.size, apart.size) >= 64 and float(np.median(apart)) > 1.3 * float(np.median(equal))


def _by_growth(evidence: Evidence, shapes: Shapes) -> list[Finding]:
    """Only the total was logged, without versions.

    Growth or a sawtooth over the steps is lag or drifting numerics.
    """
    if evidence.lag_free == "yes" or not shapes.enough:
        return []
    course = shapes.course
    if course.shape == "flat" or course.ratio < 1.5:
        return []
    figures = [
        Figure(what="high steps over low steps", value=course.ratio),
        Figure(what="rms log mu - log pi, nats", value=evidence.exact.discrepancy.rms),
    ]
    return _total(evidence.exact, figures, 1 - 1 / course.ratio**2, 0.5)


def _total(
    exact: Collector, figures: list[Figure], share: float, confidence: float, *, floor: bool = True
) -> list[Finding]:
    low, step = lowest_ess(exact.by_step.rows())
    ess = exact.discrepancy.ess
    worst = min(v for v in (ess, low) if not math.isnan(v))
    figures.append(Figure(what="token ESS of pi/mu, raw and pooled", value=ess))
    figures.append(Figure(what="lowest token ESS of a step", value=low, where=f"step {step}"))
    failed = worst < FAILURE_THRESHOLD
    return [_finding(failed, worst, share, figures, confidence, measured=False, floor=floor)]
