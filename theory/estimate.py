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
    dof: float = math.inf
    """Degrees of freedom behind the standard error: n - 1 for a mean of n; inf where the error is known"""

    def __post_init__(self) -> None:
        """Refuse a negative error."""
        if self.stderr < 0:
            raise ValueError(f"a standard error must be >= 0, got {self.stderr}; pass 0 for an exact value")
        if self.dof < 0:
            raise ValueError(f"degrees of freedom must be >= 0, got {self.dof}; leave them out if known")

    @property
    def measured(self) -> bool:
        """Whether there is a value at all."""
        return not math.isnan(self.value)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the two-sided Student interval at `level`; NaN where one value gave no error to speak of.

        With three seeds the factor is 4.3 and not 1.96: an interval that forgot this would decide too often.
        """
        if self.stderr == 0:
            return self.value, self.value
        half = self.stderr * _student(level, self.dof)
        return self.value - half, self.value + half


def _student(level: float, dof: float) -> float:
    """Half-width of the two-sided Student interval, in standard errors."""
    from scipy.special import ndtri, stdtrit  # a tenth of a second to load, and not every caller asks

    if dof == 0:
        return math.nan
    upper = (1 + level) / 2
    return float(ndtri(upper) if math.isinf(dof) else stdtrit(dof, upper))


def difference(a: Estimate, b: Estimate, /) -> Estimate:
    """Subtract independent estimates, ``a - b``; degrees of freedom by Welch and Satterthwaite.

    Raises
    ------
    ValueError
        If the units differ.
    """
    if a.unit != b.unit:
        raise ValueError(f"a difference needs one unit, got {a.unit!r} and {b.unit!r}; convert one of them")
    noisy = [(e.stderr**2, e.dof) for e in (a, b) if e.stderr != 0]
    total = math.fsum(v for v, _ in noisy)
    if any(dof == 0 for _, dof in noisy) or math.isnan(total):
        dof = 0.0  # one of the errors rests on a single value: nothing can be said
    else:
        spread = math.fsum(v**2 / dof for v, dof in noisy)
        dof = total**2 / spread if spread > 0 else math.inf
    return Estimate(value=a.value - b.value, stderr=math.sqrt(total), unit=a.unit, dof=dof)


def mean_estimate(values: Sequence[float], *, unit: str = "") -> Estimate:
    """Mean of independent values with its standard error; NaN error for one value, NaN value for none."""
    n = len(values)
    if n == 0:
        return Estimate(value=math.nan, stderr=math.nan, unit=unit, dof=0)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(value=mean, stderr=math.nan, unit=unit, dof=0)
    spread = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return Estimate(value=mean, stderr=math.sqrt(spread / n), unit=unit, dof=n - 1)
