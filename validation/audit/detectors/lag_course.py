"""Lag that ignores the recorded versions: a sampler that never moved, rows that span a sync.

Lag may depend on the updates since a sync and on nothing else: not on the steps since the start, not on the
place in a row.
"""

from __future__ import annotations

import numpy as np

from validation.audit.block import UNKNOWN
from validation.audit.evidence import Evidence, clustered_mean
from validation.audit.finding import Figure, Finding
from validation.audit.profiles import along, changes

FEWEST = 16
"""Tokens of a step and gap whose size is compared with another's"""


def detect(evidence: Evidence, /) -> list[Finding]:
    """Look for a sampler that stays where it was, by the lag's course or its direction; then within rows."""
    for look in (_pinned, _pinned_claims):
        finding = look(evidence)
        if finding is not None:
            evidence.live[:] = False
            return [finding]
    finding = _lag_changes(evidence)
    return [] if finding is None else [finding]


def _pinned(evidence: Evidence) -> Finding | None:
    """Lag that grows with the step and not with the version gap: the sampler stays where it was."""
    if evidence.has_lag:
        size, step, gap, row = np.abs(evidence.g), evidence.g_step, evidence.g_behind, evidence.g_row
    elif evidence.reference == "logpi" or evidence.lag_free == "assumed":
        size, step, gap, row = np.abs(evidence.d), evidence.step, evidence.behind, evidence.row
    else:
        return None
    known = (gap != UNKNOWN) & (gap >= -1) & (step != UNKNOWN)
    if known.sum() < 200 or len(np.unique(gap[known])) < 2 or len(np.unique(step[known])) < 4:
        return None
    size, step, gap, row = size[known] ** 2, step[known], gap[known], row[known]
    cell, index = np.unique(np.stack([step, gap]), axis=1, return_inverse=True)
    index = index.ravel()
    count = np.bincount(index)
    mean = np.bincount(index, weights=size) / count
    large = count >= FEWEST
    if large.sum() < 5:
        return None
    level = np.sqrt(mean[large])
    since, behind = (cell[0] - cell[0].min())[large].astype(float), cell[1][large].astype(float)
    by_step, by_gap = correlation(since, level), correlation(behind, level)
    # cells of the smallest gap: there the lag is what a sync has left
    zero = np.flatnonzero(behind == behind.min())
    zero = zero[np.argsort(since[zero], kind="stable")]
    third = max(len(zero) // 3, 1)
    if len(zero) < 2:
        return None
    early, late = float(level[zero[:third]].mean()), float(level[zero[-third:]].mean())
    kept = _kept_at_syncs(step, gap, size)
    if by_step < 0.8 or by_step < by_gap + 0.3 or late < 3 * max(early, 1e-6) or late < 0.02 or kept < 0.8:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=(
            "lag does not reset at the recorded syncs: it grows with the steps since the start, not with the"
            " version gap; the sampler appears pinned to its first weights"
        ),
        confidence=0.92,
        explains=0.95,
        figures=(
            Figure(what="correlation of the lag's size with the step", value=by_step),
            Figure(what="correlation with the version gap", value=by_gap),
            Figure(what="rms lag after a recorded sync over before it, median", value=kept),
            Figure(what="rms lag at the smallest gap, first third of such steps, nats", value=early),
            Figure(what="rms lag at the smallest gap, last third, nats", value=late),
        ),
        rules_out=("staleness as recorded: tokens of the smallest version gap lag as well",),
        first=(
            "compare a checksum of the engine's weights before and after a sync (LoRA tensors, tied heads"
            " included)"
        ),
    )


def _kept_at_syncs(step: np.ndarray, gap: np.ndarray, square: np.ndarray) -> float:
    """Size of the lag where little has passed since a recorded sync over that where much has, median.

    Compared are neighbouring steps with a sync between them, else rows of one step; a sync that arrives takes
    most of the lag away, however fast the policy moves. 0 where the log holds neither.
    """
    _, index = np.unique(step, return_inverse=True)
    count = np.bincount(index)
    level = np.sqrt(np.bincount(index, weights=square) / count)
    behind = np.bincount(index, weights=gap) / count
    synced = np.flatnonzero(np.diff(behind) < -0.5)
    if len(synced):
        return float(np.median(level[synced + 1] / np.maximum(level[synced], 1e-9)))
    ratios = []
    for k in range(len(count)):
        here, size = gap[index == k], square[index == k]
        low, high = here == here.min(), here == here.max()
        if here.max() >= 2 * max(here.min(), 1) and low.sum() >= FEWEST and high.sum() >= FEWEST:
            ratios.append(float(np.sqrt(size[low].mean() / max(float(size[high].mean()), 1e-18))))
    return float(np.median(ratios)) if ratios else 0.0


def _pinned_claims(evidence: Evidence) -> Finding | None:
    """Discrepancy at the claimed weights runs along the lag.

    The engine is further back than its version says.
    """
    if not evidence.has_lag or evidence.lag_free != "yes" or evidence.reference != "logpi_s":
        return None
    both = np.intersect1d(evidence.at, evidence.lag_at, assume_unique=True)
    if len(both) < 300:
        return None
    d = evidence.d[np.searchsorted(evidence.at, both)]
    at = np.searchsorted(evidence.lag_at, both)
    g, gap, row = evidence.g[at], evidence.g_gap[at], evidence.g_row[at]
    moving = (np.abs(g) > 1e-9) & ((gap > 0) | (gap < 0))
    if moving.sum() < 300:
        return None
    d, g, row = d[moving], g[moving], row[moving]
    product = clustered_mean((d - d.mean()) * (g - g.mean()), row)
    norm = float(d.std() * g.std())
    corr = product.value / norm if norm > 0 else 0.0
    # trainer noise at pi_s enters d and g with opposite signs; it can only lower the correlation
    if corr < 0.3 or product.z < 6 or float(np.sqrt(np.mean(d * d))) < 0.02:
        return None
    return Finding(
        kind="weights-caches-versions",
        fault=(
            "what the engine differs by at its claimed weights points along the lag (correlation"
            f" {corr:.2f}): it holds older weights than its version says, so syncs were not delivered"
        ),
        confidence=0.88,
        explains=0.9,
        figures=(
            Figure(what="correlation of d with the lag", value=corr, stderr=abs(corr / product.z)),
            Figure(what="rms d at the claimed weights, nats", value=float(np.sqrt(np.mean(d * d)))),
            Figure(what="rms lag since then, nats", value=float(np.sqrt(np.mean(g * g)))),
        ),
        rules_out=("numerics: rounding does not know in which direction the trainer moves",),
        first="compare a checksum of the engine's weights before and after a sync",
    )


def _lag_changes(evidence: Evidence) -> Finding | None:
    """Detect: the lag itself changes within rows although each claims one version."""
    if not evidence.has_lag:
        return None
    size, row = np.abs(evidence.g), evidence.g_row
    known = np.flatnonzero(size > 0)
    if len(known) < 200 or float(np.sqrt(np.mean(size**2))) < 1e-4:
        return None
    versions = evidence.sample.tokens["version"][evidence.lag_at]
    if (np.diff(versions)[np.diff(row) == 0] != 0).any():
        return None  # spans are recorded: a change is what they say
    starts = np.flatnonzero(np.append(True, np.diff(row) != 0))
    length = np.repeat(np.diff(np.append(starts, len(row))), np.diff(np.append(starts, len(row))))
    place = np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))
    profile = along(size / float(np.median(size[known])), place, length, row)
    if profile is None or profile.z < 6:
        return None
    at_one_place = profile.stepwise and not 0.7 < profile.growth < 1.4
    split = changes(size / float(np.median(size[known])), row)
    own_places = split is not None and split.share > 0.3 and split.sudden and not 0.4 < profile.growth < 2.5
    if not (at_one_place or own_places):
        return None
    ratio = max(profile.growth, 1 / profile.growth)
    return spanning(split.share if split is not None and own_places else 1.0, ratio, "lag", 0.8)


def spanning(share: float, ratio: float, what: str, explains: float) -> Finding:
    """Report rows that two sets of weights have sampled under one version."""
    return Finding(
        kind="weights-caches-versions",
        fault=(
            f"a change point inside {share:.0%} of the rows: the {what} is {ratio:.1f} times larger on one"
            " side of it; rows span a weight sync but claim one version"
        ),
        confidence=0.8,
        explains=explains,
        figures=(
            Figure(what="share of rows with a change point", value=share),
            Figure(what=f"ratio of the {what} across it", value=ratio),
        ),
        rules_out=("context errors and long-range numerics: they fade or grow gradually",),
        first="record a version per token (spans), or abort and regenerate what is in flight at a sync",
    )


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Correlate two columns; 0 where one does not vary."""
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0
