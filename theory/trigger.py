"""When a batch asks for a resync, and why: the rule the monitor judges by. Claim ``monitor``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from theory.corrections import ResyncLevel
from theory.finite_sample import MissingMass
from theory.limits import LARGEST_REAL, refuse_choice, refuse_number, refuse_share, shown
from theory.resync import FAILURE_THRESHOLD, should_resync
from theory.tail import tail_draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When the monitor asks for a resync.

    Beside its two rules, both of which can be switched off, a batch asks for one that says nothing of them:
    one without tokens, or with a token whose ratio is infinite or unknown.
    """

    ess_below: float = FAILURE_THRESHOLD
    """Share; on the tail-corrected ESS. 0: never"""
    level: ResyncLevel = "token"
    """Whose ESS: tokens, or whole responses"""
    caution: float = 1.0
    """Standard errors added to the tail index before it corrects the ESS: a sync too early costs less than
    one too late. At 0 half of the readings at the threshold fire; above it, more"""
    missing_above: float = 0.1
    """Share of the trainer's mass off the sampler's support that is too much; 1: never"""
    sure: float = 2.0
    """Standard errors by which the missing mass must exceed it"""

    def __post_init__(self) -> None:
        """Refuse thresholds that are no shares, and margins that are no numbers of standard errors."""
        refuse_share("ess_below", self.ess_below, do="0 switches the rule off")
        refuse_share("missing_above", self.missing_above, do="1 switches the rule off")
        for name in ("caution", "sure"):
            got = getattr(self, name)
            refuse_number(name, got)
            if not 0 <= got <= LARGEST_REAL:  # of whole numbers Python holds some that no float does
                raise ValueError(
                    f"{name} is a number of standard errors, finite and >= 0, got {shown(got)}; 0: no margin"
                )
        refuse_choice("level", self.level, get_args(ResyncLevel))


def cautious_index(k: Sequence[float], draws: int, caution: float) -> float:
    """Return the mean of the tail indices known, plus `caution` times its error; NaN if none is."""
    known = [x for x in k if not math.isnan(x)]
    exceedances = len(known) * tail_draws(draws)
    if not exceedances:  # no index, or no tail to correct with one
        return math.nan
    mean = sum(known) / len(known)
    # maximum likelihood of a Pareto shape has error (1 + k)/sqrt(m) over m exceedances
    return mean + caution * (1 + mean) / math.sqrt(exceedances)


def reasons_for(rule: Trigger, ess: float, missing: MissingMass, token: np.ndarray) -> tuple[str, ...]:
    """Say why a batch asks for a resync; empty where it does not.

    Parameters
    ----------
    rule : Trigger
        What is asked.
    ess : float
        Share, with its tail put back, at the level of the rule.
    missing : MissingMass
        Off the sampler's support.
    token : array
        Log lag ratios of the tokens that count, nats.
    """
    if rule.ess_below == 0 and rule.missing_above == 1:
        return ()
    if not token.size:
        return ("no token counts: nothing is known of the lag",)
    if unknown := int(np.count_nonzero(~(token < math.inf))):
        return (
            f"the ratio pi/pi_s is infinite or unknown at {unknown} of {token.size} tokens: a log-prob is "
            "-inf or NaN",
        )
    reasons = []
    if should_resync(ess, rule.ess_below):
        reasons.append(f"tail-corrected {rule.level} ESS {ess:.3f} below {rule.ess_below:g}")
    surely = missing.value - rule.sure * (0.0 if math.isnan(missing.stderr) else missing.stderr)
    if surely > rule.missing_above:
        reasons.append(f"{missing.value:.1%} of the trainer's mass is off the sampler's support")
    return tuple(reasons)
