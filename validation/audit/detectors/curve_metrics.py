"""Metrics that hide what they should show, told from curves: clamped, summed over a row, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from validation.audit.finding import Figure, Finding
from validation.audit.readers.curves import MISMATCH, matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One distance curve."""

    name: str
    measures: str
    step: np.ndarray
    value: np.ndarray


def distances(columns: dict[str, np.ndarray]) -> list[Metric]:
    """Pick the curves that measure how far engine and trainer are apart."""
    out = []
    for name, values in columns.items():
        kind = next((k for ending, k in MISMATCH.items() if matches(name, ending)), None)
        good = np.isfinite(values)
        if kind is None or good.sum() < 2:
            continue
        out.append(Metric(name=name, measures=kind, step=columns["step"][good], value=np.abs(values[good])))
    return out


_ESS_NAMES = (
    "rollout_is_eff_sample_size",
    "rollout_correction/ess",
    "ess_ratio",
    "rl/ess",
    "staleness/ess_ratio",
)


ABOVE_ONE = 1.05
"""An ESS share that is plainly above 1; less is a logger's smoothing"""


def misleading(columns: dict[str, np.ndarray]) -> list[Finding]:
    """Run each look; several may fire, a metric each."""
    looks: tuple[Callable[[dict[str, np.ndarray]], Finding | None], ...] = (
        _clamped,
        _above_one,
        _zero,
        _sequence_sum,
        _after_truncation,
    )
    return [f for f in (look(columns) for look in looks) if f is not None]


def _named(columns: dict[str, np.ndarray], ending: str) -> tuple[str, np.ndarray] | None:
    for name, values in columns.items():
        good = values[np.isfinite(values)]
        if matches(name, ending) and good.size:
            return name, good
    return None


def _clamped(columns: dict[str, np.ndarray]) -> Finding | None:
    """Detect: an ESS of clamped weights beside a chi-square that says it is gone."""
    chi2 = _named(columns, "chi2_token")
    for ending in _ESS_NAMES:
        ess = _named(columns, ending)
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
        ess = _named(columns, ending)
        if ess is not None and float(ess[1].max()) > ABOVE_ONE:
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
        m for m in distances(columns) if m.measures != "factor" and (m.value == 0).all() and len(m.value) >= 3
    ]
    ones = [
        m for m in distances(columns) if m.measures == "factor" and (m.value == 1).all() and len(m.value) >= 3
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
    ratio = _named(columns, "importance_sampling_ratio/mean") or _named(columns, "rollout_is_seq_mean")
    if ratio is None:
        return None
    size = _named(columns, "sampling_logp_difference/mean")
    kl = _named(columns, "rollout_corr/kl")
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
    top = _named(columns, "rollout_is_max") or _named(columns, "importance_sampling_ratio/max")
    high = _named(columns, "rollout_is_ratio_fraction_high")
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
