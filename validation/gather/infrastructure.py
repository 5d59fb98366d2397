"""Bias of the toy's updates under each fault of the pipeline, beside the exact vectors; claims ``infra-*``.

A coefficient is the projection of the measured bias on the exact one, 1 if they agree. What a correction
leaves is the squared length of the bias under it, in squared lengths of the uncorrected one, from the product
of two halves of the runs, so that sampling noise adds nothing on average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from toy import bias
from toy.ensemble import Ensemble
from toy.environment import build
from toy.policy import log_probs
from toy.settings import Sequence, setting_s
from toy.simulate import ensemble
from toy.toggles import Infrastructure

ENVIRONMENT = Sequence(prompts=4, length=2, vocabulary=8, embedding=6, rank=6, beta=2.0, quantile=0.7)
"""Two tokens, for which all vectors are exact"""
LR, SAMPLES, STEPS, SEEDS = 4.0, 256, 4, 24
CORRECTED = ("pg", "sc", "is", "seq-is", "is-sc", "dlc")
TOP_P = 0.8


def faults(env: int) -> Mapping[str, Infrastructure]:
    """Return one fault each, where it can be read.

    The pair drawn most often comes back as one token; the first tokens that make a response long split every
    prompt's responses as evenly as they can.
    """
    start = _policy(build(dataclasses.replace(ENVIRONMENT, seed=env)))
    pair = _likeliest_pair(start)
    short = np.cumsum(start[:, 0, -1], axis=-1)[:, :-1]
    defer_from = 1 + int(np.minimum(short, 1 - short).min(0).argmax())
    return MappingProxyType(
        {
            "top-p": Infrastructure(top_p=TOP_P),
            "retokenisation": Infrastructure(retokenise=pair),
            "reward-filter": Infrastructure(keep_wrong=0.0),
            "deferred": Infrastructure(defer_from=defer_from),
        }
    )


def infrastructure(env: int) -> dict[str, float]:
    """Measure every fault in one environment."""
    task = build(dataclasses.replace(ENVIRONMENT, seed=env))
    start = _policy(task)
    g = bias.exact_gradient(task, start)
    plain = _first(_run(env, Infrastructure(), "pg"), g)
    found: dict[str, float] = {}
    for name, chosen in faults(env).items():
        exact = bias.exact_bias(task, chosen, start, None, samples=SAMPLES)
        runs = {rule: _run(env, chosen, rule) for rule in CORRECTED}
        found[f"{name}: coefficient"] = _coefficient(_first(runs["pg"], g), exact)
        found[f"{name}: coefficient, off"] = _coefficient(plain, exact)
        for rule, run in runs.items():
            found[f"{name}: left by {rule}"] = _left(_first(run, g), exact)
        found[f"{name}: left, off"] = _left(plain, exact)
        if name == "deferred":
            for rule in ("pg", "is"):
                found[f"deferred later: coefficient, {rule}"] = _later(task, chosen, runs[rule])
            found["deferred later: coefficient, off"] = _later(
                task, chosen, _run(env, Infrastructure(), "pg")
            )
    processed = bias.top_p(task, start, TOP_P, corrected=True)
    ratio = _first(_run(env, Infrastructure(top_p=TOP_P, processed=True), "is"), g)
    found["top-p processed: coefficient"] = _coefficient(ratio, processed)
    found["top-p processed: coefficient, off"] = _coefficient(plain, processed)
    return found


def _run(env: int, chosen: Infrastructure, rule: str) -> Ensemble:
    environment = dataclasses.replace(ENVIRONMENT, seed=env, infrastructure=chosen)
    usual = setting_s(correction=rule, lr=LR, steps=STEPS, samples=SAMPLES, baseline="none", seed=11)
    experiment = dataclasses.replace(usual, environment=environment, prompts=environment.prompts)
    return ensemble(experiment, seeds=SEEDS)


def _policy(task, theta_DV: np.ndarray | None = None) -> np.ndarray:
    with jax.enable_x64(True):
        weights = np.zeros(task.weights_shape) if theta_DV is None else theta_DV.astype(np.float64)
        return np.exp(np.asarray(log_probs(task, jnp.asarray(weights))))


def _likeliest_pair(p_CTUV: np.ndarray) -> tuple[int, int, int]:
    first = p_CTUV[:, 0, -1]
    both = (first[..., None] * p_CTUV[:, 1, :-1]).mean(0)
    np.fill_diagonal(both, 0.0)
    a, b = (int(i) for i in np.unravel_index(both.argmax(), both.shape))
    rest = first.mean(0).copy()
    rest[[a, b]] = -1.0
    return a, b, int(rest.argmax())


def _first(runs: Ensemble, g: np.ndarray) -> np.ndarray:
    """First update of each run less the exact gradient, (S, D, V)."""
    return runs.theta[:, 0].astype(np.float64) / LR - g


def _coefficient(measured: np.ndarray, exact: np.ndarray) -> float:
    return float((measured.mean(0) * exact).sum() / (exact**2).sum())


def _left(measured: np.ndarray, exact: np.ndarray) -> float:
    one, two = measured[::2].mean(0), measured[1::2].mean(0)
    return float((one * two).sum() / (exact**2).sum())


def _later(task, chosen: Infrastructure, runs: Ensemble) -> float:
    """Coefficient over all updates but the first, each at the policies of its own run."""
    dot = square = 0.0
    for theta in runs.theta.astype(np.float64):
        tables = [_policy(task), *(_policy(task, weights) for weights in theta[:-1])]
        for k in range(1, STEPS):
            exact = bias.exact_bias(task, chosen, tables[k], tables[k - 1], samples=SAMPLES)
            update = (theta[k] - theta[k - 1]) / LR - bias.exact_gradient(task, tables[k])
            dot += float((update * exact).sum())
            square += float((exact**2).sum())
    return dot / square
