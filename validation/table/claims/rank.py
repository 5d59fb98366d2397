"""Claim ``rank``: the off-support share ranks the accuracy drop better than the deviation does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.table.claims.bench import Bench
from validation.table.ranks import Correlation, as_estimate, correlations

SHARE, SHARE_MARGIN = 0.80, 0.30
"""Article 2: .80. A coefficient of .5 still orders; the articles' table has other cells than ours"""
SEED = 0
UNIT = "rank correlation"


def checks(bench: Bench, /) -> list[Check]:
    """Judge the coefficient itself, and its distance from that of the deviation."""
    points = bench.points
    claim = CLAIMS["rank"]
    found, draws = correlations(points, seed=SEED)
    share, deviation = found["off-support"], found["deviation"]
    shuffled = np.random.default_rng(SEED).permutation(points.measures["off-support"])
    chance, chance_draws = correlations(
        dataclasses.replace(points, measures=points.measures | {"off-support": shuffled}), seed=SEED
    )
    note = (
        f"{len(points.drop)} checkpoints of {len(np.unique(points.run))} runs, whole runs resampled; not "
        f"measured in {share.left_out} (share), {deviation.left_out} (deviation); "
        f"off-support {share.value:.2f} [{share.low:.2f}, {share.high:.2f}], deviation {deviation.value:.2f} "
        f"[{deviation.low:.2f}, {deviation.high:.2f}]"
    )
    return [
        Check(
            claim=claim.id,
            reading="off-support share against accuracy drop",
            form="at least",
            predicted=Estimate(value=SHARE, unit=UNIT),
            margin=SHARE_MARGIN,
            measured=as_estimate(share),
            control=Control(what="share shuffled", measured=as_estimate(chance["off-support"])),
            source=claim.article,
            note=note,
        ),
        Check(
            claim=claim.id,
            reading="coefficient of the off-support share minus that of the deviation",
            form="at least",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=0.0,
            measured=_gap(found, draws),
            control=Control(what="share shuffled", measured=_gap(chance, chance_draws)),
            source=claim.article,
            note=note,
        ),
    ]


def _gap(found: dict[str, Correlation], draws: np.ndarray) -> Estimate:
    """Coefficient of the share minus that of the deviation, with the error of the difference itself."""
    names = list(found)
    gaps = draws[:, names.index("off-support")] - draws[:, names.index("deviation")]
    value = found["off-support"].value - found["deviation"].value
    stderr = math.nan if np.isnan(gaps).all() else float(np.nanstd(gaps))  # one of the two was not measured
    return Estimate(value=value, stderr=stderr, unit=UNIT)
