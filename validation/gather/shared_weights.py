"""Closed forms of one prefix, pulled back to the weights that all prefixes of the toy share.

A toy policy has logits ``z0 + (h W) O``, so a gradient G in the logits of a prefix is ``h (O G)^T`` in the
weights, and the laws of `theory.feedback` and `theory.excess` hold there with every prefix weighted by how
often the sampler visits it. Suffixes: C prompts, T positions, U memory states, V vocabulary, D features, P =
D V weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from theory.advantage import Baseline
from theory.arrays import log_softmax
from theory.corrections import Correction, Logps
from theory.experiment import Experiment
from theory.feedback import loop_matrix, shared_loop_matrix
from theory.fisher import gradient, hessian
from theory.gradient import expected_gradient
from toy.engine import engine_settings, sampled_log_probs
from toy.environment import build, memory_of
from toy.policy import occupancy
from toy.task import Task
from validation.gather.frozen_noise import frozen_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An experiment before its first update, as tables in float64."""

    task: Task
    pi: np.ndarray
    """Policy, (C, T, U, V)"""
    logmu: np.ndarray
    """Log-probabilities the engine samples from, nats, (C, T, U, V)"""
    delta: np.ndarray
    """What the engine adds to the logits, nats, (C, T, U, V)"""
    advantage: np.ndarray
    """Expected advantage of each action, (C, T, U, V)"""
    visits: np.ndarray
    """Expected visits of the sampler to each prefix, per response, (C, T, U); the sum is T"""


def start_of(experiment: Experiment) -> Start:
    """Tables of an experiment whose first token decides (memory "first").

    Raises
    ------
    ValueError
        For a reward of the whole response, or a baseline that divides by the spread: no table holds those.
    """
    environment = experiment.environment
    task = build(environment)
    if task.reward_CV is None or experiment.baseline not in ("none", "group"):
        raise ValueError(
            "tables of the advantage need a reward by the first token and baseline none or group, got "
            f"{environment} with {experiment.baseline!r}"
        )
    with jax.enable_x64(True):
        logpi = log_softmax(jnp.asarray(task.logits_CTUV, jnp.float64))
        engine = engine_settings(experiment.numerics, jnp.float64)
        delta = frozen_noise(engine, environment.seed, logpi.shape)
        logmu = sampled_log_probs(logpi, delta, engine)
        visits = occupancy(logmu, memory=memory_of(environment))
    mu = np.exp(np.asarray(logmu))
    return Start(
        task=task,
        pi=np.exp(np.asarray(logpi)),
        logmu=np.asarray(logmu),
        delta=np.asarray(delta),
        advantage=_advantage(task.reward_CV, mu, experiment.baseline, experiment.samples),
        visits=np.asarray(visits) / mu.shape[0],
    )


def _advantage(reward_CV: np.ndarray, mu: np.ndarray, baseline: Baseline, samples: int) -> np.ndarray:
    U, V = mu.shape[-2:]
    table = np.zeros(mu.shape)
    table[:, 0] = reward_CV[:, None]
    # afterwards the first token is what is remembered; the state "beginning" does not occur
    table[:, 1:, : U - 1] = reward_CV[:, None, :, None] if U == V + 1 else 0.0
    if baseline == "none":
        return table
    mean_C = (mu[:, 0, -1] * reward_CV).sum(-1)
    # the mean of the group holds the response itself
    return (table - mean_C[:, None, None, None]) * (1 - 1 / samples)


def pull_back(start: Start, by_prefix: np.ndarray, /) -> np.ndarray:
    """Gradient in the weights, (P,), from one in the logits of every prefix, (C, T, U, V)."""
    weighted = start.visits[..., None] * by_prefix
    into = weighted @ start.task.projector_VV.T
    return np.einsum("ctud,ctuv->dv", start.task.features_CTUD, into).reshape(-1)


def mean_gradient(start: Start, rule: Correction) -> np.ndarray:
    """Mean first gradient of a correction in the weights, (P,), by the core and enumeration."""
    logpi = np.log(start.pi)
    row = Logps(mu=start.logmu, pi_s=logpi, pi=logpi)
    return pull_back(start, expected_gradient(rule, row, start.advantage))


def velocity(start: Start) -> np.ndarray:
    """Mean gradient at zero lag of an exact engine, (P,)."""
    return pull_back(start, gradient(start.pi, start.advantage))


def curvature(start: Start) -> np.ndarray:
    """Hessian H of the on-policy objective in the weights, prefixes as the sampler visits them: (P, P)."""
    return _shared(start, hessian(start.pi, start.advantage))


def loop(start: Start, rule: Correction) -> np.ndarray:
    """Loop matrix M of a correction in the weights, (P, P)."""
    V = start.pi.shape[-1]
    rows = zip(start.pi.reshape(-1, V), start.advantage.reshape(-1, V), strict=True)
    return _shared(start, np.stack([loop_matrix(rule, p, a) for p, a in rows]))


def _shared(start: Start, matrix: np.ndarray) -> np.ndarray:
    V = start.pi.shape[-1]
    features = start.task.features_CTUD.reshape(-1, start.task.features_CTUD.shape[-1])
    # dz_k / dW_dv = h_d O_vk
    jacobian = np.einsum("sd,vk->skdv", features, start.task.projector_VV).reshape(len(features), V, -1)
    visited = start.visits.reshape(-1) > 0
    return shared_loop_matrix(
        start.visits.reshape(-1)[visited], jacobian[visited], matrix.reshape(-1, V, V)[visited]
    )
