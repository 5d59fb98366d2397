"""Every public case of the audit, built from its synthetic line.

And faults of the same kinds that are on no list.

A case is a function of a Generator and returns a `Log` or curves. `CASES` names the kind the audit must put
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from audit_logs import Log, build, engine, lagged, log_softmax, noise, noisy, plain, steps_of

SAMPLED = "sampled-vs-reported"
ALIGNMENT = "alignment-tokens-masks"
NONFINITE = "non-finite"
NUMERICS = "engine-numerics"
WEIGHTS = "weights-caches-versions"
METRICS = "misleading-metrics"
LAG = "lag"

Rng = np.random.Generator
BF16 = 0.042
FP8 = 0.2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, how to make it, and what the audit has to call it."""

    kind: str
    make: Callable[[Rng], Any]
    formats: tuple[str, ...] = ("canonical",)
    also: tuple[str, ...] = ()
    """Other kinds that are right too, because the log cannot tell them apart"""


def bf16(rng: Rng, **kw: Any) -> Log:
    return build(rng, engine(BF16), **kw)


def in_steps(rows: int, steps: int) -> dict[str, Any]:
    """Columns of a run that syncs before every step."""
    step = steps_of(rows, steps)
    return {"step": step, "version": step - 1, "trainer_version": step - 1}


# -- A: what was sampled and what was reported
# -------------------------------------------------------------------------


def raw_at_temperature(temperature: float) -> Callable[[Rng], Log]:
    def make(rng: Rng) -> Log:
        def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
            sampled = log_softmax(z / temperature)
            return {"sample": sampled, "mu": log_softmax(z), "pi_s": sampled}

        return build(rng, law)

    return make


def untempered_trainer(rng: Rng) -> Log:
    """The engine samples and reports at T = 0.7; the trainer scores at 1."""

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        sampled = log_softmax(noise(rng, z, BF16) / 0.7)
        return {"sample": sampled, "mu": sampled, "pi_s": log_softmax(z)}

    return build(rng, law)


def truncated(
    logp: np.ndarray, top_p: float | None = None, top_k: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs renormalised on the kept set, and the mass it had."""
    order = np.argsort(-logp, axis=-1)
    ranked = np.take_along_axis(np.exp(logp), order, -1)
    before = np.cumsum(ranked, -1) - ranked
    keep = np.ones_like(ranked, dtype=bool)
    if top_p is not None:
        keep &= before < top_p
    if top_k is not None:
        keep &= np.arange(logp.shape[1]) < top_k
    kept = np.zeros_like(keep)
    np.put_along_axis(kept, order, keep, -1)
    mass = np.where(kept, np.exp(logp), 0.0).sum(-1)
    with np.errstate(divide="ignore"):
        return np.where(kept, logp - np.log(mass)[:, None], -np.inf), mass


def top_p_processed(rng: Rng, numerics: float = 0.0, **kw: Any) -> Log:
    top_p = float(rng.choice([0.8, 0.9, 0.95]))

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        mu, _ = truncated(log_softmax(noise(rng, z, numerics)), top_p)
        return {"sample": mu, "mu": mu, "pi_s": log_softmax(z)}

    return build(rng, law, **kw)


def top_k_processed(rng: Rng) -> Log:
    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        mu, _ = truncated(log_softmax(noise(rng, z, BF16)), top_k=20)
        return {"sample": mu, "mu": mu, "pi_s": log_softmax(z)}

    return build(rng, law)


def top_p_raw(rng: Rng, top_p: float = 0.8, numerics: float = 0.0) -> Log:
    """Truncated sampling reported raw: no ratio shows it, only the entropy does."""

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        full = log_softmax(noise(rng, z, numerics))
        return {
            "sample": truncated(full, top_p)[0],
            "mu": full,
            "pi_s": log_softmax(z),
            "entropy_of": log_softmax(z),
        }

    return build(rng, law)


def cold_raw(rng: Rng) -> Log:
    """T = 0.6, raw log-probs, trainer at 1."""

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        full = log_softmax(z)
        return {
            "sample": log_softmax(z / 0.6),
            "mu": log_softmax(noise(rng, z, BF16)),
            "pi_s": full,
            "entropy_of": full,
        }

    return build(rng, law)


def top_one_stored(rng: Rng) -> Log:
    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        full = log_softmax(z)
        return {"sample": full, "mu": full.max(-1), "pi_s": full}

    return build(rng, law)


def repetition_penalty(rng: Rng, *, raw: bool) -> Log:
    """Ids seen before in the row are penalised; the engine reports the penalised law or the raw one."""
    rows, length, vocab = 64, 150, 100
    ids, mu, pi_s, entropy = (np.zeros((rows, length)) for _ in range(4))
    ids = ids.astype(int)
    seen = np.zeros((rows, vocab), dtype=bool)
    from audit_logs import base_logits, draw

    for t in range(length):
        z = base_logits(rng, rows, vocab)
        full = log_softmax(z)
        sampled = log_softmax(np.where(seen, np.where(z > 0, z / 1.3, z * 1.3), z))
        ids[:, t] = draw(rng, sampled)
        pick = np.arange(rows), ids[:, t]
        mu[:, t] = (full if raw else sampled)[pick]
        pi_s[:, t] = full[pick]
        entropy[:, t] = -(np.exp(full) * full).sum(-1)
        seen[pick] = True
    return Log(ids=ids, mu=mu, pi_s=pi_s, entropy=entropy)


def draft_reported(rng: Rng) -> Log:
    """Speculative decoding that reports the draft model's log-probs."""

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        return {"sample": log_softmax(z), "mu": log_softmax(noise(rng, z, 0.8)), "pi_s": log_softmax(z)}

    return build(rng, law)


def probabilities(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu = np.exp(log.mu)
    return log


def base_ten(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu = log.mu / np.log(10)
    return log


# -- B: alignment, tokens, masks
# ---------------------------------------------------------------------------------------


def suffix_shifted(rng: Rng, share: float = 0.02) -> Log:
    """In a few rows one extra id: from there on the engine's log-probs belong to the token before."""
    log = bf16(rng, rows=100)
    for i in rng.choice(100, size=max(2, int(share * 100)), replace=False):
        t = int(rng.integers(10, 110))
        log.mu[i, t + 1 :] = log.mu[i, t:-1].copy()
    return log


def shifted(k: int) -> Callable[[Rng], Log]:
    def make(rng: Rng) -> Log:
        log = bf16(rng)
        log.mu = np.roll(log.mu, k, axis=1)
        return log

    return make


def one_too_long(rng: Rng) -> Log:
    """Every row has one log-prob more than ids."""
    log = bf16(rng)
    log.ids = log.ids[:, :-1]
    log.mask = log.mask[:, :-1]
    log.pi_s = log.pi_s[:, :-1]  # type: ignore[index]
    log.entropy = None
    return log


def eos_appended(rng: Rng) -> Log:
    log = bf16(rng, rows=80, length=60)
    log.ids[:, -1] = 2
    log.mu[:, -1] = 0.0
    log.pi_s[:, -1] = -4 + 0.5 * rng.normal(size=80)  # type: ignore[index]
    return log


def retokenised(rng: Rng, share: float = 0.02) -> Log:
    """A few ids replaced before the trainer scores them."""

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        mu = log_softmax(noise(rng, z, BF16))
        full = log_softmax(z)
        wrong = rng.random(len(z)) < share
        scored = np.where(wrong[:, None], full[:, rng.permutation(full.shape[1])], full)
        return {"sample": mu, "mu": mu, "pi_s": scored, "entropy_of": full}

    return build(rng, law, vocab=800)


def ids_differ(rng: Rng) -> Log:
    log = bf16(rng)
    log.trainer_ids = log.ids.copy()
    at = rng.random(log.ids.shape) < 0.01
    log.trainer_ids[at] += 1
    log.pi_s = np.where(at, log.pi_s - 8.0, log.pi_s)  # type: ignore[operator]
    return log


def double_bos(rng: Rng) -> Log:
    rows, length = 64, 300
    scale = np.tile(0.6 * np.exp(-np.arange(length) / 20), rows)
    return build(rng, engine(np.hypot(scale, 0.003)), rows=rows, length=length)


def tool_tokens_counted(rng: Rng) -> Log:
    log = bf16(rng)
    rows, length = log.ids.shape
    for i in range(rows):
        start = int(rng.integers(10, length - 40))
        run = slice(start, start + int(0.2 * length))
        log.mu[i, run] = 0.0
        log.pi_s[i, run] = -3 + rng.normal(size=log.mu[i, run].size)  # type: ignore[index]
    return log


def prompt_counted(rng: Rng) -> Log:
    """The mask begins some tokens too early: prompt tokens with the fill value 0."""
    log = bf16(rng)
    log.mu[:, :6] = 0.0
    log.pi_s[:, :6] = -3 + rng.normal(size=(len(log.mu), 6))  # type: ignore[index]
    return log


def zeros_scattered(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu[rng.random(log.mu.shape) < 0.03] = 0.0
    return log


def sentinel(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu[rng.random(log.mu.shape) < 0.02] = 1.0
    return log


def packed_without_reset(rng: Rng) -> Log:
    """First sequence of each pack clean, the later ones off by up to .06."""
    rows, pack = 80, 4
    scale = np.where(np.arange(rows) % pack == 0, 0.0, 0.04)
    log = plain(rng, np.repeat(scale, 100).reshape(rows, 100), rows=rows, length=100)
    if rng.random() < 0.5:
        log.pack = np.arange(rows) % pack
    return log


def rows_mispaired(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu = np.roll(log.mu, 1, axis=0)
    return log


def padding_shift(rng: Rng) -> Log:
    """Left-padded lists read as right-padded: each row is shifted by its own padding."""
    log = bf16(rng)
    for i in range(len(log.mu)):
        log.mu[i] = np.roll(log.mu[i], int(rng.integers(3, 60)))
    return log


# -- C: non-finite
# -----------------------------------------------------------------------------------------------------


def null_tokens(rng: Rng) -> Log:
    log = bf16(rng)
    for i in rng.choice(len(log.mu), 3, replace=False):
        log.mu[i, int(rng.integers(5, 140))] = np.nan
    return log


def poisoned_rows(rng: Rng) -> Log:
    """From a NaN on, all of a row is lost; in one row, all of it."""
    log = bf16(rng)
    log.mu[7] = np.nan
    log.mu[11, 90:] = np.nan
    return log


def trainer_nan(rng: Rng) -> Log:
    log = bf16(rng)
    log.pi_s[3, 17] = np.nan  # type: ignore[index]
    log.pi_s[9, 2] = np.nan  # type: ignore[index]
    return log


def impossible_token(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu[4, 40], log.pi_s[4, 40] = -25.0, -5.0  # type: ignore[index]
    return log


def floored(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu[rng.random(log.mu.shape) < 0.001] = -9999.0
    log.mu[1, 1] = -9999.0
    return log


def infinite(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu[2, 7] = -np.inf
    log.mu[5, 9] = -np.inf
    return log


# -- D: engine numerics
# ------------------------------------------------------------------------------------------------


def drifting(rng: Rng, first: float = 0.017, last: float = 0.055, steps: int = 30) -> Log:
    rows, length = 120, 80
    sd = np.repeat(np.linspace(first, last, steps)[steps_of(rows, steps) - 1], length).reshape(rows, length)
    return noisy(rng, sd, rows=rows, length=length, **in_steps(rows, steps))


def growing_with_position(rng: Rng) -> Log:
    rows, length = 60, 240
    scale = np.tile(0.02 * np.exp(np.linspace(0, 2.6, length)), rows)
    return build(rng, engine(scale), rows=rows, length=length)


def tile_boundary(rng: Rng) -> Log:
    """Errors begin at one absolute position in every row."""
    rows, length = 60, 240
    scale = np.tile(np.where(np.arange(length) < 128, 0.03, 0.4), rows)
    return build(rng, engine(scale), rows=rows, length=length)


def centred(rng: Rng, sd: float, **kw: Any) -> Log:
    """Huge noise with a mean ratio of one."""
    log = plain(rng, sd, **kw)
    log.pi_s = log.pi_s - sd**2 / 2  # type: ignore[operator]
    return log


def broken_kv(rng: Rng) -> Log:
    return centred(rng, 3.0) if rng.random() < 0.5 else plain(rng, 3.0)


def wrong_definition(rng: Rng) -> Log:
    rows = 64
    columns = in_steps(rows, 8) if rng.random() < 0.5 else {}
    if rng.random() < 0.5:
        return plain(rng, 0.2, rows=rows, **columns)
    return build(rng, engine(0.34), rows=rows, **columns)


def one_row_in_six(rng: Rng) -> Log:
    rows, length = 96, 100
    bad = rng.random(rows) < 1 / 6
    bad[:2] = True, False
    sd = np.where(bad, rng.uniform(1.5, 3.0, rows), 0.03)
    scale = np.repeat(sd, length)
    if rng.random() < 0.5:
        return build(rng, engine(scale), rows=rows, length=length)
    return plain(rng, scale.reshape(rows, length), rows=rows, length=length)


def trainer_self_noise(rng: Rng) -> Log:
    """The trainer's two passes at the same weights differ."""
    rows = 64
    log = build(rng, engine(0.0), rows=rows, **in_steps(rows, 4))
    base = log.pi_s
    assert base is not None
    log.pi_s = base + 0.055 * rng.normal(size=log.mu.shape)
    log.pi = base + 0.055 * rng.normal(size=log.mu.shape)
    return log


def routing_mixture(rng: Rng) -> Log:
    rows, length = 64, 150
    sd = np.where(rng.random((rows, length)) < 0.1, 0.3, 0.02)
    return noisy(rng, sd, rows=rows, length=length)


def few_heavy_tokens(rng: Rng) -> Log:
    rows, length = 80, 150
    sd = np.where(rng.random((rows, length)) < 0.008, float(rng.uniform(3, 8)), 0.02)
    return plain(rng, sd, rows=rows, length=length)


def fixed_per_token(rng: Rng) -> Log:
    """A fixed precision error per token type, beside a small policy change."""
    log = build(rng, engine(0.0), rows=64, vocab=300, **in_steps(64, 4))
    beta = 0.03 * rng.normal(size=300)
    log.mu = log.mu + beta[log.ids]
    log.pi = log.pi_s + 0.01 * rng.normal(size=log.mu.shape)  # type: ignore[operator]
    return log


def thirtyfold(rng: Rng) -> Log:
    return drifting(rng, 0.02, 0.6, 20)


# -- E: weights, caches, versions
# --------------------------------------------------------------------------------------


def pinned(rng: Rng, *, column: str = "pi") -> Log:
    """The sampler never left step 0 while its version claims a sync every 4 steps."""
    rows, length, steps = 120, 80, 24
    step = steps_of(rows, steps)
    trainer = step - 1
    claimed = trainer // 4 * 4
    rate = 0.04

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        k = trainer[at // length]
        mu = log_softmax(noise(rng, z, BF16))
        direction = rng.standard_normal(size=z.shape, dtype=np.float32)
        pi = log_softmax(z + rate * k[:, None] * direction)
        if column == "pi":
            return {"sample": mu, "mu": mu, "pi_s": log_softmax(z), "pi": pi}
        at_claim = log_softmax(z + rate * claimed[at // length][:, None] * direction)
        return {"sample": mu, "mu": mu, "pi_s": at_claim, "pi": pi}

    return build(rng, law, rows=rows, length=length, step=step, version=claimed, trainer_version=trainer)


def stale_prefix_cache(rng: Rng) -> Log:
    """After each sync, rows with a shared prompt carry an older version's error, decaying along the row."""
    rows, length, steps = 96, 120, 12
    columns = in_steps(rows, steps)
    shared = np.arange(rows) % 8 < 4
    prompts = [[1, 7, 7, int(i) // 8 * 0 + 5] if shared[i] else [1, 2000 + i] for i in range(rows)]
    old = np.where(shared & (columns["step"] > 1), 0.5, 0.0)
    scale = np.hypot((old[:, None] * np.exp(-np.arange(length) / 25)).ravel(), BF16)
    return build(
        rng,
        engine(scale),
        rows=rows,
        length=length,
        prompts=prompts,
        group=np.where(shared, 0, 1 + np.arange(rows)),
        **columns,
    )


def spanning_a_sync(rng: Rng) -> Log:
    """First half of each row sampled by the weights before a sync, second half by those after."""
    rows, length = 64, 150
    columns = in_steps(rows, 6)
    change = np.full(rows, length // 2) if rng.random() < 0.5 else rng.integers(40, 110, rows)
    size = float(rng.choice([0.02, 0.15]))
    floor = size / 10
    scale = np.where(np.arange(length)[None] < change[:, None], size, floor).ravel()
    return build(rng, engine(scale), rows=rows, length=length, **columns)


def rounded_merge(rng: Rng) -> Log:
    """d is 0 at the first step and constant after: a small update lost on a coarse grid."""
    rows, length, steps = 80, 100, 10
    columns = in_steps(rows, steps)
    sd = np.repeat(np.where(columns["step"] == 1, 0.0, 0.05), length).reshape(rows, length)
    return noisy(rng, sd, rows=rows, length=length, **columns)


def corrupt_after_second_sync(rng: Rng) -> Log:
    rows, length, steps = 80, 100, 10
    columns = in_steps(rows, steps)
    bad = columns["step"] > 2
    if rng.random() < 0.4:
        bad &= rng.random(rows) < 0.6
    scale = np.repeat(np.where(bad, 3.0, BF16), length)
    return build(rng, engine(scale), rows=rows, length=length, **columns)


def lag_of_three(rng: Rng) -> Log:
    """Three updates a batch; the lag's variance grows as the square of the version gap."""
    rows, length, steps = 120, 80, 12
    step = steps_of(rows, steps)
    gap = rng.integers(1, 4, rows)
    c = float(rng.uniform(0.05, 0.4))
    scale = np.repeat(c * gap, length)

    def law(rng: Rng, z: np.ndarray, at: np.ndarray) -> dict[str, np.ndarray]:
        mu = log_softmax(noise(rng, z, BF16))
        return {"sample": mu, "mu": mu, "pi_s": log_softmax(z), "pi": log_softmax(noise(rng, z, scale[at]))}

    return build(
        rng, law, rows=rows, length=length, step=step, version=3 * step - gap, trainer_version=3 * step
    )


def fp8_series(rng: Rng) -> Log:
    """Synced every step: KL .0100, .0142, .0208, .0313 per block of steps."""
    rows, length, steps = 128, 80, 32
    kl = np.array([0.0100, 0.0142, 0.0208, 0.0313])
    columns = in_steps(rows, steps)
    sd = np.sqrt(2 * kl)[(columns["step"] - 1) // 8]
    return noisy(rng, np.repeat(sd, length).reshape(rows, length), rows=rows, length=length, **columns)


def sync_skipped(rng: Rng) -> Log:
    """Two syncs of ten did not arrive.

    There, and only there, the claimed weights do not explain the engine.
    """
    rows, length, steps = 120, 80, 12
    columns = in_steps(rows, steps)
    missed = np.isin(columns["step"], [5, 9])
    scale = np.repeat(np.where(missed, 0.35, BF16), length)
    return build(rng, engine(scale), rows=rows, length=length, **columns)


def stale_replica(rng: Rng) -> Log:
    """One engine of four is never synced: a quarter of the rows drifts away, step by step."""
    rows, length, steps = 128, 80, 16
    columns = in_steps(rows, steps)
    stale = np.arange(rows) % 4 == 3
    scale = np.repeat(np.where(stale, 0.06 * (columns["step"] - 1), 0.0), length)
    return build(rng, engine(np.hypot(scale, BF16)), rows=rows, length=length, **columns)


def slept_weights(rng: Rng) -> Log:
    """From one step on the engine serves old weights: .015 -> .2 at once, and it stays."""
    rows, length, steps = 96, 100, 12
    columns = in_steps(rows, steps)
    scale = np.repeat(np.where(columns["step"] >= 5, 0.45, 0.03), length)
    return build(rng, engine(scale), rows=rows, length=length, **columns)


# -- F: metrics that mislead
# -------------------------------------------------------------------------------------------


def clamped_mixture(rng: Rng) -> Log:
    """98% of sd .2 and 2% of sd 2.5: raw ESS .003, clamped .95."""
    rows, length = 100, 200
    log = build(rng, engine(0.0), rows=rows, length=length)
    sd = np.where(rng.random((rows, length)) < 0.02, 2.5, 0.2)
    log.pi_s = log.mu + sd * rng.normal(size=log.mu.shape)
    return log


def bypass(rng: Rng) -> Log:
    log = bf16(rng)
    log.pi_s = log.mu.copy()
    log.entropy = None
    return log


def overwritten(rng: Rng) -> Log:
    log = bf16(rng)
    log.mu = log.pi_s.copy()  # type: ignore[union-attr]
    log.entropy = None
    return log


# -- curves
# ------------------------------------------------------------------------------------------------------------


def _jitter(rng: Rng, values: np.ndarray, size: float = 0.05) -> np.ndarray:
    return values * np.exp(size * rng.normal(size=len(values)))


def curve_drift(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {"step": step, "train/train_rollout_logprob_abs_diff": _jitter(rng, np.linspace(0.011, 0.036, 30))}


def curve_level(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 41)
    return {"step": step, "train/train_rollout_logprob_abs_diff": _jitter(rng, rng.uniform(0.11, 0.139, 40))}


def curve_probability(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 41)
    return {"step": step, "training/rollout_probs_diff_mean": _jitter(rng, np.full(40, 0.025))}


def curve_pinned(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 101)
    kl = 0.0005 * (1 + 35 * (step / 100) ** 2)
    return {
        "step": step,
        "rollout_corr/kl": _jitter(rng, kl, 0.08),
        "fully_async/count/current_param_version": step // 4,
    }


def curve_rounding(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    values = np.where(step == 1, 0.0, 0.04)
    return {"step": step, "train_rollout_logprob_abs_diff": _jitter(rng, values)}


def curve_jump(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 41)
    return {
        "step": step,
        "sampling/sampling_logp_difference/mean": _jitter(rng, np.where(step < 12, 0.015, 0.201)),
    }


def curve_fp8_series(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 33)
    kl = np.array([0.0100, 0.0142, 0.0208, 0.0313])[(step - 1) // 8]
    return {"step": step, "rollout_corr/kl": _jitter(rng, kl)}


def curve_clamped(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {
        "step": step,
        "rollout_corr/rollout_is_eff_sample_size": _jitter(rng, np.full(30, 0.948), 0.005),
        "rollout_corr/chi2_token": _jitter(rng, np.full(30, 330.0), 0.3),
        "rollout_corr/kl": _jitter(rng, np.full(30, 0.02)),
    }


def curve_sequence_sum(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {
        "step": step,
        "sampling/importance_sampling_ratio/mean": _jitter(rng, np.full(30, 0.569)),
        "sampling/sampling_logp_difference/mean": _jitter(rng, np.full(30, 0.016)),
    }


def curve_swift(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {
        "step": step,
        "rollout_correction/ess": _jitter(rng, np.full(30, 0.93), 0.005),
        "rollout_correction/chi2_token": _jitter(rng, np.full(30, 10.4), 0.1),
        "rollout_correction/kl": _jitter(rng, np.full(30, 0.01)),
    }


def curve_ess_above_one(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {"step": step, "train/ess_ratio": _jitter(rng, np.full(30, 1.25), 0.01)}


def curve_zero(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {"step": step, "rollout_corr/kl": np.zeros(30), "rollout_corr/k3_kl": np.zeros(30)}


def curve_infinite(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 31)
    return {
        "step": step,
        "rollout_corr/k3_kl": np.where(step == 17, np.inf, _jitter(rng, np.full(30, 0.001))),
    }


def curve_lag(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 49)
    kl = 0.001 + 0.004 * ((step - 1) % 8) ** 2
    return {"step": step, "rollout_corr/kl": _jitter(rng, kl)}


def curve_entropy_collapse(rng: Rng) -> dict[str, Any]:
    step = np.arange(1, 101)
    return {
        "step": step,
        "mismatch_kl/all/mean": _jitter(rng, 1e-3 * np.exp(np.linspace(0, 6.9, 100)), 0.1),
        "entropy/all/mean": _jitter(rng, np.linspace(0.6, 0.05, 100)),
    }


PUBLIC: Mapping[str, Case] = MappingProxyType(
    {
        "C01": Case(
            kind=SAMPLED, make=raw_at_temperature(0.6), formats=("canonical", "nemo_rl", "slime", "prime_rl")
        ),
        "C03": Case(kind=SAMPLED, make=top_p_processed, formats=("canonical", "nemo_rl", "prime_rl")),
        "C05": Case(kind=NUMERICS, make=drifting),
        "C05 curve": Case(kind=NUMERICS, make=curve_drift, formats=("csv", "curve")),
        "C07": Case(kind=SAMPLED, make=top_one_stored, formats=("canonical", "nemo_rl", "prime_rl")),
        "C09": Case(kind=ALIGNMENT, make=suffix_shifted, formats=("canonical", "nemo_rl", "prime_rl")),
        "C09 lengths": Case(kind=ALIGNMENT, make=one_too_long),
        "C11": Case(kind=ALIGNMENT, make=eos_appended, formats=("canonical", "nemo_rl", "slime")),
        "C13": Case(kind=ALIGNMENT, make=retokenised, formats=("canonical", "prime_rl")),
        "C13 ids": Case(kind=ALIGNMENT, make=ids_differ),
        "C15": Case(kind=ALIGNMENT, make=double_bos, formats=("canonical", "nemo_rl")),
        "C16": Case(kind=ALIGNMENT, make=tool_tokens_counted, formats=("canonical", "nemo_rl", "slime")),
        "C20": Case(kind=ALIGNMENT, make=packed_without_reset, also=(NUMERICS,)),
        "C21": Case(kind=NONFINITE, make=null_tokens, formats=("canonical", "prime_rl", "vllm_chat")),
        "C23": Case(kind=NONFINITE, make=impossible_token, formats=("canonical", "nemo_rl", "prime_rl")),
        "C24": Case(kind=NUMERICS, make=growing_with_position, formats=("canonical", "nemo_rl")),
        "C24 curve": Case(kind=NUMERICS, make=curve_probability, formats=("csv",)),
        "C26": Case(kind=NUMERICS, make=broken_kv, formats=("canonical", "nemo_rl")),
        "C28": Case(kind=NUMERICS, make=wrong_definition, formats=("canonical",)),
        "C28 curve": Case(kind=NUMERICS, make=curve_level, formats=("csv",)),
        "C29": Case(kind=NUMERICS, make=one_row_in_six, formats=("canonical", "nemo_rl")),
        "C31": Case(kind=NUMERICS, make=trainer_self_noise),
        "C32": Case(kind=NUMERICS, make=routing_mixture, formats=("canonical", "nemo_rl")),
        "C34": Case(kind=NUMERICS, make=few_heavy_tokens, formats=("canonical", "nemo_rl")),
        "C35": Case(kind=NUMERICS, make=fixed_per_token),
        "C36": Case(kind=NUMERICS, make=thirtyfold),
        "C36 curve": Case(kind=NUMERICS, make=curve_entropy_collapse, formats=("csv",)),
        "C37": Case(kind=WEIGHTS, make=pinned),
        "C37 claimed": Case(kind=WEIGHTS, make=lambda rng: pinned(rng, column="claimed")),
        "C37 curve": Case(kind=WEIGHTS, make=curve_pinned, formats=("csv",)),
        "C39": Case(kind=WEIGHTS, make=stale_prefix_cache),
        "C41": Case(kind=WEIGHTS, make=spanning_a_sync),
        "C42": Case(kind=WEIGHTS, make=rounded_merge),
        "C42 curve": Case(kind=WEIGHTS, make=curve_rounding, formats=("csv",)),
        "C43": Case(kind=WEIGHTS, make=corrupt_after_second_sync),
        "C45": Case(kind=LAG, make=lag_of_three),
        "C48": Case(kind=NUMERICS, make=fp8_series),
        "C48 curve": Case(kind=NUMERICS, make=curve_fp8_series, formats=("csv",)),
        "C49": Case(kind=METRICS, make=clamped_mixture),
        "C49 curve": Case(kind=METRICS, make=curve_clamped, formats=("csv", "curve")),
        "C51": Case(kind=METRICS, make=curve_sequence_sum, formats=("csv",)),
        "C52": Case(kind=METRICS, make=bypass, formats=("canonical", "nemo_rl", "slime")),
        "C52 curve": Case(kind=METRICS, make=curve_zero, formats=("csv",)),
        "C53": Case(kind=METRICS, make=overwritten),
    }
)
"""Cases with a public source, by the number under which it is known"""

FURTHER: Mapping[str, Case] = MappingProxyType(
    {
        "raw T=0.8": Case(kind=SAMPLED, make=raw_at_temperature(0.8)),
        "raw T=1.2": Case(kind=SAMPLED, make=raw_at_temperature(1.2)),
        "trainer forgets T": Case(kind=SAMPLED, make=untempered_trainer),
        "top-k": Case(kind=SAMPLED, make=top_k_processed),
        "top-p with bf16": Case(kind=SAMPLED, make=lambda rng: top_p_processed(rng, BF16)),
        "top-p raw": Case(kind=SAMPLED, make=top_p_raw, formats=("canonical", "prime_rl")),
        "top-p .95 raw bf16": Case(kind=SAMPLED, make=lambda rng: top_p_raw(rng, 0.95, BF16)),
        "T=.6 raw, trainer 1": Case(kind=SAMPLED, make=cold_raw),
        "repetition penalty": Case(kind=SAMPLED, make=lambda rng: repetition_penalty(rng, raw=False)),
        "repetition penalty raw": Case(kind=SAMPLED, make=lambda rng: repetition_penalty(rng, raw=True)),
        "draft reported": Case(kind=SAMPLED, make=draft_reported),
        "probabilities": Case(kind=SAMPLED, make=probabilities),
        "base ten": Case(kind=SAMPLED, make=base_ten),
        "shift +1": Case(kind=ALIGNMENT, make=shifted(1), formats=("canonical", "nemo_rl", "prime_rl")),
        "shift -1": Case(kind=ALIGNMENT, make=shifted(-1)),
        "prompt counted": Case(kind=ALIGNMENT, make=prompt_counted),
        "zeros scattered": Case(kind=ALIGNMENT, make=zeros_scattered),
        "sentinel": Case(kind=ALIGNMENT, make=sentinel, formats=("canonical", "open_instruct")),
        "rows mispaired": Case(kind=ALIGNMENT, make=rows_mispaired),
        "padding shift": Case(kind=ALIGNMENT, make=padding_shift),
        "poisoned rows": Case(kind=NONFINITE, make=poisoned_rows, formats=("canonical", "vllm_chat")),
        "trainer NaN": Case(kind=NONFINITE, make=trainer_nan, formats=("canonical", "prime_rl")),
        "floored": Case(kind=NONFINITE, make=floored, formats=("canonical", "vllm_chat", "open_instruct")),
        "infinite": Case(kind=NONFINITE, make=infinite),
        "infinite curve": Case(kind=NONFINITE, make=curve_infinite, formats=("csv",)),
        "tile boundary": Case(kind=NUMERICS, make=tile_boundary, also=(WEIGHTS,)),
        "sync skipped": Case(kind=WEIGHTS, make=sync_skipped),
        "stale replica": Case(kind=WEIGHTS, make=stale_replica),
        "slept weights": Case(kind=WEIGHTS, make=slept_weights),
        "jump curve": Case(kind=WEIGHTS, make=curve_jump, formats=("csv",)),
        "ms-swift ess": Case(kind=METRICS, make=curve_swift, formats=("csv",)),
        "ess above one": Case(kind=METRICS, make=curve_ess_above_one, formats=("csv",)),
        "lag curve": Case(kind=LAG, make=curve_lag, formats=("csv",)),
        "healthy lag": Case(kind=LAG, make=lagged),
    }
)
"""Faults of the same kinds that are on no list"""

CASES: Mapping[str, Case] = MappingProxyType({**PUBLIC, **FURTHER})
