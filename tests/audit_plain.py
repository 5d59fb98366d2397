"""The same faults in a plainer world: log-probs from a simple law, no vocabulary, noise of one size.

A second simulation beside `audit_cases`, with nothing shared but the writers: what a detector learnt from the
habits of one generator, it must not need in the other. Such noise is no softmax: log-probs may exceed 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from audit_cases import ALIGNMENT, LAG, METRICS, NONFINITE, NUMERICS, SAMPLED, WEIGHTS
from audit_logs import Log, steps_of

HEALTHY = "healthy"
Rng = np.random.Generator


class World:
    """Engine log-probs of `rows` responses of `length` tokens, and noise of their shape."""

    def __init__(self, rng: Rng, rows: int, length: int) -> None:
        self.rng, self.rows, self.length = rng, rows, length
        shape = rows, length
        sure = rng.random(shape) < 0.7
        p = np.where(sure, rng.beta(20, 1, shape), rng.beta(0.6, 2, shape).clip(1e-4, 0.999))
        self.mu = np.log(p)
        self.ids = rng.integers(0, 1500, shape)
        self.place = np.arange(length)

    def normal(self, sd: Any) -> np.ndarray:
        return np.asarray(sd) * self.rng.normal(size=self.mu.shape)

    def log(self, noise: Any, **columns: Any) -> Log:
        """A log whose trainer side differs by `noise`."""
        return Log(**({"ids": self.ids, "mu": self.mu, "pi_s": self.mu - noise} | columns))

    def synced(self, steps: int) -> dict[str, Any]:
        """Columns of a run that syncs before every step."""
        step = steps_of(self.rows, steps)
        return {"step": step, "version": step.copy(), "trainer_version": step.copy()}

    def marked(self, share: float) -> np.ndarray:
        return self.rng.random(self.mu.shape) < share


def column(values: np.ndarray) -> np.ndarray:
    return np.asarray(values)[:, None]


def lag(w: World, rate: float = 0.04) -> Log:
    synced = w.synced(12)
    version = synced["step"] // 4 * 4
    trainer = w.mu - w.normal(0.03)
    now = trainer - w.normal(column(rate * (synced["step"] - version)))
    return Log(ids=w.ids, mu=w.mu, pi_s=trainer, pi=now, **(synced | {"version": version}))


def without(log: Log, *names: str) -> Log:
    for name in names:
        setattr(log, name, None)
    return log


def drift(w: World, first: float, last: float, *, geometric: bool = False) -> Log:
    synced = w.synced(12)
    at = (synced["step"] - 1) / 11
    sd = first * (last / first) ** at if geometric else first + (last - first) * at
    return w.log(w.normal(column(sd)), **synced)


def suffix(w: World) -> Log:
    log = w.log(w.normal(0.03))
    assert log.pi_s is not None
    for k in w.rng.choice(w.rows, max(1, w.rows // 50), replace=False):
        t = int(w.rng.integers(5, w.length - 15))
        log.pi_s[k, t + 1 :] = log.pi_s[k, t:-1].copy()
        log.pi_s[k, t] = -w.rng.exponential(6)
    return log


def replaced(w: World) -> Log:
    log, at = w.log(w.normal(0.03)), w.marked(0.02)
    assert log.pi_s is not None
    log.pi_s[at] = -w.rng.uniform(5, 30, int(at.sum()))
    return log


def after_tools(w: World) -> Log:
    """Ids replaced in short stretches, one a row."""
    log = w.log(w.normal(0.03))
    assert log.pi_s is not None
    for k in range(w.rows):
        t = int(w.rng.integers(0, w.length - 6))
        at = np.arange(t, t + 6)[w.rng.random(6) < 0.6]
        log.pi_s[k, at] -= w.rng.uniform(5, 30, len(at))
    return log


def appended(w: World) -> Log:
    log = w.log(w.normal(0.03))
    assert log.pi_s is not None
    log.mu = w.mu.copy()
    log.mu[:, -1], log.pi_s[:, -1] = 0.0, -4 + 0.7 * w.rng.normal(size=w.rows)
    return log


def tools(w: World) -> Log:
    log, run = w.log(w.normal(0.03)), w.length // 5
    assert log.pi_s is not None
    log.mu = w.mu.copy()
    for k in range(w.rows):
        t = int(w.rng.integers(0, w.length - run))
        log.mu[k, t : t + run], log.pi_s[k, t : t + run] = 0.0, -3 + w.rng.normal(size=run)
    return log


def impossible(w: World) -> Log:
    log = w.log(w.normal(0.03))
    assert log.pi_s is not None
    log.mu = w.mu.copy()
    log.mu[1, 3], log.pi_s[1, 3] = -25.0, -5.0
    return log


def bad_rows(w: World) -> Log:
    bad = w.rng.permutation(w.rows) % 6 == 0
    return w.log(w.normal(column(np.where(bad, w.rng.uniform(1.5, 3, w.rows), 0.03))))


def self_noise(w: World, *, versions: bool = True) -> Log:
    log = w.log(w.normal(0.055), pi=w.mu + w.normal(0.055), **w.synced(4))
    return log if versions else without(log, "version", "trainer_version")


def pinned(w: World, *names: str) -> Log:
    synced = w.synced(20)
    now = w.mu - w.normal(column(0.05 * synced["step"]))
    log = w.log(w.normal(0.02), pi=now, **(synced | {"version": synced["step"] // 4 * 4}))
    return without(log, *names)


def stale_cache(w: World, *, prompts: bool = True) -> Log:
    synced = w.synced(8)
    shared = np.arange(w.rows) % 2 == 0
    size = column(np.where(shared & (synced["step"] > 1), 0.4, 0.0)) * np.exp(-w.place / (w.length / 8))
    said = [[1, 2, 3] if shared[k] and prompts else [1, 10 + k * prompts] for k in range(w.rows)]
    return w.log(w.normal(np.hypot(size, 0.02)), prompts=said, **synced)


def spanning(w: World) -> Log:
    return w.log(w.normal(np.where(w.place < w.length // 2, 0.1, 0.01)), **w.synced(5))


def spanning_in_the_lag(w: World) -> Log:
    synced, trainer = w.synced(5), w.mu - w.normal(0.02)
    now = trainer - w.normal(np.where(w.place < w.length // 2, 0.1, 0.05))
    return Log(ids=w.ids, mu=w.mu, pi_s=trainer, pi=now, **(synced | {"version": synced["step"] - 1}))


def lag_of_three(w: World, *, constant: bool = False) -> Log:
    synced = w.synced(12)
    k = np.full(w.rows, 3) if constant else w.rng.integers(0, 4, w.rows)
    trainer = w.mu - w.normal(0.03)
    now = trainer - w.normal(column(0.1 * k))
    return Log(ids=w.ids, mu=w.mu, pi_s=trainer, pi=now, **(synced | {"version": synced["step"] - k}))


def by_step(w: World, steps: int, sd: Callable[[np.ndarray], Any]) -> Log:
    synced = w.synced(steps)
    return w.log(w.normal(column(sd(synced["step"]))), **synced)


def holes(w: World, column: str, rows: int, begin: float) -> Log:
    """Nulls from a place on in every so many rows, in one column."""
    log = w.log(w.normal(0.03))
    values = np.array(getattr(log, column))
    values[::rows, int(begin * w.length) :] = np.nan
    setattr(log, column, values)
    return log


def one_sync_missed(w: World) -> Log:
    """Eight steps with one sync on record, which did not arrive."""
    synced = w.synced(8)
    now = w.mu - w.normal(column(0.08 * (synced["step"] - 1)))
    return w.log(w.normal(0.02), pi=now, **(synced | {"version": 1 + (synced["step"] - 1) // 4 * 4}))


def asynchronous(w: World, *, pinned: bool) -> Log:
    """Rows of one step claim weights of several ages; the policy moves faster and faster."""
    synced = w.synced(12)
    step = synced["step"].astype(float)
    k = w.rng.integers(0, 5, w.rows)
    size = 0.05 * step if pinned else 0.01 * step * k
    trainer = w.mu - w.normal(0.02)
    now = trainer - w.normal(column(size))
    return Log(ids=w.ids, mu=w.mu, pi_s=trainer, pi=now, **(synced | {"version": synced["step"] - k}))


def interpolated(w: World) -> Log:
    """The trainer's middle log-probs are drawn as a line between the engine's and its own."""
    log = lag(w)
    assert log.pi is not None
    log.pi_s = log.mu + column(w.rng.uniform(0.2, 0.8, w.rows)) * (log.pi - log.mu)
    return log


def fixed_per_token(w: World) -> Log:
    beta = 0.03 * w.rng.normal(size=1500)[w.ids]
    return w.log(beta, pi=w.mu - beta - w.normal(0.01), **w.synced(4))


PLAIN: Mapping[str, tuple[str, Callable[[World], Log]]] = MappingProxyType(
    {
        "bf16": (HEALTHY, lambda w: w.log(w.normal(0.03))),
        "bf16 below 0": (HEALTHY, lambda w: w.log(w.mu - np.minimum(w.mu - w.normal(0.03), 0))),
        "bf16 by probability": (HEALTHY, lambda w: w.log(w.normal(0.1) * (1 - np.exp(w.mu)))),
        "fp8 by probability": (HEALTHY, lambda w: w.log(w.normal(0.22) * (1 - np.exp(w.mu)))),
        "fp8": (HEALTHY, lambda w: w.log(w.normal(0.13))),
        "laplace": (HEALTHY, lambda w: w.log(w.rng.laplace(0, 0.03, w.mu.shape) * (1 - np.exp(w.mu)))),
        "lag": (HEALTHY, lag),
        "lag of a policy that speeds up": (HEALTHY, lambda w: asynchronous(w, pinned=False)),
        "lag in the total": (HEALTHY, lambda w: without(lag(w), "pi_s")),
        "lag, no versions": (HEALTHY, lambda w: without(lag(w), "version", "trainer_version")),
        "total, no versions": (HEALTHY, lambda w: without(lag(w), "pi_s", "version", "trainer_version")),
        "C05": (NUMERICS, lambda w: drift(w, 0.017, 0.055)),
        "C05 no versions": (
            NUMERICS,
            lambda w: without(drift(w, 0.017, 0.055), "version", "trainer_version"),
        ),
        "C09": (ALIGNMENT, suffix),
        "C11": (ALIGNMENT, appended),
        "C13": (ALIGNMENT, replaced),
        "C13 after tools": (ALIGNMENT, after_tools),
        "C15": (ALIGNMENT, lambda w: w.log(w.normal(0.5 * np.exp(-7 * w.place / w.length) + 0.001))),
        "C15 and bf16": (ALIGNMENT, lambda w: w.log(w.normal(0.5 * np.exp(-7 * w.place / w.length) + 0.02))),
        "C16": (ALIGNMENT, tools),
        "C20": (
            ALIGNMENT,
            lambda w: w.log(w.normal(column(np.where(np.arange(w.rows) % 4 == 0, 0.001, 0.03)))),
        ),
        "C23": (NONFINITE, impossible),
        "nulls in half of the rows": (NONFINITE, lambda w: holes(w, "mu", 2, 0.2)),
        "whole rows of nulls": (NONFINITE, lambda w: holes(w, "mu", 2, 0.0)),
        "nulls of the trainer": (NONFINITE, lambda w: holes(w, "pi_s", 2, 0.2)),
        "C24": (NUMERICS, lambda w: w.log(w.normal(np.linspace(0.01, 0.2, w.length)))),
        "C26": (NUMERICS, lambda w: w.log(4.5 + w.normal(3.0))),
        "C26 not centred": (NUMERICS, lambda w: w.log(w.normal(3.0))),
        "C28": (NUMERICS, lambda w: w.log(w.normal(0.2))),
        "C28 over steps": (NUMERICS, lambda w: w.log(w.normal(0.2), **w.synced(6))),
        "C29": (NUMERICS, bad_rows),
        "C31": (NUMERICS, self_noise),
        "C31 no versions": (NUMERICS, lambda w: self_noise(w, versions=False)),
        "C32": (NUMERICS, lambda w: w.log(w.normal(np.where(w.marked(0.1), 0.3, 0.02)))),
        "C34": (NUMERICS, lambda w: w.log(w.normal(np.where(w.marked(0.008), 4.0, 0.015)))),
        "C35": (NUMERICS, fixed_per_token),
        "C36": (NUMERICS, lambda w: drift(w, 0.02, 0.6, geometric=True)),
        "C37": (WEIGHTS, pinned),
        "C37 total": (WEIGHTS, lambda w: pinned(w, "pi_s")),
        "C37 total, claims only": (WEIGHTS, lambda w: pinned(w, "pi_s", "trainer_version")),
        "one sync missed": (WEIGHTS, one_sync_missed),
        "pinned, rows of several ages": (WEIGHTS, lambda w: asynchronous(w, pinned=True)),
        "C39": (WEIGHTS, stale_cache),
        "C41": (WEIGHTS, spanning),
        "C41 in the lag": (WEIGHTS, spanning_in_the_lag),
        "C42": (WEIGHTS, lambda w: by_step(w, 8, lambda s: np.where(s == 1, 0, 0.05))),
        "C43": (WEIGHTS, lambda w: by_step(w, 6, lambda s: np.where(s <= 2, 0.03, 3.0))),
        "C45": (LAG, lag_of_three),
        "strong lag in the total": (LAG, lambda w: without(lag(w, 0.35), "pi_s")),
        "C45 one gap": (LAG, lambda w: lag_of_three(w, constant=True)),
        "C48": (
            NUMERICS,
            lambda w: by_step(
                w, 16, lambda s: np.sqrt(2 * np.array([0.01, 0.0142, 0.0208, 0.0313]))[(s - 1) // 4]
            ),
        ),
        "C49": (METRICS, lambda w: w.log(w.normal(np.where(w.marked(0.02), 2.5, 0.2)))),
        "C52": (METRICS, lambda w: w.log(0.0)),
        "prox interpolated": (METRICS, interpolated),
        "syncs skipped": (
            WEIGHTS,
            lambda w: by_step(w, 12, lambda s: np.where(np.isin(s, [4, 8]), 0.25, 0.03)),
        ),
        "probabilities": (SAMPLED, lambda w: w.log(w.normal(0.03) + w.mu - w.mu, mu=np.exp(w.mu))),
        "shift": (ALIGNMENT, lambda w: w.log(w.normal(0.03), mu=np.roll(w.mu, 1, axis=1))),
        "sentinel -100": (
            ALIGNMENT,
            lambda w: w.log(w.normal(0.03), mu=np.where(w.marked(0.02), -100.0, w.mu)),
        ),
    }
)
