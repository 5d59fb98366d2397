"""When will importance weighting fail, and which sync would have kept it: from the lag by version gap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.crossing import crossing_step, first_below
from theory.forecast import forecast
from theory.resync import FAILURE_THRESHOLD
from validation.audit.collect import Collector
from validation.audit.sums import describe

FEWEST_TOKENS = 200


def of(collected: Collector, /) -> dict[str, Any] | None:
    """Crossing as measured and as the growth of the lag predicts it; None without lag by version gap.

    Gaps are pooled over the steps, so the forecast speaks of a typical sync and not of one step of the run.
    """
    table = [
        (gap, describe(sums))
        for gap, sums in collected.lag_by_gap.rows()
        if gap > 0 and sums[0] >= FEWEST_TOKENS
    ]
    by_step = [
        (k, describe(s)["ess_token"]) for k, s in collected.lag_by_step.rows() if s[0] >= FEWEST_TOKENS
    ]
    if not table or not by_step or table[-1][1]["rms_d"] == 0:
        return None
    gap = np.array([g for g, _ in table], dtype=float)
    spread = np.array([max(f["rms_d"] ** 2 - f["mean_d"] ** 2, 0.0) for _, f in table])
    rate = float((gap * np.sqrt(spread)).sum() / (gap * gap).sum())
    told = forecast([f["ess_token"] for _, f in table], lag=gap)
    seen = first_below([e for _, e in by_step], steps=[float(k) for k, _ in by_step])
    return {
        "what": f"updates after a sync at which the token ESS of pi/pi_s falls below {FAILURE_THRESHOLD:g}",
        "crossing_lag": _finite(told.step),
        "low": _finite(told.low),
        "high": _finite(told.high),
        "level": told.level,
        "gaussian_crossing_lag": _finite(crossing_step(math.log(2), drift=rate)),
        "spread_per_update": _finite(rate),
        "resync_every": max(1, math.floor(told.low)) if math.isfinite(told.low) else None,
        "crossed_at_step": _finite(seen),
    }


def _finite(value: float) -> float | None:
    """Return a number for the report; None beyond the horizon or where nothing was measured."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
