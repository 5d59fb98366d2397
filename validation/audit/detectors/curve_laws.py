"""What curves tell of the law behind them: another law reported, other tokens, one impossible token.

Means over tokens obey the identities that tokens do: under any numerics and lag the mean of pi/mu is 1, and
that of log mu - log pi is a KL divergence, which is not negative.
"""

from __future__ import annotations

import math

import numpy as np

from validation.audit.detectors.non_finite import IMPOSSIBLE
from validation.audit.finding import Figure, Finding
from validation.audit.readers.curves import matches

SIGNED = ("rollout_corr/kl", "rollout_correction/kl", "optim/kl_sample_train_v1", "vllm_kl", "mismatch/kl")
"""Means of log mu - log pi with their sign"""
RATIOS = ("rollout_corr/rollout_is_mean", "importance_sampling_ratio/mean", "sampling_importance_ratio")
SIZES = (
    "sampling/sampling_logp_difference/mean",
    "policy/rollout_train_logprobs_abs_diff_mean",
    "train_rollout_logprob_abs_diff",
    "debug/vllm_vs_local_logprob_diff_mean",
    "rollout_corr/log_ppl_abs_diff",
)
SQUARES = ("k3_kl", "kl_sample_train_v2", "gen_kl_error", "mismatch_kl", "mismatch_kl/all/mean")
"""Half of the mean square of d, nearly"""
TOPS = {
    "rollout_is_max": "ratio",
    "importance_sampling_ratio/max": "ratio",
    "sampling_logp_difference/max": "nats",
    "rollout_train_logprobs_abs_diff_max": "nats",
    "vllm_vs_local_logprob_diff_max": "nats",
    "log_ppl_diff_max": "nats",
    "mismatch_kl/all/max": "ratio",
}
"""Largest ratio (k3 of a huge ratio is that ratio) or largest |d| of a step"""
SIGMAS = 5.0
UNRELATED = 0.2
"""Correlation of the two sides' probabilities below which they are not of the same tokens"""

Columns = dict[str, np.ndarray]


def detect(columns: Columns, /) -> list[Finding]:
    """Run each look."""
    looks = (_unrelated, _one_token, _negative_kl, _mean_ratio)
    return [f for f in (look(columns) for look in looks) if f is not None]


def _named(columns: Columns, endings: tuple[str, ...]) -> tuple[str, np.ndarray] | None:
    for ending in endings:
        for name, values in columns.items():
            good = values[np.isfinite(values)]
            if matches(name, ending) and good.size >= 3:
                return name, good
    return None


def _size(columns: Columns) -> float:
    """Root mean square of d that the distances tell, in nats; NaN if none is logged."""
    square = _named(columns, SQUARES)
    if square is not None:
        return math.sqrt(2 * max(float(np.median(square[1])), 0.0))
    mean = _named(columns, SIZES)
    return 1.6 * float(np.median(mean[1])) if mean is not None else math.nan


def _unrelated(columns: Columns) -> Finding | None:
    found = _named(columns, ("rollout_actor_probs_pearson_corr",))
    if found is None or not abs(float(np.median(found[1]))) < UNRELATED:
        return None
    value = float(np.median(found[1]))
    return Finding(
        kind="alignment-tokens-masks",
        fault=(
            f"{found[0]} is {value:.2f} at most steps: the two sides are not log-probs of the same tokens"
            " (shifted, re-tokenised or mispaired)"
        ),
        confidence=0.75,
        explains=1.0,
        figures=(Figure(what=found[0] + ", median", value=value),),
        rules_out=("precision: FP8 keeps this correlation above .85",),
        first="log ids and both log-probs of a few responses and audit those: a shift shows at once",
    )


def _one_token(columns: Columns) -> Finding | None:
    """Find a largest value beyond anything arithmetic gives, at a few steps only."""
    for name, values in columns.items():
        unit = next((u for ending, u in TOPS.items() if matches(name, ending)), None)
        good = np.isfinite(values)
        if unit is None or good.sum() < 5:
            continue
        value, step = np.abs(values[good]), columns["step"][good]
        nats = np.log(np.maximum(value, 1.0)) if unit == "ratio" else value
        out = nats > IMPOSSIBLE
        if not out.any() or out.mean() > 0.2 or float(np.median(nats)) > IMPOSSIBLE / 2:
            continue
        return Finding(
            kind="non-finite",
            fault=(
                f"{name} reaches {value.max():.3g} at {int(out.sum())} of {len(value)} steps and is"
                f" {np.median(value):.3g} at the others: single tokens with impossible ratios decide all"
                " weights"
            ),
            confidence=0.75,
            explains=0.9,
            figures=(
                Figure(what=name, value=float(value.max()), where=f"step {step[int(np.argmax(value))]:g}"),
                Figure(what=f"{name}, median", value=float(np.median(value))),
            ),
            rules_out=("numerics and lag: both move all tokens, not one in a step",),
            first="log the tokens of that step with both log-probs; do not let a clamp hide them",
        )
    return None


def _negative_kl(columns: Columns) -> Finding | None:
    found = _named(columns, SIGNED)
    if found is None:
        return None
    name, values = found
    mean, rms = float(np.median(values)), _size(columns)
    error = float(values.std()) / math.sqrt(len(values))
    # of noise that is no change of law the mean is 0; of a law drawn from pi it is minus half the square
    if mean > -0.02 or (values < 0).mean() < 0.9 or -mean < SIGMAS * error:
        return None
    if not math.isnan(rms) and -mean < 0.15 * rms**2:
        return None
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            f"{name} is {mean:.3g} on average: a mean of log mu - log pi over tokens drawn from mu is a KL"
            " divergence and cannot be negative; the reported log-probs are not those sampled from"
        ),
        confidence=0.75,
        explains=0.95,
        figures=(Figure(what=name + ", median", value=mean, stderr=error),),
        rules_out=("numerics and lag: both leave it at 0 or above",),
        first=(
            "set logprobs_mode = processed_logprobs in the engine, and score the trainer at the same"
            " temperature"
        ),
    )


def _mean_ratio(columns: Columns) -> Finding | None:
    """Find a mean ratio away from 1 that no clip makes: the differences are too small, or it is above 1."""
    found = _named(columns, RATIOS)
    if found is None:
        return None
    name, values = found
    value, rms = float(np.median(values)), _size(columns)
    error = float(values.std()) / math.sqrt(len(values))
    if math.isnan(rms) or abs(value - 1) < max(SIGMAS * error, 0.02) or not 0.6 < value < 3:
        return None
    above = value > 1
    # clipping a ratio of this spread takes away less than a third of its square
    if not above and 1 - value < 0.35 * rms**2 + 0.01:
        return None
    if (not above and rms < 0.9 * (1 - value)) or (above and rms < 0.5 * (value - 1)):
        return None  # tokens agree: the ratio is that of whole responses
    return Finding(
        kind="sampled-vs-reported",
        fault=(
            f"{name} is {value:.3f} where numerics and lag keep it at 1: "
            + (
                "the reported log-probs are not those sampled from (raw log-probs at T < 1?)"
                if above
                else "the engine samples a truncated law (top-p, top-k) that the trainer does not share"
            )
        ),
        confidence=0.65,
        explains=0.9,
        figures=(
            Figure(what=name + ", median", value=value, stderr=error),
            Figure(what="rms of log mu - log pi that the other curves tell, nats", value=rms),
        ),
        rules_out=("noise: the mean of pi/mu over tokens drawn from mu is 1 whatever its size",),
        first="compare temperature, top_p, top_k and logprobs_mode of the engine with the trainer's law",
    )
