r"""The feedback loop of a stale sampler: how the lag of each correction grows, step by step.

With a sampler stuck at logits z_s and the lag ``Delta_k = z_k - z_s``, the mean update of every correction is

.. math:: \Delta_{k+1} = \Delta_k + \eta (g + M \Delta_k) + O(\eta \Delta^2)

at one prefix. The correction enters only through its loop matrix M, and ``1 + eta lambda(M)`` says what the
loop does: above 1 it is a positive feedback loop. Shapes: logits and gradients (K,), matrices (K, K), NumPy
float64. Claims ``feedback``, ``stale`` and ``staleness-lr``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.corrections import Correction
from theory.fisher import fisher, gradient, hessian


def loop_matrix(rule: Correction, p: np.ndarray, advantage: np.ndarray, /) -> np.ndarray:
    """Loop matrix M of a correction at zero lag and no discrepancy (mu = pi_s = p), for one update per batch.

    ======================================  ===========  =================================================
    mean update                             M            loop
    ======================================  ===========  =================================================
    weighted by pi/pi_s or pi/mu            H            on-policy to first order
    unweighted, centred                     0            lag grows linearly, for ever
    unweighted (PPO before the batch, too)  -Abar F      positive feedback if and only if Abar < 0
    ======================================  ===========  =================================================

    Parameters
    ----------
    rule : Correction
        A row of the table. Its clip must not bind at zero lag; where it binds later, the loop is frozen
        instead.
    p, advantage : arrays, shape (K,)
        The policy at the sync and the advantages, with whatever mean advantage ``Abar = p.A`` is left in
        them.

    Returns
    -------
    array, shape (K, K)

    Raises
    ------
    ValueError
        If the clip binds at ratio 1, where no linear loop exists.
    """
    if rule.clip in ("truncate", "mask", "ppo") and not rule.low < 1 < rule.high:
        raise ValueError(
            f"the loop matrix needs a clip that is open at ratio 1, got ({rule.low:g}, {rule.high:g}); "
            "there the update is frozen or has a kink"
        )
    if rule.ratio in ("lag", "total"):
        return hessian(p, advantage)
    # ratio 1 on the first update of a batch; the engine's part of the centre is zero without discrepancy
    if rule.center in ("matched", "form-i"):
        return np.zeros((p.shape[-1], p.shape[-1]))
    return -float(p @ advantage) * fisher(p)


def lag_path(velocity: np.ndarray, matrix: np.ndarray, /, *, lr: float, steps: int) -> np.ndarray:
    """Lag after 0..steps updates by the linear loop: shape (steps + 1, K).

    Parameters
    ----------
    velocity : array, shape (K,)
        Mean gradient g at zero lag.
    matrix : array, shape (K, K)
        Loop matrix M.
    lr : float
        Step size eta.
    steps : int
        Number of updates.
    """
    lag = np.zeros((steps + 1, velocity.shape[-1]))
    for k in range(steps):
        lag[k + 1] = lag[k] + lr * (velocity + matrix @ lag[k])
    return lag


def lag_at(velocity: np.ndarray, matrix: np.ndarray, /, *, lr: float, steps: int) -> np.ndarray:
    """Lag after `steps` updates in closed form, ``M^-1 ((1 + eta M)^k - 1) g``; symmetric M; shape (K,).

    Directions in which M vanishes grow linearly, ``eta k g``.
    """
    eigenvalue, basis = np.linalg.eigh(matrix)
    x = lr * eigenvalue
    # (1 + x)^k - 1 over x without cancellation, k in the limit x -> 0; a factor 1 + x <= 0 has no logarithm
    safe = np.where((x == 0) | (x <= -1), 1.0, x)
    smooth = np.expm1(steps * np.log1p(safe)) / safe
    overshoot = np.where(x <= -1, ((1 + x) ** steps - 1) / np.where(x == 0, 1.0, x), smooth)
    growth = np.where(x == 0, float(steps), overshoot)
    return lr * basis @ (growth * (basis.T @ velocity))


def loop_gain(matrix: np.ndarray, /, *, lr: float) -> float:
    """Largest factor ``1 + eta lambda(M)`` per update, over the directions the softmax can feel.

    A common shift of all logits changes nothing, so the direction (1, ..., 1), an eigenvector of F and H with
    eigenvalue 0, is left out.
    """
    k = matrix.shape[-1]
    off = np.eye(k) - 1.0 / k
    basis = np.linalg.svd(off)[0][:, : k - 1]
    return 1 + lr * float(np.linalg.eigvals(basis.T @ matrix @ basis).real.max())


def e_folding_step(p: np.ndarray, mean_advantage: float, /, *, lr: float) -> float:
    """Count updates per factor e of the uncorrected loop, ``1/(eta |Abar| lambda_max(F))``; inf if none."""
    if mean_advantage >= 0:
        return math.inf
    rate = lr * -mean_advantage * float(np.linalg.eigvalsh(fisher(p)).max())
    return 1 / rate if rate > 0 else math.inf


def centered_path(logits: np.ndarray, advantage: np.ndarray, /, *, lr: float, steps: int) -> np.ndarray:
    """Logits of a stale centred run, exactly ``z_0 + eta k mu (A - mu.A)``: shape (steps + 1, K)."""
    p = np.exp(logits - np.logaddexp.reduce(logits))
    return logits + lr * np.arange(steps + 1)[:, None] * gradient(p, advantage)


def centered_limit(p: np.ndarray, advantage: np.ndarray, /) -> int:
    """Arm a stale centred run ends at, ``argmax mu (A - mu.A)``: not always the best one."""
    return int(np.argmax(gradient(p, advantage)))


def period_deviation(
    velocity: np.ndarray, matrix: np.ndarray, curvature: np.ndarray, /, *, lr: float, period: int
) -> np.ndarray:
    """Deviation from on-policy that one sync period adds, ``(eta^2 N (N-1)/2) (M - H) g``: shape (K,).

    The leading term of the linear loops; ``t^2/2`` with ``t = eta N`` as the learning rate falls. At N = 1
    every batch is on-policy and there is none. Only the product eta N matters while eta is small.
    """
    return lr**2 * period * (period - 1) / 2 * ((matrix - curvature) @ velocity)


def deviation_path(
    velocity: np.ndarray, matrix: np.ndarray, curvature: np.ndarray, /, *, lr: float, steps: int
) -> np.ndarray:
    """Deviation D_k from the on-policy path under a sampler that is never synced: shape (steps + 1, K).

    ``D_{k+1} = (1 + eta H) D_k + eta (M - H) Delta_k``: the bias of the stale gradient drives it. The bias
    feeds the lag if and only if ``<(M - H) Delta, Delta> > 0``.
    """
    lag = lag_path(velocity, matrix, lr=lr, steps=steps)
    deviation = np.zeros_like(lag)
    for k in range(steps):
        bias = (matrix - curvature) @ lag[k]
        deviation[k + 1] = deviation[k] + lr * (curvature @ deviation[k] + bias)
    return deviation


def shared_loop_matrix(weight: Any, jacobian: Any, matrix: Any, /) -> np.ndarray:
    """Loop matrix in parameters shared by several prefixes, ``sum_s rho(s) J_s^T M_s J_s``: shape (P, P).

    Parameters
    ----------
    weight : array_like, shape (S,)
        How often each prefix is visited.
    jacobian : array_like, shape (S, K, P)
        Derivative of each prefix's logits with respect to the P parameters.
    matrix : array_like, shape (S, K, K)
        Loop matrix of each prefix.
    """
    return np.einsum("s,skp,skl,slq->pq", weight, jacobian, matrix, jacobian, optimize=True)
