"""Full rows of a toy run for the identities of claim ``split``: the three policies at every state."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from theory.experiment import Experiment, Numerics
from toy.engine import engine_settings, sampled_log_probs
from toy.environment import build
from toy.policy import log_probs
from toy.settings import STALE, setting_s
from toy.simulate import ensemble
from validation.derived import derived
from validation.evidence import Rows
from validation.gather.frozen_noise import frozen_noise
from validation.plan import RUNS
from validation.provenance import module_digest

NOISE = 0.3
"""Logit noise of the run the split is read from, nats: with an exact engine the discrepancy would be 0"""


def rows_of(root: Path, like: Experiment, /) -> Rows:
    """Rows of a stale, noisy run at its last step, at every state of the environment.

    Parameters
    ----------
    root : Path
        Folder of the toy's runs; what was computed is kept there.
    like : Experiment
        Its environment and learning rate are taken.
    """
    experiment = dataclasses.replace(
        setting_s(like.environment.seed, lr=like.lr, correction="dlc", sync_every=STALE, seed=6),
        numerics=Numerics(kind="gaussian", scale=NOISE),
    )

    def compute() -> dict[str, np.ndarray]:
        result = ensemble(experiment, seeds=RUNS)
        environment = experiment.environment
        with jax.enable_x64(True):
            task = build(environment).cast(np.float64)
            engine = engine_settings(experiment.numerics, jnp.float64)
            pi_s = log_probs(task, jnp.asarray(result.theta_sampler[0, -1], jnp.float64))
            pi = log_probs(task, jnp.asarray(result.theta[0, -1], jnp.float64))
            mu = sampled_log_probs(pi_s, frozen_noise(engine, environment.seed, pi_s.shape), engine)
        columns = {"logmu": mu, "logpi_s": pi_s, "logpi": pi}
        return {name: np.asarray(x).reshape(-1) for name, x in columns.items()}

    columns = derived(root, "rows", module_digest(__name__), experiment.fingerprint(), compute=compute)
    width = like.environment.vocabulary
    what = f"environment {like.environment.seed}, stale DLC with logit noise {NOISE}, step {experiment.steps}"
    return Rows(**{name: x.reshape(-1, width) for name, x in columns.items()}, what=what)
