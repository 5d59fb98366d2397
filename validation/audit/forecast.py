"""When will importance weighting fail, and which sync period would have kept it.

From the lag by version gap.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.crossing import crossing_step, first_below
from theory.resync import FAILURE_THRESHOLD
from validation.audit.collect import Collector
from validation.audit.sums import describe

FEWEST_TOKENS = 200


def of(collected: Collector, /) -> dict[str, Any] | None:
    """Crossing step as measured and as the growth of the lag predicts it; None without lag by version gap."""
    table = [
        (gap, describe(sums))
        for gap, sums in collected.lag_by_gap.rows()
        if gap > 0 and sums[0] >= FEWEST_TOKENS
    ]
    by_step = [
        (k, describe(s)["ess_token"]) for k, s in collected.lag_by_step.rows() if s[0] >= FEWEST_TOKENS
    ]
    if not table or not by_step:
        return None
    gap = np.array([g for g, _ in table], dtype=float)
    spread = np.array([max(f["rms_d"] ** 2 - f["mean_d"] ** 2, 0.0) for _, f in table])
    rate = float((gap * np.sqrt(spread)).sum() / (gap * gap).sum())
    crossing = crossing_step(math.log(2), drift=rate)
    seen = first_below([e for _, e in by_step], steps=[float(k) for k, _ in by_step])
    return {
        "what": (
            "updates after a sync at which the token ESS of pi/pi_s falls below "
            f"{FAILURE_THRESHOLD:g}, Gaussian, spread growing linearly"
        ),
        "spread_per_update": float(f"{rate:.6g}"),
        "crossing_lag": float(f"{crossing:.4g}") if math.isfinite(crossing) else None,
        "resync_every": max(1, math.floor(crossing)) if math.isfinite(crossing) else None,
        "crossed_at_step": float(seen) if math.isfinite(seen) else None,
    }
