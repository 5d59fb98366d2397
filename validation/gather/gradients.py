"""Claims about mean gradients, on small steps of the toy: centring, the loop, the excess of centring.

Runs of their own, with a learning rate at which the first order can be seen: eight training seeds whose mean
stands for the mean path. The closed forms are those of theory/, pulled back to the toy's shared weights by
`validation.gather.shared_weights`. Suffixes: S training seeds, K steps, P weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from theory.corrections import correction
from theory.experiment import Experiment, Numerics
from theory.feedback import lag_path, period_deviation
from theory.gradient import baseline_drift, discrepancy_bias
from toy.settings import STALE, Bandit, setting_s
from toy.settings import bandit as bandit_setting
from toy.simulate import ensemble
from validation.gather import shared_weights as shared
from validation.plan import LOGIT_NOISE

SEEDS = 8
STILL = 1e-4
"""Learning rate at which 40 batches come from one policy: lag moves the bias by a few per mille at .01"""
SMALL = 0.1
"""Learning rate of the loop: 40 steps are t = 4, where the linear law was within 3% on environments 0, 1, 20
and 21"""
FROM_STEP = 5
"""The lag of the first steps is one batch's noise"""
EXCESS_STEP = 20
"""t = 2 and, at half the learning rate, 1"""


def _weights(experiment: Experiment) -> np.ndarray:
    """Weights after each step, (S, K, P), float64."""
    theta = ensemble(experiment, seeds=SEEDS).theta
    return theta.reshape(*theta.shape[:2], -1).astype(np.float64)


def mean_norm(moved_SP: np.ndarray, /) -> float:
    """Norm of the mean over seeds, without what the seeds' own noise adds: products of different seeds."""
    n = len(moved_SP)
    square = (moved_SP.sum(0) ** 2).sum() - (moved_SP**2).sum()
    return math.sqrt(max(square / (n * (n - 1)), 0.0))


def _stale(env: int, rule: str, lr: float, **changes: Any) -> Experiment:
    stale = {"sync_every": STALE, "baseline": "none", "seed": 31}
    return setting_s(env, lr=lr, correction=rule, **(stale | changes))


def _bandit(env: int, rule: str, lr: float, **changes: Any) -> Experiment:
    """One-step bandit at the batch size of the other runs."""
    return bandit_setting(env, lr=lr, correction=rule, sync_every=STALE, samples=128, seed=31, **changes)


def centering(env: int) -> dict[str, float]:
    """Bias of the first gradient under a noisy engine, before and after centring."""
    noise = Numerics(kind="gaussian", scale=LOGIT_NOISE)
    found: dict[str, float] = {}
    for baseline, rules in (("none", ("pg", "sc", "is")), ("group", ("pg", "sc"))):
        runs = {rule: _stale(env, rule, STILL, baseline=baseline, numerics=noise) for rule in rules}
        start = shared.start_of(runs["pg"])
        true = shared.velocity(start)
        bias = {rule: _weights(run)[:, -1] / (STILL * run.steps) - true for rule, run in runs.items()}
        found[f"removed share, {baseline}"] = _removed(bias)
        if baseline == "group":
            continue
        mu = np.exp(start.logmu)
        drift = shared.pull_back(start, baseline_drift(mu, start.pi, start.advantage))
        left = shared.pull_back(
            start, discrepancy_bias(start.pi, start.advantage, start.delta, centered=True)
        )
        found["removed over law"] = _along(bias["pg"] - bias["sc"], drift)
        found["left over law"] = _along(bias["sc"], left)
        found["left by full IS"] = _along(bias["is"], left)
    prefix = {rule: _bandit(env, rule, STILL, baseline="group", numerics=noise) for rule in ("pg", "sc")}
    moved = {rule: _weights(run)[:, -1] for rule, run in prefix.items()}
    start = shared.start_of(dataclasses.replace(prefix["pg"], baseline="none"))
    drift = shared.pull_back(start, baseline_drift(np.exp(start.logmu), start.pi, start.advantage))
    found["removed over law, shared prefix"] = _along((moved["pg"] - moved["sc"]) / STILL, drift)
    found["largest difference, shared prefix"] = float(np.abs(moved["pg"] - moved["sc"]).max())
    true = shared.velocity(shared.start_of(prefix["pg"]))
    found["removed share, shared prefix"] = _removed(
        {rule: x / (STILL * prefix[rule].steps) - true for rule, x in moved.items()}
    )
    return found


def _along(measured_SP: np.ndarray, law_P: np.ndarray) -> float:
    """Component of the mean along a law, in units of the law: unbiased, since it is linear."""
    return float(measured_SP.mean(0) @ law_P / (law_P @ law_P))


def _removed(bias: Mapping[str, np.ndarray]) -> float:
    """Share of PG's bias that centring removes."""
    return 1 - mean_norm(bias["sc"]) / mean_norm(bias["pg"])


def feedback(env: int) -> dict[str, float]:
    """Lag of each correction per step, against the linear loop."""
    runs = {rule: _stale(env, rule, SMALL) for rule in ("pg", "sc", "is")}
    start = shared.start_of(runs["pg"])
    g = shared.velocity(start)
    found: dict[str, float] = {}
    last: dict[str, tuple[float, float]] = {}
    for rule, run in runs.items():
        path = lag_path(g, shared.loop(start, correction(rule)), lr=SMALL, steps=run.steps)
        predicted = np.linalg.norm(path[FROM_STEP:], axis=-1)
        moved = _weights(run)
        measured = np.array([mean_norm(moved[:, k - 1]) for k in range(FROM_STEP, run.steps + 1)])
        found[f"largest error, {rule}"] = float(np.abs(np.log(measured / predicted)).max())
        last[rule] = (measured[-1], predicted[-1])
        if rule == "pg":
            synced = ensemble(dataclasses.replace(run, sync_every=1), seeds=SEEDS).measures["lag_norm"]
            norms = synced[:, FROM_STEP - 1 :].mean(0)
            found["largest error, synced"] = float(np.abs(np.log(norms / predicted)).max())
    found["growth"], found["growth by law"] = (math.log(last["pg"][i] / last["sc"][i]) for i in (0, 1))
    # the loop of SC is a straight line, so this is 0 up to the next order: growth where there is no feedback
    found["growth, sc"] = math.log(last["sc"][0] / last["sc"][1])
    return found


def excess(env: int) -> dict[str, float]:
    """Cumulative distance of SC from IS, at a learning rate and at half of it."""
    found: dict[str, float] = {}
    k = EXCESS_STEP
    rates = (SMALL, SMALL / 2)
    moved = {(rule, lr): _weights(_stale(env, rule, lr))[:, k - 1] for rule in ("sc", "is") for lr in rates}
    start = shared.start_of(_stale(env, "sc", SMALL))
    g, curvature = shared.velocity(start), shared.curvature(start)
    still = np.zeros_like(curvature)

    def coefficient(apart: Mapping[float, float]) -> float:
        """Excess over its law, extrapolated to learning rate 0: the next order is linear in it."""
        law = {
            lr: float(np.linalg.norm(period_deviation(g, still, curvature, lr=lr, period=k))) for lr in rates
        }
        long, short = (apart[lr] / law[lr] for lr in rates)
        return 2 * short - long

    apart = {lr: mean_norm(moved["sc", lr] - moved["is", lr]) for lr in rates}
    found["ratio"] = apart[SMALL] / apart[SMALL / 2]
    found["ratio of the update"] = mean_norm(moved["sc", SMALL]) / mean_norm(moved["sc", SMALL / 2])
    found["over law"] = coefficient(apart)
    flat = Bandit(seed=env, logits=((0.0,) * 16,) * 8, rewards=((1.0,) * 8 + (-1.0,) * 8,) * 8)
    level = {
        (rule, lr): _weights(dataclasses.replace(_bandit(env, rule, lr), environment=flat))[:, k - 1]
        for rule in ("sc", "is")
        for lr in rates
    }
    found["over law, no curvature"] = coefficient(
        {lr: mean_norm(level["sc", lr] - level["is", lr]) for lr in rates}
    )
    return found


PROBES: Mapping[str, Callable[[int], dict[str, float]]] = MappingProxyType(
    {"centering": centering, "feedback": feedback, "excess": excess}
)
"""Numbers of one environment, by the name of the analysis"""
