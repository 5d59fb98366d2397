"""Curves: metrics of a run, one row a step, under the names of the frameworks."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from validation.audit.errors import BadLog, NoLog, one_line
from validation.audit.files import BROKEN, Opened, stream

MISMATCH: Mapping[str, str] = {
    "training/rollout_probs_diff_mean": "probability",
    "rollout_corr/kl": "kl",
    "rollout_corr/k3_kl": "kl",
    "mismatch/kl": "kl",
    "mismatch_kl": "kl",
    "mismatch_k3_kl": "kl",
    "mismatch_kl/all/mean": "kl",
    "mismatch_kl/mean": "kl",
    "sampling/sampling_logp_difference/mean": "nats",
    "train_rollout_logprob_abs_diff": "nats",
    "policy/rollout_train_logprobs_abs_diff_mean": "nats",
    "policy/minibatch_rollout_logprobs_abs_diff_mean": "nats",
    "debug/vllm_vs_local_logprob_diff_mean": "nats",
    "gen_kl_error": "kl",
    "policy_kl_error": "kl",
    "js_divergence_error": "kl",
    "token_mult_prob_error": "factor",
    "mean_seq_mult_prob_error": "factor",
    "rollout_correction/kl": "kl",
    "rollout_correction/k3_kl": "kl",
    "optim/kl_sample_train_v1": "kl",
    "optim/kl_sample_train_v2": "kl",
    "vllm_kl": "kl",
    "behave_approx_kl": "kl",
    "inference_kld": "kl",
    "rollout_corr/log_ppl_abs_diff": "nats",
    "rollout_correction/log_ppl_abs_diff": "nats",
    "rollout_corr/ppl_ratio": "factor",
}
"""Metrics of the distance between engine and trainer, by the end of their name, with what they measure.

Nats (mean
|d|), kl (nats, about half the mean square of d), probability (|difference| of probabilities), factor (mean
exp|d|)"""

OTHER = (
    "rollout_is_eff_sample_size",
    "rollout_is_mean",
    "rollout_is_max",
    "rollout_is_min",
    "rollout_is_ratio_fraction_high",
    "rollout_is_ratio_fraction_low",
    "rollout_is_seq_mean",
    "chi2_token",
    "chi2_seq",
    "importance_sampling_ratio/mean",
    "importance_sampling_ratio/max",
    "sampling_importance_ratio",
    "ess_ratio",
    "rollout_correction/ess",
    "rl/ess",
    "staleness/ess_ratio",
    "rollout_probs_diff_max",
    "rollout_probs_diff_std",
    "rollout_actor_probs_pearson_corr",
    "current_param_version",
    "param_version",
    "weight_version",
    "ppo_kl",
    "tis",
    "ois",
    "sampling_logp_difference/max",
    "rollout_train_logprobs_abs_diff_max",
    "vllm_vs_local_logprob_diff_max",
    "log_ppl_diff_max",
    "mismatch_kl/all/max",
    "behave_imp_weight",
    "pg_clipfrac",
    "tis_clipfrac",
)
"""Metrics the audit reads beside the distances"""

_STEP_NAMES = (
    "step",
    "Step",
    "_step",
    "global_step",
    "trainer/global_step",
    "training/global_step",
    "iteration",
)
LARGEST = 1e100
"""A metric beyond it is as good as infinite: sums of its powers leave the floats"""
LONGEST_CURVE = 2_000_000
"""Rows of a curve that are read; more are no curve"""


def matches(name: str, ending: str, /) -> bool:
    """Whether a logged name is this metric: equal, or ending in it after a slash."""
    return name == ending or name.endswith("/" + ending)


def known(name: str, /) -> bool:
    """Whether the audit can use a metric of this name."""
    return is_entropy(name) or any(matches(name, m) for m in (*MISMATCH, *OTHER))


def is_entropy(name: str, /) -> bool:
    """Whether a metric is the policy's entropy, under whatever prefix and statistic."""
    return "entropy" in name.split("/") or name.endswith("entropy")


def recognise(record: Mapping[str, Any], /) -> bool:
    """Whether a JSON object is one row of a curve."""
    flat = list(_flatten(record))
    return any(known(name) and not is_entropy(name) and _is_number(value) for name, value in flat)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _flatten(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        path = f"{prefix}/{name}" if prefix else str(name)
        if isinstance(value, dict) and depth < 6:
            yield from _flatten(value, path, depth + 1)
        else:
            yield path, value


class Curves:
    """Columns of numbers by metric name; NaN where a row lacks one."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def add(self, record: Mapping[str, Any], /) -> None:
        """Take one row; values that are no numbers are left out, a null was not logged."""
        row: dict[str, float] = {}
        for name, value in _flatten(record):
            if name in _STEP_NAMES or known(name):
                number = _number(value)
                if number is not None:
                    row[name] = number
        if row.keys() - set(_STEP_NAMES) and len(self.rows) < LONGEST_CURVE:
            self.rows.append(row)

    def columns(self) -> dict[str, np.ndarray]:
        """All rows joined by step, in order of the step; the key "step" is always there."""
        merged: dict[float, dict[str, float]] = {}
        for index, row in enumerate(self.rows):
            step = next((row[s] for s in _STEP_NAMES if s in row and math.isfinite(row[s])), float(index))
            merged.setdefault(step, {}).update({k: v for k, v in row.items() if k not in _STEP_NAMES})
        steps = sorted(merged)
        names = sorted({name for row in merged.values() for name in row})
        out = {"step": np.array(steps)}
        for name in names:
            out[name] = np.array([merged[s].get(name, math.nan) for s in steps])
        return out

    def broken(self) -> dict[str, int]:
        """How many logged values of each metric are NaN or infinite."""
        counts: dict[str, int] = {}
        for row in self.rows:
            for name, value in row.items():
                if name not in _STEP_NAMES and not math.isfinite(value):
                    counts[name] = counts.get(name, 0) + 1
        return counts


_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


def _number(value: Any) -> float | None:
    """Return a number as logged, infinite beyond LARGEST; None for words, empty cells, null, containers."""
    number = _plain_number(value)
    if number is None or math.isnan(number) or abs(number) < LARGEST:
        return number
    return math.copysign(math.inf, number)


def _plain_number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _WORDS:
            return _WORDS[text]
        try:
            return float(text) if text and "_" not in text else None
        except ValueError:
            return None
    return None


def read_csv(opened: Opened, curves: Curves, /) -> None:
    """Read a table of metrics into `curves`.

    Raises
    ------
    BadLog
        If no column is a metric the audit knows.
    """
    path = opened.path
    first = opened.head.split(b"\n", 1)[0]
    delimiter = "\t" if b"\t" in first and b"," not in first else ","
    try:
        with (
            stream(path) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="") as text,
        ):
            table = csv.reader(text, delimiter=delimiter)
            names = [_of_a_panel(n.strip()) for n in next(table, [])]
            if not any(known(n) and not is_entropy(n) for n in names):
                shown = one_line(", ".join(names), limit=80)
                raise NoLog(
                    f"{one_line(path)}: no column is a mismatch metric the audit knows (got {shown}); "
                    f"known are {', '.join(list(MISMATCH)[:3])} and others of docs/audit.md"
                )
            _take(curves, names, table)
    except csv.Error as error:
        raise BadLog(f"{one_line(path)}: not a readable table ({one_line(error)})") from None
    except BROKEN as error:
        raise BadLog(f"{one_line(path)}: the stream is broken ({one_line(error)})") from None


def _of_a_panel(name: str) -> str:
    """Metric of a column exported from a W&B panel: "run - metric"; its bands "__MIN", "__MAX" are others."""
    run, dash, metric = name.rpartition(" - ")
    return metric if dash and run else name


def _take(curves: Curves, names: list[str], table: Iterable[list[str]]) -> None:
    for cells in table:
        row = {n: c for n, c in zip(names, cells, strict=False) if c.strip()}
        curves.add(row)
