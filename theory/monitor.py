r"""Is this batch still worth training on? One batch of log-probs in; split, ESS, forecast and a decision out.

The sample ESS alone fires late twice over: heavy tails make it read high, and being scale-free it is blind to
mass the trainer has moved where the sampler never goes. The rule here looks at both: the ESS with its tail
put back (`theory.tail_ess`), and the shortfall ``1 - mean(w)``, which estimates the missing mass. Beside them
stand the plain ESS with a cluster-bootstrap interval, and k-hat. Arrays of any library are taken; everything
is computed in NumPy float64. Claim ``monitor``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from theory.cumulants import Cumulants, cumulants
from theory.decomposition import split
from theory.ess import ess_fraction, response_log_ratio
from theory.finite_sample import EssInterval, MissingMass, ess_interval, missing_mass
from theory.forecast import Forecast, forecast
from theory.resync import FAILURE_THRESHOLD, should_resync
from theory.tail import k_hat, tail_draws
from theory.tail_ess import tail_corrected_ess

ROUNDING = 0.125
"""Nats a log-prob may be above 0: half the spacing of bfloat16 from 32 on, where logits are"""

STEADY_OVER = 5
"""Batches whose tail indices are averaged: one estimate of k scatters by .1, and the correction with it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When the monitor asks for a resync.

    Beside its two rules, both of which can be switched off, a batch asks for one that says nothing of them:
    one without tokens, or with a token whose ratio is infinite or unknown.
    """

    ess_below: float = FAILURE_THRESHOLD
    """Share; on the tail-corrected ESS. 0: never"""
    level: Literal["token", "sequence"] = "token"
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
        for name in ("ess_below", "missing_above"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share in [0, 1], got {getattr(self, name)}")
        for name in ("caution", "sure"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is a number of standard errors, finite and >= 0, got {getattr(self, name)}"
                )
        if self.level not in ("token", "sequence"):
            raise ValueError(f"unknown level {self.level!r}; known: token, sequence")


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
    cumulants: Cumulants
    """Of the token log-ratio, powers of nats"""
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
            "k_hat": self.k_hat,
            "mean_w": 1 - self.missing.value,
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
        For arrays of different shapes, numbers that are no log-probs, a mask with NaN, negative resamples.
    """
    if resamples < 0:
        raise ValueError(f"resamples must be >= 0, got {resamples}; 0 leaves the interval out")
    rule = trigger or Trigger()
    ps, pi = _host(logpi_s), _host(logpi)
    if ps.ndim != 2:
        raise ValueError(f"a batch is (responses, tokens), got shape {ps.shape}; add the missing axis")
    mu = ps if logmu is None else _host(logmu)
    d, minus_log_w = split(mu, ps, pi)
    valid = np.ones(ps.shape, dtype=bool) if mask is None else _host(mask, bool)
    if valid.shape != ps.shape:
        raise ValueError(f"mask needs the shape of the log-probs {ps.shape}, got {valid.shape}")
    refuse_positive(valid, logmu=mu, logpi_s=ps, logpi=pi)
    members = np.arange(len(ps)) if group is None else np.asarray(group)
    if members.shape != (len(ps),):
        raise ValueError(f"group needs one entry per response ({len(ps)}), got shape {members.shape}")

    token = -minus_log_w[valid]
    response = response_log_ratio(-minus_log_w, mask=valid)
    spoken = valid.any(axis=-1)
    response = response[spoken]
    token_group = np.broadcast_to(members[:, None], ps.shape)[valid]
    chosen, of = (token, token_group) if rule.level == "token" else (response, members[spoken])
    k = float(k_hat(chosen)) if chosen.size else math.nan
    steady = np.asarray(_cautious_index([*k_before, k], chosen.size, rule.caution))
    corrected = float(tail_corrected_ess(chosen, index=steady)) if chosen.size else math.nan
    missing = missing_mass(token, token_group)
    reasons = _reasons(rule, corrected, missing, token)
    return Reading(
        tokens=int(token.size),
        responses=int(spoken.sum()),
        discrepancy_rms=_rms(d[valid]) if logmu is not None else math.nan,
        lag_rms=_rms(token),
        ess_token=float(ess_fraction(token)),
        ess_sequence=float(ess_fraction(response)),
        ess_total=float(ess_fraction(token - d[valid])) if logmu is not None else math.nan,
        ess_corrected=corrected,
        interval=ess_interval(chosen, of, resamples=resamples, seed=seed)
        if resamples
        else EssInterval(float(ess_fraction(chosen)), math.nan, math.nan, 0),
        k_hat=k,
        missing=missing,
        cumulants=Cumulants(*(float(k) for k in cumulants(token))),
        resync=bool(reasons),
        reasons=reasons,
    )


def _cautious_index(k: Sequence[float], draws: int, caution: float) -> float:
    """Mean of the tail indices known, plus `caution` times its error; NaN if none is."""
    known = [x for x in k if not math.isnan(x)]
    if not known:
        return math.nan
    mean = sum(known) / len(known)
    # maximum likelihood of a Pareto shape has error (1 + k)/sqrt(m) over m exceedances
    return mean + caution * (1 + mean) / math.sqrt(len(known) * tail_draws(draws))


def _reasons(rule: Trigger, ess: float, missing: MissingMass, token: np.ndarray) -> tuple[str, ...]:
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


def _rms(x: np.ndarray) -> float:
    return math.sqrt(float(np.mean(x**2))) if x.size else math.nan


def refuse_positive(valid: np.ndarray, **logs: np.ndarray) -> None:
    """Refuse what cannot be log-probs at tokens that count: probabilities, or losses.

    Raises
    ------
    ValueError
        Naming the array, by its keyword, and its largest number.
    """
    for name, x in logs.items():
        above = (x > ROUNDING) & valid
        if above.any():
            raise ValueError(
                f"log-probs are at most 0 (and {ROUNDING} of rounding), got {int(above.sum())} above in "
                f"{name}, the largest {x[above].max():.3g}; pass logs of probabilities"
            )


def _host(x: Any, dtype: Any = np.float64) -> np.ndarray:
    """Array of any library as NumPy: off the graph and off the device where it has one."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.double() if x.is_floating_point() else x  # NumPy has no bfloat16
    x = np.asarray(x)
    if np.iscomplexobj(x):
        raise ValueError(f"log-probs and masks are real, got {x.dtype}; drop what is imaginary first")
    if dtype is bool and x.dtype != bool and (unknown := int(np.isnan(x.astype(np.float64)).sum())):
        raise ValueError(f"a mask says of every token whether it counts, got {unknown} NaN; fill them in")
    return x.astype(dtype, copy=False)


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
