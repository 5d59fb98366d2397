"""What a run reports: named columns per token, response and step, each with its provenance.

A column that was not measured is absent and says so; it is never a silent zero. Engines hand over one
`StepRecord` a step through a callback; a `Trace` is all of them. Foreign logs become the same `Trace`
through a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Definition of a column."""

    unit: str
    what: str


def _columns(**rows: tuple[str, str]) -> Mapping[str, Column]:
    return MappingProxyType({name: Column(unit=unit, what=what) for name, (unit, what) in rows.items()})


TOKEN_COLUMNS = _columns(
    step=("steps", "step at which the token was used"),
    sequence=("id", "response it belongs to, unique in the step"),
    position=("tokens", "place in the response, from 0"),
    token=("id", "token id"),
    mask=("bool", "whether the token counts in the loss"),
    logmu=("nats", "log-prob under the distribution really sampled from"),
    logpi_s=("nats", "log-prob by the trainer at the sampler's weights"),
    logpi=("nats", "log-prob by the trainer at the measuring point"),
    advantage=("reward", "advantage of the token"),
    entropy=("nats", "entropy of pi_s at the prefix"),
    kept_mass=("share", "mass the sampler kept of its distribution (top-p, top-k)"),
)
SEQUENCE_COLUMNS = _columns(
    step=("steps", "step at which the response was used"),
    sequence=("id", "response, unique in the step"),
    group=("id", "prompt it answers, unique in the step"),
    reward=("reward", "reward of the response"),
    length=("tokens", "response tokens"),
    finish_reason=("word", "stop, length, ..."),
    sampler_version=("updates", "updates behind the weights that sampled it"),
    trainer_version=("updates", "updates behind the trainer's weights when it was used"),
)
STEP_COLUMNS = _columns(
    step=("steps", "index of the update, from 1: measures are taken after it"),
    reward=("reward", "mean reward of the batch"),
    update_norm=("weights", "Euclidean norm of the parameter change"),
    lag_norm=("weights", "Euclidean norm of trainer minus sampler weights"),
    ess_token=("share", "ESS of the lag ratio over tokens at the new weights, raw and pooled"),
    ess_sequence=("share", "ESS of the lag ratio over responses (product)"),
    ess_exact=("share", "ESS of the lag ratio over all actions at the prefixes, exact (toy)"),
    ess_total=("share", "ESS of pi/mu over tokens"),
    k1=("nats", "mean of log w, w = pi/pi_s"),
    k2=("nats^2", "variance of log w"),
    k3=("nats^3", "third cumulant of log w"),
    k4=("nats^4", "fourth cumulant of log w"),
    kl_k3=("nats", "mean of w - 1 - log w over sampled tokens, the k3 estimate of KL(pi_s||pi)"),
    chi_square=("-", "mean of (w - 1)^2 over sampled tokens"),
    k_hat=("-", "Pareto tail index of w"),
    mean_w=(
        "share",
        "mean of w over sampled tokens; 1 minus it estimates mass outside the sampler's support",
    ),
    discrepancy_rms=("nats", "rms of log(mu/pi_s)"),
    lag_rms=("nats", "rms of log(pi_s/pi)"),
    resynced=("bool", "whether the ESS rule synced after this step, before the schedule would have"),
    synced=("bool", "whether the sampler had the trainer's weights when it sampled this step's batch"),
    kl_sampler=("nats/token", "KL(mu||pi) on the sampler's own prefixes"),
    off_support=("share", "tokens of the trainer's own responses with initial probability < 1e-3"),
    accuracy=("share", "held-out responses that are right"),
    seconds_sample=("s", "time in the sampler"),
    seconds_train=("s", "time in forward, backward and update"),
    seconds_sync=("s", "time in weight sync"),
    seconds_evaluate=("s", "time in evaluation"),
)

OFF_SUPPORT_BELOW = 1e-3
"""Initial probability under which a token counts as off-support; article 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a column comes from."""

    kind: Literal["measured", "approximated", "not measured"]
    how: str = ""


NOT_MEASURED = Provenance(kind="not measured")
MEASURED = Provenance(kind="measured")


def _check(table: str, columns: Mapping[str, np.ndarray], known: Mapping[str, Column]) -> None:
    unknown = sorted(set(columns) - set(known))
    if unknown:
        raise ValueError(f"the {table} table has no column {unknown[0]!r}; known: {', '.join(known)}")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of the {table} table must have one length, got {lengths}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step reports; engines pass it to ``on_step`` and forget it."""

    step: int
    measures: Mapping[str, float]
    """Keys of STEP_COLUMNS but "step"; an absent key was not measured"""
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Keys of TOKEN_COLUMNS to arrays of one length; may be empty"""
    sequences: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse columns nobody has defined."""
        _check("step", {name: np.empty(1) for name in self.measures}, STEP_COLUMNS)
        _check("token", self.tokens, TOKEN_COLUMNS)
        _check("sequence", self.sequences, SEQUENCE_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All that a run, or a foreign log, reported."""

    steps: Mapping[str, np.ndarray]
    """Keys of STEP_COLUMNS to arrays of one length, one entry a step; NaN where a step did not measure it"""
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
    sequences: Mapping[str, np.ndarray] = field(default_factory=dict)
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    """By column name; a column that is neither here nor in a table was not measured"""

    def __post_init__(self) -> None:
        """Refuse unknown columns and ragged tables."""
        _check("step", self.steps, STEP_COLUMNS)
        _check("token", self.tokens, TOKEN_COLUMNS)
        _check("sequence", self.sequences, SEQUENCE_COLUMNS)

    def provenance_of(self, column: str) -> Provenance:
        """Where `column` comes from; present without a note counts as measured."""
        if column in self.provenance:
            return self.provenance[column]
        present = any(column in table for table in (self.steps, self.tokens, self.sequences))
        return MEASURED if present else NOT_MEASURED


def trace_of(records: list[StepRecord], provenance: Mapping[str, Provenance] | None = None) -> Trace:
    """Join step records into one trace; a measure some steps lack is NaN there."""
    names = sorted({name for r in records for name in r.measures})
    steps = {"step": np.array([r.step for r in records], dtype=np.int64)}
    steps |= {n: np.array([float(r.measures.get(n, np.nan)) for r in records]) for n in names}
    tables = []
    for table in ("tokens", "sequences"):
        parts = [getattr(r, table) for r in records if getattr(r, table)]
        shared = set.intersection(*(set(p) for p in parts)) if parts else set()
        tables.append({n: np.concatenate([p[n] for p in parts]) for n in sorted(shared)})
    return Trace(steps=steps, tokens=tables[0], sequences=tables[1], provenance=provenance or {})
