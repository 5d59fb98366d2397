"""What an experiment is: one frozen description that either engine can run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import numbers
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


LARGEST_COUNT = 2**31 - 1
"""Both engines count in 32-bit integers"""
LARGEST_REAL = float(np.finfo(np.float32).max)
"""Both compute in float32"""


def refuse_count(name: str, got: Any, /, *, least: int, most: float = LARGEST_COUNT) -> None:
    """Refuse what is no whole number from `least` to `most` (ValueError, in one line)."""
    if isinstance(got, bool) or not isinstance(got, numbers.Integral):
        raise ValueError(f"{name} must be a whole number, got {got!r}; {least} is the smallest there is")
    if int(got) < least:
        raise ValueError(f"{name} must be >= {least}, got {got}; {least} is the smallest setting there is")
    if int(got) > most:
        raise ValueError(f"{name} must be at most {most}, got {got}; lower it")


def refuse_real(name: str, got: Any, /, *, least: float = -LARGEST_REAL) -> None:
    """Refuse what is no number from `least` up that float32 holds (ValueError, in one line)."""
    if isinstance(got, bool) or not isinstance(got, numbers.Real):
        raise ValueError(f"{name} must be a number, got {got!r}")
    try:
        value = float(got)
    except OverflowError:  # a whole number beyond float64
        value = LARGEST_REAL * 2
    if not (math.isfinite(value) and value >= least):
        floor = "" if least == -LARGEST_REAL else f" and >= {least:g}"
        raise ValueError(f"{name} must be finite{floor}, got {got}")
    if abs(value) > LARGEST_REAL:
        raise ValueError(f"{name} must be a number float32 holds, at most {LARGEST_REAL:.3g}, got {got}")


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
        refuse_real("scale of the numerics", self.scale, least=0)


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
        for field in ("sync_every", "steps", "prompts", "samples", "minibatches"):
            refuse_count(field, getattr(self, field), least=1)
        if self.prompts * self.samples > LARGEST_COUNT:
            raise ValueError(
                f"prompts x samples must be at most {LARGEST_COUNT}, got {self.prompts} x {self.samples}; "
                "lower one of them"
            )
        refuse_count("seed", self.seed, least=0, most=math.inf)
        refuse_real("lr", self.lr, least=0)

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
