"""What a detector says: kind, fault, how sure, on what evidence, what it rules out, what to do first."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal[
    "sampled-vs-reported",
    "alignment-tokens-masks",
    "non-finite",
    "engine-numerics",
    "weights-caches-versions",
    "misleading-metrics",
    "lag",
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the evidence."""

    what: str
    value: float
    stderr: float = math.nan
    """NaN: exact, or not estimated"""
    where: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON; what is not a number is null."""
        out: dict[str, Any] = {"what": self.what, "value": _json(self.value)}
        if not math.isnan(self.stderr):
            out["stderr"] = _json(self.stderr)
        if self.where:
            out["where"] = self.where
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One explanation of what the log shows."""

    kind: Kind
    fault: str
    """One sentence; begins with "healthy" where nothing is wrong"""
    confidence: float
    """Between 0 and 1: how sure the detector is that this and not another kind is the cause"""
    explains: float
    """Share of the mismatch that would go away with it, between 0 and 1"""
    figures: tuple[Figure, ...]
    rules_out: tuple[str, ...] = ()
    first: str
    """What to do first"""
    tokens: np.ndarray | None = field(default=None, repr=False)
    """Tokens of the sample it accounts for: later detectors leave them out"""
    scattered: bool = False
    """Whether it speaks of single tokens that no row, step or place explains"""
    side: Literal["engine", "trainer"] = "engine"
    """Whose computation it accuses, where it accuses one"""

    @property
    def healthy(self) -> bool:
        """Whether it describes the log without accusing it."""
        return self.fault.startswith("healthy")

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key: faults first, then by what they explain, weighted with their confidence."""
        return self.healthy, -self.explains * self.confidence

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the report."""
        return {
            "kind": self.kind,
            "fault": self.fault,
            "confidence": round(self.confidence, 2),
            "evidence": {
                "figures": [f.to_dict() for f in self.figures],
                "rules_out": list(self.rules_out),
                "explains": round(self.explains, 3),
            },
            "first": self.first,
        }


def _json(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
