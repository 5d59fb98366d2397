r"""Is this batch still worth training on? One batch of log-probs in; split, ESS, forecast and a decision out.

The sample ESS alone fires late twice over: heavy tails make it read high, and being scale-free it is blind to
mass the trainer has moved where the sampler never goes. The rule here looks at both: the ESS with its tail
put back (`theory.tail_ess`), and the shortfall ``1 - mean(w)``, which estimates the missing mass. Beside them
stand the plain ESS with a cluster-bootstrap interval, and k-hat. Arrays of any library are taken; everything
is decided in NumPy float64. Claim ``monitor``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from theory.batch import TokenBatch, token_batch
from theory.cumulants import Cumulants
from theory.finite_sample import EssInterval, MissingMass, ess_interval, missing_mass, numbered
from theory.forecast import Forecast, forecast
from theory.limits import refuse_count, refuse_number, refuse_other, shown
from theory.resync import FAILURE_THRESHOLD
from theory.tail import k_hat
from theory.tail_ess import tail_corrected_ess
from theory.token_measures import measures_of
from theory.trigger import Trigger, cautious_index, reasons_for

STEADY_OVER = 5
"""Batches whose tail indices are averaged: one estimate of k scatters by .1, and the correction with it"""


class Reading(NamedTuple):
    """What one batch says; shares unless said otherwise, NaN where not measured."""

    tokens: int
    responses: int
    discrepancy_rms: float
    """Nats; NaN without the engine's log-probs"""
    lag_rms: float
    """Nats"""
    ess_token: float
    """Plain, raw and pooled"""
    ess_sequence: float
    """Plain, over products of whole responses"""
    ess_total: float
    """Of pi/mu, over tokens; NaN without the engine's log-probs"""
    ess_corrected: float
    """At the level of the trigger, its tail put back"""
    interval: EssInterval
    """Of the plain ESS at the level of the trigger, by cluster bootstrap"""
    k_hat: float
    """Tail index of the ratio at that level"""
    missing: MissingMass
    mean_w: float
    """Of pi/pi_s over tokens: one less the missing mass, which cannot tell a mean of 1e-20 from none"""
    cumulants: Cumulants
    """Of the token log-ratio, powers of nats"""
    kl_k3: float
    """The k3 estimate of ``KL(pi_s||pi)``, nats"""
    chi_square: float
    resync: bool
    reasons: tuple[str, ...]
    """Why; empty where no resync is asked for"""

    def measures(self) -> dict[str, float]:
        """Values under the names of `theory.records.STEP_COLUMNS`, those measured."""
        k = self.cumulants
        named = {
            "ess_token": self.ess_token,
            "ess_sequence": self.ess_sequence,
            "ess_total": self.ess_total,
            "k1": float(k.k1),
            "k2": float(k.k2),
            "k3": float(k.k3),
            "k4": float(k.k4),
            "kl_k3": self.kl_k3,
            "chi_square": self.chi_square,
            "k_hat": self.k_hat,
            "mean_w": self.mean_w,
            "discrepancy_rms": self.discrepancy_rms,
            "lag_rms": self.lag_rms,
        }
        return {name: value for name, value in named.items() if not math.isnan(value)}


@np.errstate(invalid="ignore", over="ignore")  # infinite and unknown ratios have values, and a reason
def read_batch(
    logmu: Any,
    logpi_s: Any,
    logpi: Any,
    /,
    *,
    mask: Any = None,
    group: Any = None,
    trigger: Trigger | None = None,
    k_before: Sequence[float] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Reading:
    """Judge one batch; a pure function of its log-probabilities.

    Parameters
    ----------
    logmu : array, shape (B, T), or None
        Log-probs of the sampled tokens as the engine drew them, nats; None if the engine did not report them.
    logpi_s, logpi : arrays, shape (B, T)
        The same tokens under the trainer at the sampler's weights, and under the trainer now, after the
        update.
    mask : array of bool, shape (B, T), optional
        True at response tokens.
    group : array, shape (B,), optional
        Prompt of each response: what is drawn independently. Each response its own if left out.
    trigger : Trigger, optional
        The rule; the default one if left out.
    k_before : sequence of float
        Tail indices of the batches just before: their mean with this one's steadies the correction.
    resamples, seed : int
        Of the bootstrap; 0 resamples leave the interval out.

    Returns
    -------
    Reading
        Of a ratio that is infinite (the sampler's weights give a sampled token no probability) the ESS is 1/n
        and the missing mass ``-inf``; of one that is NaN they are NaN. Either asks for a resync.

    Raises
    ------
    ValueError
        For arrays of different shapes, numbers that are no log-probs, a mask of other numbers than 0 and 1,
        groups that do not name one prompt per response, and settings of the rule or the bootstrap that are
        none.
    """
    refuse_count("resamples", resamples, least=0)
    refuse_count("seed", seed, least=0, most=math.inf)
    rule = Trigger() if trigger is None else trigger
    refuse_other("trigger", rule, Trigger, do="leave it out for the default rule")
    if not isinstance(k_before, Sequence) or isinstance(k_before, str):
        raise ValueError(f"k_before lists tail indices, got {shown(k_before)}; leave it out to use none")
    for k in k_before:
        refuse_number("an entry of k_before", k)
    batch = token_batch(logmu, logpi_s, logpi, mask=mask)
    prompt = _prompt_of_each_token(group, batch)
    found = measures_of(batch)
    by_token = rule.level == "token"
    token, response = (x.astype(np.float64, copy=False) for x in (batch.lag, batch.response_lag))
    chosen = token if by_token else response
    k = found["k_hat"] if by_token else float(k_hat(chosen)) if chosen.size else math.nan
    steady = np.asarray(cautious_index([*k_before, k], chosen.size, rule.caution))
    corrected = float(tail_corrected_ess(chosen, index=steady)) if chosen.size else math.nan
    missing = missing_mass(token, prompt[0])
    reasons = reasons_for(rule, corrected, missing, token)
    return Reading(
        tokens=int(token.size),
        responses=int(response.size),
        discrepancy_rms=found["discrepancy_rms"],
        lag_rms=found["lag_rms"],
        ess_token=found["ess_token"],
        ess_sequence=found["ess_sequence"],
        ess_total=found["ess_total"],
        ess_corrected=corrected,
        interval=ess_interval(chosen, prompt[0 if by_token else 1], resamples=resamples, seed=seed)
        if resamples
        else EssInterval(found["ess_token" if by_token else "ess_sequence"], math.nan, math.nan, 0),
        k_hat=k,
        missing=missing,
        mean_w=found["mean_w"],
        cumulants=Cumulants(*(found[name] for name in Cumulants._fields)),
        kl_k3=found["kl_k3"],
        chi_square=found["chi_square"],
        resync=bool(reasons),
        reasons=reasons,
    )


def _prompt_of_each_token(group: Any, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the prompt of each token, and of each response, that counts."""
    members = np.arange(len(batch.length)) if group is None else _names(group)
    if members.shape != batch.length.shape:
        raise ValueError(
            f"group needs one entry per response ({len(batch.length)}), got shape {members.shape}"
        )
    if members.dtype.kind == "f" and (unknown := int(np.isnan(members).sum())):
        raise ValueError(
            f"group says of every response which prompt it answers, got {unknown} NaN; fill them in"
        )
    spoken = batch.length > 0
    of_response, _ = numbered(members[spoken])
    return np.repeat(of_response, batch.length[spoken]), of_response


def _names(group: Any) -> np.ndarray:
    """Names of prompts as an array of numbers or of texts."""
    if hasattr(group, "detach"):
        group = group.detach().cpu()
        group = group.double() if group.is_floating_point() else group
    if isinstance(group, np.ndarray) and group.dtype == object and not np.ma.isMaskedArray(group):
        group = group.tolist()  # of texts, as verl keeps its uid
    kinds = {type(name) for name in group} if isinstance(group, (list, tuple)) else set()
    if np.ma.isMaskedArray(group) or (kinds & {str} and kinds - {str}):
        raise ValueError(
            "group takes numbers or texts, got a mixture or a masked array; number the prompts from 0"
        )
    try:
        members = np.asarray(group)
    except (TypeError, ValueError):  # ragged lists
        members = np.empty(0, dtype=object)
    if members.dtype.kind not in "biufUS":
        raise ValueError(f"group takes numbers or texts, got {members.dtype}; number the prompts from 0")
    return members


@dataclass(slots=True)
class Monitor:
    """`read_batch` for a loop: feed it each batch after the update; it remembers the steps since the sync.

    Examples
    --------
    >>> monitor = Monitor()
    >>> reading = monitor.update(None, [[-1.0, -2.0]], [[-1.1, -1.9]])
    >>> monitor.lag
    1
    >>> if reading.resync:
    ...     monitor.synced()
    """

    trigger: Trigger = field(default_factory=Trigger)
    resamples: int = 1000
    """Of the bootstrap; 0: no interval"""
    seed: int = 0
    readings: list[Reading] = field(default_factory=list)
    """Since the last sync, oldest first"""

    def __post_init__(self) -> None:
        """Refuse settings `read_batch` would refuse at the first batch."""
        refuse_other("trigger", self.trigger, Trigger, do="leave it out for the default rule")
        refuse_count("resamples", self.resamples, least=0)
        refuse_count("seed", self.seed, least=0, most=math.inf)
        refuse_other("readings", self.readings, list, do="leave it out to start after a sync")
        for reading in self.readings:
            refuse_other("an entry of readings", reading, Reading, do="leave it out to start after a sync")

    @property
    def lag(self) -> int:
        """Updates seen since the last sync."""
        return len(self.readings)

    def update(self, logmu: Any, logpi_s: Any, logpi: Any, *, mask: Any = None, group: Any = None) -> Reading:
        """Read the batch of one update; arguments as in `read_batch`."""
        reading = read_batch(
            logmu,
            logpi_s,
            logpi,
            mask=mask,
            group=group,
            trigger=self.trigger,
            k_before=[r.k_hat for r in self.readings[1 - STEADY_OVER :]],
            resamples=self.resamples,
            seed=self.seed + self.lag,
        )
        self.readings.append(reading)
        return reading

    def forecast(self, *, level: float = 0.9) -> Forecast:
        """Predict the lag at which the monitor will fire on its ESS, from the steps since the sync."""
        threshold = self.trigger.ess_below or FAILURE_THRESHOLD
        return forecast(
            [r.ess_corrected for r in self.readings], threshold=threshold, level=level, seed=self.seed
        )

    def synced(self) -> None:
        """Forget the steps before a sync: the sampler has the trainer's weights now."""
        self.readings.clear()
