"""Synthetic logs with the signature of public cases, and healthy ones: arrays first.

Then files in the users' formats.

BASE is a small language model: 70% of the positions peaked, 30% flat, tokens drawn from the engine. Noise
comes in two
ways, as logit noise (it vanishes where the model is sure) and as plain noise on the difference (it does
not): real
simulations do either. Every function takes a Generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Logits = np.ndarray


@dataclass(kw_only=True)
class Log:
    """One log: rows of equal length, [N, L]; None is not logged."""

    ids: np.ndarray
    mu: np.ndarray
    pi_s: np.ndarray | None
    pi: np.ndarray | None = None
    entropy: np.ndarray | None = None
    kept: np.ndarray | None = None
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0))
    step: np.ndarray = field(default_factory=lambda: np.zeros(0))
    version: np.ndarray | None = None
    trainer_version: np.ndarray | None = None
    group: np.ndarray | None = None
    prompts: list[list[int]] = field(default_factory=list)
    pack: np.ndarray | None = None
    trainer_ids: np.ndarray | None = None
    lengths: np.ndarray | None = None
    sampling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        rows, length = self.ids.shape
        if self.mask.size == 0:
            self.mask = np.ones((rows, length), dtype=int)
        if self.step.size == 0:
            self.step = np.ones(rows, dtype=int)
        if not self.prompts:
            self.prompts = [[1, 1000 + i] for i in range(rows)]


def log_softmax(z: Logits) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def base_logits(rng: np.random.Generator, n: int, vocab: int) -> Logits:
    """Logits of `n` positions: with 1500 ids the figures of the detection battery come out."""
    peaked = rng.random(n) < 0.7
    z = rng.normal(size=(n, vocab)).astype(np.float32) * np.where(peaked, 1.0, 2.5)[:, None].astype(
        np.float32
    )
    top = rng.integers(vocab, size=n)
    z[np.arange(n), top] += np.where(peaked, 10.0 - np.log(1500 / vocab), 0.0)
    return z


def draw(rng: np.random.Generator, logp: np.ndarray) -> np.ndarray:
    """One id per position from log-probs (n, V)."""
    c = np.cumsum(np.exp(logp), -1)
    return np.minimum((c < rng.random((len(c), 1)) * c[:, -1:]).sum(-1), logp.shape[1] - 1)


def noise(rng: np.random.Generator, z: Logits, scale: Any) -> Logits:
    """`z` with logit noise of a scale per position or one for all."""
    scale = np.broadcast_to(np.asarray(scale, dtype=np.float32), (len(z),))
    return z + scale[:, None] * rng.standard_normal(size=z.shape, dtype=np.float32)


Law = Callable[[np.random.Generator, Logits, np.ndarray], dict[str, np.ndarray]]
"""From logits (n, V) and flat positions to log-prob rows: "sample" (drawn from), "mu" (reported), "pi_s".

Maybe "pi",
"kept" (n,)"""


def build(
    rng: np.random.Generator,
    law: Law,
    *,
    rows: int = 64,
    length: int = 150,
    vocab: int = 400,
    **columns: Any,
) -> Log:
    """Draw `rows` responses under a law."""
    n = rows * length
    out: dict[str, list[np.ndarray]] = {}
    chunk = max(1, 4_000_000 // vocab)
    for start in range(0, n, chunk):
        at = np.arange(start, min(start + chunk, n))
        z = base_logits(rng, len(at), vocab)
        made = law(rng, z, at)
        ids = draw(rng, made["sample"])
        pick = np.arange(len(at)), ids
        out.setdefault("ids", []).append(ids)
        for name in ("mu", "pi_s", "pi"):
            if name in made:
                value = made[name][pick] if made[name].ndim == 2 else made[name]
                out.setdefault(name, []).append(value.astype(np.float64))
        h = made.get("entropy_of", made["pi_s"] if made["pi_s"].ndim == 2 else made["sample"])
        out.setdefault("entropy", []).append(-(np.exp(h) * np.where(np.exp(h) > 0, h, 0)).sum(-1))
        if "kept" in made:
            out.setdefault("kept", []).append(made["kept"])
    joined: dict[str, Any] = {k: np.concatenate(v).reshape(rows, length) for k, v in out.items()}
    joined.setdefault("pi", None)
    return Log(**(joined | columns))


def engine(scale: Any) -> Law:
    """An engine with logit noise of `scale` (one number, or one per flat position)."""

    def law(rng: np.random.Generator, z: Logits, at: np.ndarray) -> dict[str, np.ndarray]:
        s = scale[at] if isinstance(scale, np.ndarray) else scale
        mu = log_softmax(noise(rng, z, s))
        return {"sample": mu, "mu": mu, "pi_s": log_softmax(z)}

    return law


def plain(rng: np.random.Generator, sd: Any, *, rows: int = 64, length: int = 150, **kw: Any) -> Log:
    """BASE with noise of `sd` put on the trainer's log-probs, whatever the probability."""
    log = build(rng, engine(0.0), rows=rows, length=length, **kw)
    assert log.pi_s is not None
    log.pi_s = log.pi_s - np.asarray(sd) * rng.normal(size=log.mu.shape)
    return log


def noisy(rng: np.random.Generator, sd: Any, **kw: Any) -> Log:
    """Either kind of noise: plain of `sd`, or logit noise that gives about the same rms over all tokens."""
    rows, length = kw.get("rows", 64), kw.get("length", 150)
    scale = np.broadcast_to(np.asarray(sd, dtype=float), (rows, length))
    if rng.random() < 0.5:
        return plain(rng, scale, **kw)
    return build(rng, engine((scale / LOGIT_TO_RMS).ravel()), **kw)


LOGIT_TO_RMS = 0.69
"""rms of d over the logit noise that causes it, on BASE"""


# -- healthy
# ---------------------------------------------------------------------------------------------------------


def steps_of(rows: int, steps: int) -> np.ndarray:
    return 1 + np.arange(rows) * steps // rows


def lagged(
    rng: np.random.Generator,
    *,
    rate: float = 0.03,
    sync_every: int = 4,
    steps: int = 12,
    numerics: float = 0.042,
    rows: int = 96,
    length: int = 100,
    vocab: int = 400,
    asynchronous: bool = False,
    **kw: Any,
) -> Log:
    """Three policies with true lag.

    The trainer's logits move along a fixed direction plus noise, `rate` a step.
    """
    step = steps_of(rows, steps)
    trainer = step - 1
    version = np.maximum(trainer - sync_every, 0) if asynchronous else (trainer // sync_every) * sync_every
    gap = np.repeat(trainer - version, length)

    def law(rng: np.random.Generator, z: Logits, at: np.ndarray) -> dict[str, np.ndarray]:
        mu = log_softmax(noise(rng, z, numerics))
        return {
            "sample": mu,
            "mu": mu,
            "pi_s": log_softmax(z),
            "pi": log_softmax(noise(rng, z, rate * gap[at])),
        }

    return build(
        rng,
        law,
        rows=rows,
        length=length,
        vocab=vocab,
        step=step,
        version=version,
        trainer_version=trainer,
        group=np.arange(rows) // 4,
        **kw,
    )


def at_step_start(log: Log) -> Log:
    """The log as NeMo-RL and slime write it: the trainer at the start of the step, lag included."""
    if log.pi is not None:
        log.pi_s, log.pi = log.pi, None
    return log


def healthy(rng: np.random.Generator) -> tuple[str, Log]:
    """One healthy log of any kind, with a word for it."""
    rows, length = int(rng.integers(8, 160)), int(rng.choice([8, 20, 60, 150, 300]))
    rows = min(rows, 24_000 // length)
    kw: dict[str, Any] = {"rows": rows, "length": length, "vocab": int(rng.choice([200, 400, 1000]))}
    kind = str(rng.choice(["bf16", "fp8", "plain", "lagged", "asynchronous", "steps"]))
    if kind == "bf16":
        return kind, build(rng, engine(float(rng.uniform(0.02, 0.06))), **kw)
    if kind == "fp8":
        return kind, build(rng, engine(float(rng.uniform(0.1, 0.2))), **kw)
    if kind == "plain":
        return kind, plain(rng, float(rng.uniform(0.005, 0.06)), **kw)
    if kind == "steps":
        steps = int(rng.integers(2, 12))
        step = steps_of(rows, steps)
        numbers = float(rng.choice([0.042, 0.15]))
        return kind, build(rng, engine(numbers), step=step, version=step - 1, trainer_version=step - 1, **kw)
    rate = float(rng.uniform(0.01, 0.06))
    asynchronous = kind == "asynchronous"
    sync = int(rng.integers(1, 5))
    return kind, lagged(rng, rate=rate, sync_every=sync, asynchronous=asynchronous, **kw)
