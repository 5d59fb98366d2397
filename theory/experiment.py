"""What an experiment is: one frozen description that either engine can run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any, Literal, get_args

import numpy as np

from theory.advantage import Baseline
from theory.corrections import Correction

NumericsKind = Literal[
    "exact",
    "gaussian",
    "laplace",
    "student-t",
    "mantissa",
    "bf16",
    "fp8",
    "int4",
    "e5m2",
    "e2m1",
    "weight-noise",
]
"""exact: the engine adds nothing of its own. The next four are logit noise of the toy (student-t: 3 degrees
of freedom, unit variance times scale) and rounding of its mantissa; the rest are formats of a real
engine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What the sampler's engine does differently from the trainer at equal weights."""

    kind: NumericsKind = "exact"
    scale: float = 0.0
    """Standard deviation of the logit noise (nats) or of the relative weight noise"""
    mantissa_bits: int = 3
    """Bits kept by kind 'mantissa'; 3 is e4m3"""
    fresh: bool = False
    """Draw the noise anew each step in place of freezing it"""

    def __post_init__(self) -> None:
        """Refuse unknown kinds and negative scales."""
        if self.kind not in get_args(NumericsKind):
            raise ValueError(f"unknown numerics {self.kind!r}; known: {', '.join(get_args(NumericsKind))}")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ValueError(f"scale of the numerics must be finite and >= 0, got {self.scale}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One run: environment, sampler, correction, optimisation, seed. Hashable."""

    environment: Any
    """Frozen dataclass of the engine that runs it: `toy.settings` or `real.settings`"""
    correction: Correction
    lr: float
    """Step of plain SGD"""
    steps: int = 40
    prompts: int = 64
    """Prompts per step"""
    samples: int = 8
    """Responses per prompt"""
    baseline: Baseline = "group"
    sync_every: int = 1
    """Scheduled sync period in steps; 64 of 40 steps is the articles' stale sampler"""
    numerics: Numerics = Numerics()
    minibatches: int = 1
    """Updates per batch"""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings no engine could run."""
        if self.baseline not in get_args(Baseline):
            raise ValueError(f"unknown baseline {self.baseline!r}; known: {', '.join(get_args(Baseline))}")
        for field, least in (
            ("sync_every", 1),
            ("steps", 1),
            ("prompts", 1),
            ("samples", 1),
            ("minibatches", 1),
        ):
            got = getattr(self, field)
            if got < least:
                raise ValueError(f"{field} must be >= {least}, got {got}; 1 is the smallest setting there is")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}; any whole number from 0 up will do")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ValueError(f"lr must be finite and >= 0, got {self.lr}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a dataclass names its class under "kind_of"."""
        return _plain(self)

    def fingerprint(self) -> str:
        """Twelve hex digits that are equal if and only if the settings are."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """Turn dataclasses into dictionaries that name their class, and infinities into words (JSON has none).

    Equal numbers get one spelling: 1.0 and 1 are the same setting, and so are those of NumPy.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {"kind_of": type(value).__name__} if not isinstance(value, Experiment) else {}
        return out | {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return int(value) if value.is_integer() else value
    return value
