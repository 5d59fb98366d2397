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
    if any(f.kind != "misleading-metrics" for f in found):
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
    failed: bool, worst: float, share: float, figures: list[Figure], confidence: float, *, measured: bool
) -> Finding:
    ratio = "pi/pi_s" if measured else "pi/mu"
    if failed:
        fault = (
            f"policy lag has outrun importance weighting: the token ESS of {ratio} is {worst:.3g}, below "
            f"{FAILURE_THRESHOLD:g}"
        )
        first = "sync the sampler more often, or when the ESS of the lag ratio falls below 1/2"
    else:
        fault = (
            f"healthy policy lag: the trainer has moved on since the sync, token ESS of {ratio} {worst:.3g}"
        )
        first = "nothing: log the ESS of the lag ratio and sync when it falls below 1/2"
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
    """Only the total was logged, but versions tell which tokens have no lag."""
    table = [(gap, sums) for gap, sums in evidence.exact.by_gap.rows() if gap >= 0 and sums[0] >= 64]
    if not table or evidence.reference != "logpi":
        return []
    figures = [
        Figure(what=f"rms log mu - log pi at version gap {gap}, nats", value=describe(sums)["rms_d"])
        for gap, sums in table[:6]
    ]
    floor = describe(table[0][1])["rms_d"] if table[0][0] == 0 else 0.0
    top = max(describe(sums)["rms_d"] for _, sums in table)
    if top < 1.3 * floor or top < (0.01 if floor else LARGEST_BF16):
        return []
    return _total(evidence.exact, figures, 1 - (floor / top) ** 2, 0.75)


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


def _total(exact: Collector, figures: list[Figure], share: float, confidence: float) -> list[Finding]:
    low, step = lowest_ess(exact.by_step.rows())
    ess = exact.discrepancy.ess
    worst = min(v for v in (ess, low) if not math.isnan(v))
    figures.append(Figure(what="token ESS of pi/mu, raw and pooled", value=ess))
    figures.append(Figure(what="lowest token ESS of a step", value=low, where=f"step {step}"))
    return [_finding(worst < FAILURE_THRESHOLD, worst, share, figures, confidence, measured=False)]
