"""Faults from curves alone: what a metric's course says, and which metrics cannot say it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from validation.audit.finding import Figure, Finding
from validation.audit.profiles import Series, course
from validation.audit.readers.curves import MISMATCH, Curves, is_entropy, matches

LEVELS = {"nats": 0.105, "kl": 0.05, "probability": 0.01, "factor": 1.2}
"""Level of each kind of distance that no healthy precision keeps up: mean |d| (FP8: .08), KL (FP8.

.01 to .03), verl's
rule for probabilities (> .01), mean exp|d|"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One distance curve."""

    name: str
    measures: str
    step: np.ndarray
    value: np.ndarray


def detect(curves: Curves, /) -> list[Finding]:
    """Non-finite values, metrics that mislead, then the course of the distance between engine and trainer."""
    columns = curves.columns() if curves.rows else {}
    if not columns:
        return []
    found = [*_broken(curves), *_misleading(columns)]
    metrics = _metrics(columns)
    told = [f for f in (_tell(m, columns) for m in metrics) if f is not None]
    if told and not any("did not measure" in f.fault for f in found):
        # several distances tell one story: the surest of them speaks
        found.append(max(told, key=lambda f: f.confidence * f.explains))
    return found


def _metrics(columns: dict[str, np.ndarray]) -> list[Metric]:
    out = []
    for name, values in columns.items():
        kind = next((k for ending, k in MISMATCH.items() if matches(name, ending)), None)
        good = np.isfinite(values)
        if kind is None or good.sum() < 2:
            continue
        out.append(Metric(name=name, measures=kind, step=columns["step"][good], value=np.abs(values[good])))
    return out


def _broken(curves: Curves) -> list[Finding]:
    counts = curves.broken()
    if not counts:
        return []
    name = max(counts, key=lambda n: counts[n])
    return [
        Finding(
            kind="non-finite",
            fault=(
                f"{sum(counts.values())} logged values are NaN or infinite ({name} and {len(counts) - 1}"
                " more)"
                if len(counts) > 1
                else f"{counts[name]} logged values of {name} are NaN or infinite"
            ),
            confidence=0.9,
            explains=1.0,
            figures=tuple(Figure(what=n, value=c) for n, c in list(counts.items())[:6]),
            rules_out=("a mean that hides it: one broken token is enough for an infinite k3",),
            first="log tokens of that step (ids and log-probs of both sides) and audit those",
        )
    ]


def _find(columns: dict[str, np.ndarray], ending: str) -> tuple[str, np.ndarray] | None:
    for name, values in columns.items():
        good = values[np.isfinite(values)]
        if matches(name, ending) and good.size:
            return name, good
    return None


_ESS_NAMES = (
    "rollout_is_eff_sample_size",
    "rollout_correction/ess",
    "ess_ratio",
    "rl/ess",
    "staleness/ess_ratio",
)


def _misleading(columns: dict[str, np.ndarray]) -> list[Finding]:
    looks: tuple[Callable[[dict[str, np.ndarray]], Finding | None], ...] = (
        _clamped,
        _above_one,
        _zero,
        _sequence_sum,
        _after_truncation,
    )
    return [f for f in (look(columns) for look in looks) if f is not None]


def _clamped(columns: dict[str, np.ndarray]) -> Finding | None:
    """Detect: an ESS of clamped weights beside a chi-square that says it is gone."""
    chi2 = _find(columns, "chi2_token")
    for ending in _ESS_NAMES:
        ess = _find(columns, ending)
        if ess is None or chi2 is None:
            continue
        logged, raw = float(np.median(ess[1])), 1 / (1 + max(float(np.median(chi2[1])), 0.0))
        if logged > 0.6 and raw < 0.5 and logged - raw > 0.2:
            return Finding(
                kind="misleading-metrics",
                fault=(
                    f"{ess[0]} reads {logged:.3f} on clamped weights; from {chi2[0]} the raw ESS is {raw:.3g}"
                ),
                confidence=0.93,
                explains=1.0,
                figures=(
                    Figure(what=ess[0], value=logged),
                    Figure(what=chi2[0], value=float(np.median(chi2[1]))),
                    Figure(what="raw token ESS, 1/(1 + chi2)", value=raw),
                ),
                rules_out=("a healthy ratio: then both agree",),
                first="decide on 1/(1 + chi2_token), or log the raw ESS from pooled sums",
            )
    return None


def _above_one(columns: dict[str, np.ndarray]) -> Finding | None:
    for ending in _ESS_NAMES:
        ess = _find(columns, ending)
        if ess is not None and float(ess[1].max()) > 1.001:
            return Finding(
                kind="misleading-metrics",
                fault=(
                    f"{ess[0]} reaches {ess[1].max():.3g}: an ESS share cannot exceed 1, its denominator is"
                    " wrong"
                ),
                confidence=0.95,
                explains=1.0,
                figures=(Figure(what=ess[0], value=float(ess[1].max())),),
                first=(
                    "divide by the number of tokens that were summed; pool sums over micro-batches, do not"
                    " average"
                ),
            )
    return None


def _zero(columns: dict[str, np.ndarray]) -> Finding | None:
    """Distances that are 0 at every step were not measured."""
    zero = [
        m for m in _metrics(columns) if m.measures != "factor" and (m.value == 0).all() and len(m.value) >= 3
    ]
    ones = [
        m for m in _metrics(columns) if m.measures == "factor" and (m.value == 1).all() and len(m.value) >= 3
    ]
    if not zero and not ones:
        return None
    name = (zero or ones)[0].name
    return Finding(
        kind="misleading-metrics",
        fault=(
            f"{name} is exactly 0 at every step: the log did not measure it (old log-probs are a copy of the"
            " engine's)"
        ),
        confidence=0.85,
        explains=1.0,
        figures=(Figure(what=f"{name}, steps at 0", value=len((zero or ones)[0].value)),),
        rules_out=("a perfect engine, unless it is built to agree to the bit",),
        first="switch bypass mode off, so that the trainer's own log-probs are compared",
    )


def _sequence_sum(columns: dict[str, np.ndarray]) -> Finding | None:
    """Detect: a ratio of whole responses far from 1 while tokens agree."""
    ratio = _find(columns, "importance_sampling_ratio/mean") or _find(columns, "rollout_is_seq_mean")
    if ratio is None:
        return None
    size = _find(columns, "sampling_logp_difference/mean")
    kl = _find(columns, "rollout_corr/kl")
    small = (size is not None and float(np.median(size[1])) < 0.09) or (
        size is None and kl is not None and abs(float(np.median(kl[1]))) < 0.02
    )
    value = float(np.median(ratio[1]))
    if not small or 0.85 < value < 1.15:
        return None
    figures = [Figure(what=ratio[0], value=value)]
    if size is not None:
        figures.append(Figure(what=size[0], value=float(np.median(size[1]))))
    return Finding(
        kind="misleading-metrics",
        fault=(
            f"{ratio[0]} = {value:.3f} is the product over a whole response, clipped: it falls with the"
            " length while tokens agree"
        ),
        confidence=0.85,
        explains=1.0,
        figures=tuple(figures),
        rules_out=("a token-level mismatch: the mean |d| per token is ordinary",),
        first="log the ratio per token (or its geometric mean over a response) and before the clip",
    )


def _after_truncation(columns: dict[str, np.ndarray]) -> Finding | None:
    """Detect: a largest weight that equals the clip at every step."""
    top = _find(columns, "rollout_is_max") or _find(columns, "importance_sampling_ratio/max")
    high = _find(columns, "rollout_is_ratio_fraction_high")
    if top is None or len(top[1]) < 5:
        return None
    capped = float((np.abs(top[1] - np.median(top[1])) < 1e-6).mean())
    if capped < 0.9 or float(np.median(top[1])) < 1.2 or (high is not None and float(high[1].max()) > 0):
        return None
    return Finding(
        kind="misleading-metrics",
        fault=(
            f"{top[0]} is {np.median(top[1]):.4g} at {capped:.0%} of the steps: it is taken after truncation,"
            " so the tail is not in any logged number"
        ),
        confidence=0.8,
        explains=0.8,
        figures=(Figure(what=top[0], value=float(np.median(top[1]))),),
        first="log maximum, chi2 and ESS of the raw weights",
    )


# -- the course of a distance
# ------------------------------------------------------------------------------------------


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
    teeth = _teeth(size, noise)
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


def _teeth(size: np.ndarray, noise: float) -> int:
    """Sudden falls by more than half of the range: syncs."""
    spread = float(np.quantile(size, 0.95) - np.quantile(size, 0.05))
    if spread <= 6 * noise * 0.3 or float(np.quantile(size, 0.95)) < 1.8 * max(
        float(np.quantile(size, 0.05)), 1e-9
    ):
        return 0
    return int((np.diff(size) < -0.5 * spread).sum())


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
    return {k: {n: v for n, v in d.items() if math.isfinite(v)} for k, d in out.items()}
