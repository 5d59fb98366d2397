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
from theory.limits import (
    LARGEST_COUNT,
    refuse_choice,
    refuse_count,
    refuse_flag,
    refuse_other,
    refuse_real,
    shown,
)

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
        """Refuse unknown kinds, negative scales and mantissas."""
        refuse_choice("numerics", self.kind, get_args(NumericsKind))
        refuse_real("scale of the numerics", self.scale, least=0)
        refuse_count("mantissa_bits", self.mantissa_bits, least=0, most=52)  # float64 has no more
        refuse_flag("fresh", self.fresh)


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
        _refuse_environment(self.environment)
        refuse_other("correction", self.correction, Correction, do="theory.corrections.correction makes one")
        refuse_other("numerics", self.numerics, Numerics, do='write Numerics(kind="exact") for none')
        refuse_choice("baseline", self.baseline, get_args(Baseline))
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


def _refuse_environment(got: Any) -> None:
    """Refuse what is no settings: an experiment is hashed, compared and written down with them."""
    settings = dataclasses.is_dataclass(got) and not isinstance(got, type)
    if not (settings and got.__dataclass_params__.frozen):  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            f"environment must be a frozen dataclass of an engine, got {shown(got)}; take one of "
            "toy.settings or real.settings"
        )


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
