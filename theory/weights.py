"""The weight a correction gives each token: its ratio, taken at its level, through its clip."""

from __future__ import annotations

from typing import Any

from theory.arrays import Array, masked, namespace
from theory.corrections import Correction, Level, Logps, Ratio
from theory.ess import response_log_ratio


def log_ratio(ratio: Ratio, logps: Logps, /) -> Array:
    """Log of one of the ratios, in nats; -inf where the reference has no mass (nothing is sampled there)."""
    xp = namespace(logps.pi)
    match ratio:
        case "none":
            return xp.zeros_like(logps.pi)
        case "lag":
            reference = logps.pi_s
        case "total":
            reference = logps.mu
        case "batch":
            if logps.pi_old is None:
                return xp.zeros_like(logps.pi)
            reference = logps.pi_old
    unreached = reference == -float("inf")
    safe = xp.where(unreached, xp.zeros_like(reference), reference)
    return xp.where(unreached, xp.full_like(reference, -float("inf")), logps.pi - safe)


def _at_level(level: Level, token: Array, mask: Array | None) -> Array:
    """Give each token the log ratio of its level."""
    if level == "token":
        return token
    xp = namespace(token)
    whole = response_log_ratio(token, mask=mask, geometric=level == "geometric")
    return whole[..., None] + xp.zeros_like(token)


def _within_second_moment(log_w: Array, budget: Any, mask: Array | None) -> Array:
    """Keep the smallest log(w)^2 of the whole batch while their mean is <= budget."""
    xp = namespace(log_w)
    square = masked(log_w**2, mask, float("inf"))
    flat = xp.reshape(square, (-1,))
    order = xp.argsort(flat)
    ordered = flat[order]
    counted = xp.isfinite(ordered)
    running = xp.cumulative_sum(xp.where(counted, ordered, xp.zeros_like(ordered)))
    ones = xp.ones_like(ordered)
    allowed = counted & (running <= budget * xp.cumulative_sum(ones))  # a prefix: its running mean only grows
    keep = allowed[xp.argsort(order)]
    return xp.reshape(keep, log_w.shape) | xp.isnan(log_w)


def clipped_weight(
    rule: Correction, logps: Logps, advantage: Array, /, *, mask: Array | None = None
) -> Array:
    """Weight `wc` of each token (or row entry) under a correction.

    Parameters
    ----------
    rule : Correction
        The row of the table.
    logps : Logps
        Log-probabilities, one shape (..., T); for a row of actions (..., T, K) with `advantage` (..., T, 1).
    advantage : array
        Broadcastable to that shape; PPO's clip depends on its sign.
    mask : array of bool, optional
        True at response tokens; needed where a ratio is taken over the response or the batch.

    Returns
    -------
    array
        Non-negative weights of the shape of `logps.pi`.
    """
    xp = namespace(logps.pi)
    log_w = _at_level(rule.level, log_ratio(rule.ratio, logps), mask)
    w = xp.exp(log_w)
    if rule.clip == "none":
        return w
    log_c, c = log_w, w
    if rule.clip_on is not None and rule.clip_on != rule.ratio:
        log_c = _at_level(rule.level, log_ratio(rule.clip_on, logps), mask)
        c = xp.exp(log_c)
    zero = xp.zeros_like(w)
    # each clip says what it drops: NaN compares false, so a broken log-prob shows and is no silent zero
    match rule.clip:
        case "truncate":
            return xp.where(c > rule.high, rule.high + zero, w)
        case "mask":
            return xp.where((c < rule.low) | (c > rule.high), zero, w)
        case "ppo":
            gains = advantage + zero >= 0
            drop = xp.where(gains, c > rule.high, c < rule.low)
            if rule.dual is not None:
                drop = drop | (~gains & (c > rule.dual))
            return xp.where(drop, zero, w)
        case "second-moment":
            return xp.where(_within_second_moment(log_c, rule.high, mask), w, zero)


def lr_factor(rule: Correction, ess: Array, /) -> Array:
    """Factor on the learning rate from the ESS share of the correction's own ratio (VCPO)."""
    xp = namespace(ess)
    return xp.minimum(ess, xp.ones_like(ess)) ** rule.lr_power
