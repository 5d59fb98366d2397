"""The numbers of the report: each with its level, raw and pooled, the frameworks' own beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from theory.crossing import gaussian_var
from theory.ess import ess_from_state
from theory.records import NOT_MEASURED, Provenance
from theory.tail import k_hat
from validation.audit import forecast
from validation.audit.block import UNKNOWN
from validation.audit.collect import Collector
from validation.audit.evidence import Evidence
from validation.audit.sums import POSITION_EDGES, PROBABILITY_EDGES, KeyedTable, RatioSums, describe

LONGEST_TABLE = 200
"""Rows of a table in the report"""


def of(collected: Collector, evidence: Evidence, /) -> dict[str, Any]:
    """All numbers of a log with tokens; what was not measured is absent."""
    out: dict[str, Any] = {
        "counts": {
            "responses": collected.rows,
            "tokens": collected.masked,
            "tokens_compared": collected.discrepancy.n,
        }
    }
    if collected.discrepancy.n:
        compared = (
            "mu against pi_s"
            if collected.reference == "logpi_s"
            else "mu against pi: numerics and lag together"
        )
        name = "numerics" if evidence.lag_free == "yes" and evidence.pure.all() else "mismatch"
        out[name] = {"what": compared, **_ratio(collected, "discrepancy", collected.discrepancy)}
        with np.errstate(
            all="ignore"
        ):  # a tail of equal or of enormous ratios has no index: NaN, and no noise
            out[name]["k_hat"] = _number(float(k_hat(-evidence.d))) if len(evidence.d) >= 25 else None
    if collected.lag.n:
        out["lag"] = {"what": "pi against pi_s", **_ratio(collected, "lag", collected.lag)}
    if collected.total.n:
        out["total"] = {"what": "pi against mu", **_ratio(collected, "total", collected.total)}
    if collected.discrepancy.n:
        out["peers"] = {k: _number(v) for k, v in collected.peers.metrics().items()}
        out["by_position"] = _buckets(collected.by_position.sums, _position_names())
        out["by_probability"] = _buckets(collected.by_probability.sums, _probability_names())
        out["by_step"] = _keyed(collected.by_step, "step")
        out["by_version_gap"] = _keyed(collected.by_gap, "version_gap")
        out["by_finish_reason"] = _keyed(collected.by_finish, "finish_reason")
    if collected.lag.n:
        out["lag_by_step"] = _keyed(collected.lag_by_step, "step")
        out["lag_by_version_gap"] = _keyed(collected.lag_by_gap, "version_gap")
    told = forecast.of(collected)
    if told is not None:
        out["forecast"] = told
    return {k: v for k, v in out.items() if v != []}


def _ratio(collected: Collector, name: str, sums: RatioSums) -> dict[str, Any]:
    """Figures of one ratio at the level of tokens and of responses."""
    n = sums.n
    state = collected.response.get(name)
    return {
        "tokens": n,
        "rms": _number(sums.rms),
        "mean_abs": _number(sums.absolute / n),
        "mean_log_ratio": _number(sums.mean),
        "variance": _number(sums.variance),
        "largest": _number(sums.largest),
        "k3": _number(sums.k3),
        "mean_ratio": _number(sums.mean_ratio),
        "ess_token_raw": _number(sums.ess),
        "ess_token_gaussian": _number(float(gaussian_var(sums.variance))),
        "ess_response_raw": _number(float(ess_from_state(state))) if state is not None else None,
        "responses": int(state.n) if state is not None else 0,
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _position_names() -> list[str]:
    edges = [0, *POSITION_EDGES]
    return [f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in pairwise(edges)] + [f">={edges[-1]}"]


def _probability_names() -> list[str]:
    edges = [0.0, *PROBABILITY_EDGES, 1.0]
    return [f"{a:g}-{b:g}" for a, b in pairwise(edges)]


def _buckets(sums: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for name, row in zip(names, sums, strict=False):
        if row[0] > 0:
            out.append({"bucket": name} | {k: _number(v) for k, v in describe(row).items()})
    return out


def _keyed(table: KeyedTable, name: str) -> list[dict[str, Any]]:
    rows = [(k, s) for k, s in table.rows() if k not in (UNKNOWN, "")]
    stride = max(1, -(-len(rows) // LONGEST_TABLE))
    return [{name: k} | {n: _number(v) for n, v in describe(s).items()} for k, s in rows[::stride]]


def provenance(collected: Collector, stated: Mapping[str, Provenance], /) -> dict[str, Provenance]:
    """Where each column comes from, by what was really in the log."""
    out = {}
    for name in ("logmu", "logpi_s", "logpi", "entropy", "kept_mass"):
        known = stated.get(name, NOT_MEASURED)
        out[name] = known if collected.measured[name] else NOT_MEASURED
        if not collected.measured[name] and known.kind == "not measured" and known.how:
            out[name] = known
    return out
