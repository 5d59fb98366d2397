"""A number with its error: what predictions and measurements have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, its standard error and its unit; NaN as value means "not measured"."""

    value: float
    stderr: float = 0.0
    """Standard error in the unit of the value; 0 for an exact number"""
    unit: str = ""
    """nats, steps, share, floors, ..."""

    def __post_init__(self) -> None:
        """Refuse a negative error."""
        if self.stderr < 0:
            raise ValueError(f"a standard error must be >= 0, got {self.stderr}; pass 0 for an exact value")

    @property
    def measured(self) -> bool:
        """Whether there is a value at all."""
        return not math.isnan(self.value)

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Return the normal interval of `z` standard errors around the value."""
        return self.value - z * self.stderr, self.value + z * self.stderr


def mean_estimate(values: Sequence[float], *, unit: str = "") -> Estimate:
    """Mean of independent values with its standard error; NaN error for one value, NaN value for none."""
    n = len(values)
    if n == 0:
        return Estimate(value=math.nan, stderr=math.nan, unit=unit)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(value=mean, stderr=math.nan, unit=unit)
    spread = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return Estimate(value=mean, stderr=math.sqrt(spread / n), unit=unit)
