"""The noise-free dynamics of any correction at one prefix: what the loop does when every batch is infinite.

The exact reference for the linear laws of `theory.feedback` and `theory.excess`: it runs the correction core
itself, action by action, and knows nothing of their formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory.arrays import log_softmax
from theory.corrections import Correction, Logps
from theory.gradient import expected_gradient


class MeanPath(NamedTuple):
    """Logits and updates of one noise-free run."""

    logits: np.ndarray
    """Shape (steps + 1, K): before the first update, then after each"""
    update: np.ndarray
    """Mean gradient of each step, shape (steps, K)"""
    synced: np.ndarray
    """Logits the sampler had at each step, shape (steps, K)"""


def mean_path(
    rule: Correction,
    logits: np.ndarray,
    advantage: np.ndarray,
    /,
    *,
    lr: float,
    steps: int,
    sync_every: int = 0,
    delta: np.ndarray | float = 0.0,
    rebaseline: bool = False,
) -> MeanPath:
    """Run a correction with infinite batches.

    Parameters
    ----------
    rule : Correction
        A row of the table; its resync rule is not applied.
    logits : array, shape (K,)
        Start.
    advantage : array, shape (K,)
        Advantage of each action; its mean under the policy is left in.
    lr : float
        Step size.
    steps : int
        Updates.
    sync_every : int
        The sampler takes the trainer's logits before steps 0, N, 2N, ...; 0: only before the first.
    delta : array, shape (K,), or float
        What the engine adds to its logits.
    rebaseline : bool
        Shift the advantages at each step so that their mean under the engine stays what it was at the start:
        the baseline follows the policy, the wrong part of it does not.
    """
    z = np.array(logits, dtype=np.float64)
    z_s = z.copy()
    path, updates, held = [z], [], []
    start = None
    for k in range(steps):
        if sync_every and k % sync_every == 0:
            z_s = z.copy()
        row = Logps(mu=log_softmax(z_s + delta), pi_s=log_softmax(z_s), pi=log_softmax(z))
        mean = float(np.exp(row.mu) @ advantage)
        start = mean if start is None else start
        update = expected_gradient(rule, row, advantage - (mean - start if rebaseline else 0.0))
        z = z + lr * update
        path.append(z)
        updates.append(update)
        held.append(z_s)
    return MeanPath(np.array(path), np.array(updates), np.array(held))
