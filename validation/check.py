"""A check sets a prediction made beforehand against a measurement and says which way it went.

The rule is one for all: the 95% interval of (measured - predicted) is compared with a margin that was fixed
before the run. Wholly inside: holds; wholly outside: fails; otherwise undecided, which is never counted as a
pass. Every check carries a control, the same reading with the effect switched off, judged by the same rule:
a control that does not come out as fails shows that the check could not have failed, and the check is then
undecided whatever it read.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from theory.estimate import Estimate, difference

Form = Literal["within", "at most", "at least"]
"""within: measured = predicted up to the margin; at most / at least: one-sided, the predicted value is a
bound"""


class Verdict(enum.StrEnum):
    """Which way a check went."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    """Too noisy to tell, or the control did not fail; never counted as a pass"""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The same reading where the effect is switched off: the check must fail on it."""

    what: str
    measured: Estimate | None
    """None: not measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the verdict table."""

    claim: str
    """Id in `validation.claims.CLAIMS`"""
    reading: str
    """What exactly was measured; a claim may have several readings"""
    form: Form
    predicted: Estimate
    margin: float
    """In the unit of the estimates, fixed before the run; a constant with its reason beside it"""
    measured: Estimate | None
    """None: not measured, `note` says why"""
    control: Control
    source: str = ""
    """Where the prediction comes from: article figure or law"""
    note: str = ""
    """What the number alone does not say: the boundary found, values per seed, why it was not measured"""
    figures: str = ""
    """Measured value in words of the claim where its unit is awkward to read (a log ratio as a factor)"""

    def __post_init__(self) -> None:
        """Refuse a margin that decides nothing and units that cannot be compared."""
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"a margin must be finite and >= 0, got {self.margin} for {self.reading!r}")
        for other in (self.measured, self.control.measured):
            if other is not None and other.unit != self.predicted.unit:
                raise ValueError(
                    f"{self.reading!r} compares {other.unit!r} with {self.predicted.unit!r}; "
                    "convert one of them"
                )


class Outcome(NamedTuple):
    """Verdict of a check with the reason and the control's own verdict."""

    verdict: Verdict
    reason: str
    """One sentence, empty where verdict and interval say all"""
    control: Verdict


def decide(form: Form, predicted: Estimate, margin: float, measured: Estimate | None, /) -> Verdict:
    """Compare the 95% interval of (measured - predicted) with the margin.

    Parameters
    ----------
    form : {"within", "at most", "at least"}
        within: the difference must lie in [-margin, margin]; at most: below margin; at least: above -margin.
    predicted, measured : Estimate
        In one unit. A measured value that is None or NaN was not run.
    margin : float
        Fixed beforehand, in the same unit.

    Returns
    -------
    Verdict
    """
    if measured is None or not measured.measured:
        return Verdict.NOT_RUN
    low, high = difference(measured, predicted).interval()
    if math.isnan(low) or math.isnan(high):
        return Verdict.UNDECIDED
    above, below = low > margin, high < -margin
    match form:
        case "within":
            fails, holds = above or below, -margin <= low and high <= margin
        case "at most":
            fails, holds = above, high <= margin
        case "at least":
            fails, holds = below, low >= -margin
    if holds:
        return Verdict.HOLDS
    return Verdict.FAILS if fails else Verdict.UNDECIDED


def conclude(check: Check, /) -> Outcome:
    """Judge a check together with its control.

    A verdict of holds or fails stands only beside a control that fails; otherwise the check cannot tell the
    effect from its absence and is undecided, with the reason. Too few repetitions for any interval is
    undecided as well.
    """
    own = decide(check.form, check.predicted, check.margin, check.measured)
    control = decide(check.form, check.predicted, check.margin, check.control.measured)
    if own is Verdict.NOT_RUN:
        return Outcome(own, check.note or "not measured", control)
    if own is Verdict.UNDECIDED:
        return Outcome(own, "the 95% interval reaches across the margin", control)
    if control is Verdict.HOLDS:
        return Outcome(Verdict.UNDECIDED, f"unable to tell: the control holds too ({own} by itself)", control)
    if control is Verdict.UNDECIDED:
        return Outcome(Verdict.UNDECIDED, "unable to tell: the control is too noisy to fail", control)
    if control is Verdict.NOT_RUN:
        return Outcome(Verdict.UNDECIDED, "unable to tell: the control was not measured", control)
    return Outcome(own, "", control)
