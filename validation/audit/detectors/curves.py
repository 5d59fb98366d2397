"""Faults from curves alone: what a metric's course says, and which metrics cannot say it."""

from __future__ import annotations

import math

import numpy as np

from validation.audit.course import Series, course
from validation.audit.detectors import curve_laws
from validation.audit.detectors.curve_metrics import Metric, distances, misleading
from validation.audit.finding import Figure, Finding
from validation.audit.readers.curves import LARGEST, Curves, is_entropy, matches

LEVELS = {"nats": 0.105, "kl": 0.05, "probability": 0.01, "factor": 1.2}
"""Level of each kind of distance that no healthy precision keeps up: mean |d| (FP8: .08), KL (FP8.

.01 to .03), verl's
rule for probabilities (> .01), mean exp|d|"""


def detect(curves: Curves, /) -> list[Finding]:
    """Non-finite values, metrics that mislead, then the course of the distance between engine and trainer."""
    columns = curves.columns() if curves.rows else {}
    if not columns:
        return []
    laws = curve_laws.detect(columns)
    found = [*_broken(curves), *laws, *([] if laws else misleading(columns))]
    metrics = distances(columns)
    told = [f for f in (_tell(m, columns) for m in metrics) if f is not None]
    other = [f for m in metrics if (f := _other_tokens(m)) is not None]
    unmeasured = any("did not measure" in f.fault for f in found)
    # a wrong law or wrong tokens are in every distance
    if told and not unmeasured and all(f.kind in ("non-finite", "misleading-metrics") for f in found):
        # several distances tell one story: the surest of them speaks
        found.append(max(told, key=lambda f: f.confidence * f.explains))
        found += other[:1]
    return found


def _broken(curves: Curves) -> list[Finding]:
    counts = curves.broken()
    if not counts:
        return []
    name = max(counts, key=lambda n: counts[n])
    words = f"NaN, infinite or beyond {LARGEST:g}"
    return [
        Finding(
            kind="non-finite",
            fault=(
                f"{sum(counts.values())} logged values are {words} ({name} and {len(counts) - 1} more)"
                if len(counts) > 1
                else f"{counts[name]} logged values of {name} are {words}"
            ),
            confidence=0.9,
            explains=1.0,
            figures=tuple(Figure(what=n, value=c) for n, c in list(counts.items())[:6]),
            rules_out=("a mean that hides it: one broken token is enough for an infinite k3",),
            first="log tokens of that step (ids and log-probs of both sides) and audit those",
        )
    ]


def _tell(metric: Metric, columns: dict[str, np.ndarray]) -> Finding | None:
    """Detect: what the course of one distance says."""
    value, step = metric.value, metric.step
    if (value == 0).all():
        return None
    size = np.sqrt(2 * value) if metric.measures == "kl" else value
    if metric.measures == "factor":
        size = np.maximum(value - 1, 1e-9)
    noise = float(np.median(np.abs(np.diff(size)))) / 1.35 if len(size) > 2 else 0.0
    wander = np.maximum(noise, 0.02 * size)
    series = Series(step, size, wander, np.ones_like(step))
    shape = course(series, least_ratio=1.3)
    figures = [
        Figure(what=f"{metric.name}, first quarter", value=float(value[: max(len(value) // 4, 1)].mean())),
        Figure(what=f"{metric.name}, last quarter", value=float(value[-max(len(value) // 4, 1) :].mean())),
        Figure(what="high over low level, in nats of d", value=shape.ratio),
    ]
    teeth = _teeth(size)
    if teeth >= 3:
        return _lag_teeth(metric, teeth, figures)
    if shape.shape == "onset" and shape.ratio > 2.2:
        return _onset(metric, shape.at, shape.ratio, figures)
    if shape.shape in ("drift", "onset") and shape.ratio > 1.35:
        return _growth(metric, columns, figures)
    level = float(np.median(value))
    if level > LEVELS[metric.measures] and len(value) >= 3:
        return _level(metric, level, figures)
    return None


def _teeth(size: np.ndarray) -> int:
    """Count sudden falls by more than half of the range after steady growth: syncs."""
    low, high = float(np.quantile(size, 0.05)), float(np.quantile(size, 0.95))
    change = np.diff(size)
    if change.size < 8 or high < 1.8 * max(low, 1e-9):
        return 0
    # noise rises and falls equally often; a sawtooth rises nearly always
    rises = int((change > 0).sum())
    if rises - change.size / 2 < 1.25 * math.sqrt(change.size):
        return 0
    return int((change < -0.5 * (high - low)).sum())


def _lag_teeth(metric: Metric, teeth: int, figures: list[Figure]) -> Finding:
    return Finding(
        kind="lag",
        fault=(
            f"healthy policy lag by its shape: {metric.name} grows and falls back {teeth} times, as between"
            " syncs"
        ),
        confidence=0.7,
        explains=0.8,
        figures=(Figure(what="falls by more than half of the range", value=teeth), *figures),
        rules_out=("numerics: they do not reset",),
        first="log the trainer's log-probs at the sampler's weights to measure the lag itself",
    )


def _onset(metric: Metric, at: float, ratio: float, figures: list[Figure]) -> Finding:
    return Finding(
        kind="weights-caches-versions",
        fault=(
            f"{metric.name} jumps at step {at:g} by a factor {ratio:.3g} (in nats of d) and stays: the engine"
            " does not hold the weights it claims from there on, or holds them rounded"
        ),
        confidence=0.75,
        explains=0.9,
        figures=tuple(figures),
        rules_out=("lag: it grows step by step", "precision: it does not set in at one step"),
        first=(
            "look at the sync before that step: precision of what was pushed, missing tensors, sleep and wake"
        ),
    )


def _growth(metric: Metric, columns: dict[str, np.ndarray], figures: list[Figure]) -> Finding:
    """Detect: a steady growth: numerics that drift, a sampler that is pinned, or lag that never resets."""
    value = metric.value
    quarter = max(len(value) // 10, 1)
    first, last = float(value[:quarter].mean()), float(value[-quarter:].mean())
    factor = last / max(first, 1e-12)
    large = factor > (8 if metric.measures == "kl" else 4)
    versions = next((c for n, c in columns.items() if matches(n, "current_param_version")), None)
    if versions is None:
        versions = next(
            (c for n, c in columns.items() if matches(n, "param_version") or matches(n, "weight_version")),
            None,
        )
    synced = versions is not None and len(np.unique(versions[np.isfinite(versions)])) > 2
    entropy = next((c for n, c in columns.items() if is_entropy(n)), None)
    collapsing = False
    if entropy is not None:
        good = entropy[np.isfinite(entropy)]
        part = max(len(good) // 5, 1)
        collapsing = bool(good.size > 4 and good[-part:].mean() < 0.6 * good[:part].mean())
    figures = [*figures, Figure(what="last tenth over first tenth", value=factor)]
    off_policy = "kl_sample_train" in metric.name  # tinker's: sampler against a trainer that is steps ahead
    held = synced or "rollout_corr" in metric.name  # verl's: recomputed at the start of each batch
    if large and held and not collapsing:
        return Finding(
            kind="weights-caches-versions",
            fault=(
                f"{metric.name} grows {factor:.3g}-fold over the run and ignores the recorded syncs: the"
                " sampler appears pinned to old weights"
            ),
            confidence=0.7 if synced else 0.5,
            explains=0.9,
            figures=tuple(figures),
            rules_out=("lag by version: the version moves on while the distance does not reset",),
            first="compare a checksum of the engine's weights before and after a sync",
        )
    if large and (off_policy or not collapsing):
        return Finding(
            kind="lag",
            fault=(
                f"{metric.name} grows {factor:.3g}-fold and never falls back: lag without a sync, or a sync"
                " that does not arrive (curves cannot tell these apart)"
            ),
            confidence=0.5,
            explains=0.8,
            figures=tuple(figures),
            first=(
                "log versions of sampler and trainer with each sample, and the trainer's log-probs at the"
                " sampler's weights"
            ),
        )
    return Finding(
        kind="engine-numerics",
        fault=f"{metric.name} grows {factor:.3g}-fold over the run"
        + (" while the entropy collapses" if collapsing else "")
        + ": if the run syncs each step, numerics drift with the policy or a cache is stale",
        confidence=0.65,
        explains=0.8,
        figures=tuple(figures),
        rules_out=("constant numerics: the floor of the first step does not hold",),
        first=(
            "compare with the engine in higher precision on the last checkpoint; check versions to"
            " exclude lag"
        ),
    )


def _level(metric: Metric, level: float, figures: list[Figure]) -> Finding:
    return Finding(
        kind="engine-numerics",
        fault=(
            f"{metric.name} is {level:.3g} from the first step on: above what healthy precision gives "
            f"({LEVELS[metric.measures]:g})"
        ),
        confidence=0.6,
        explains=0.8,
        figures=tuple(figures),
        rules_out=("growing lag: the level is there from the start",),
        first="score one batch with the trainer's own forward pass in the engine's precision",
    )


OTHER_TOKENS = {"kl": 10.0, "nats": 1.5}
"""Median from which other tokens are an explanation: a shift by one gives 2.5 nats, and a far larger k3"""


def _other_tokens(metric: Metric) -> Finding | None:
    """Find a distance so large from the start that the two sides may not be of the same tokens."""
    value = float(np.median(metric.value))
    if not value > OTHER_TOKENS.get(metric.measures, math.inf):
        return None
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"{metric.name} is {value:.3g}: nats apart at most steps, as log-probs of other tokens are"
            " (re-tokenised ids, a shift, lists of other lengths)"
        ),
        # a huge k3 comes from a few tokens the trainer finds absurd; a broken engine is off everywhere
        confidence=0.65 if metric.measures == "kl" else 0.45,
        explains=0.85,
        figures=(Figure(what=f"{metric.name}, median", value=value),),
        rules_out=("lag: it starts from nothing",),
        first="compare the engine's token ids with the trainer's, and the lengths of both lists",
    )


def summary(curves: Curves, /) -> dict[str, dict[str, float]]:
    """First, last and extreme value of each metric, for the numbers of the report."""
    out = {}
    for name, values in (curves.columns() if curves.rows else {}).items():
        good = values[np.isfinite(values)]
        if name == "step" or not good.size:
            continue
        out[name] = {
            "steps": int(good.size),
            "first": float(good[0]),
            "last": float(good[-1]),
            "smallest": float(good.min()),
            "largest": float(good.max()),
            "median": float(np.median(good)),
        }
    return {k: {n: float(f"{v:.6g}") for n, v in d.items() if math.isfinite(v)} for k, d in out.items()}
