r"""The noise floor: KL between two independent on-policy runs, from the covariance of their updates.

A run is its mean path plus noise. With ``Sigma`` the covariance of one sample's gradient and B samples a
step,

.. math:: C_{k+1} = (1 + \eta H_k) C_k (1 + \eta H_k)^T + \eta^2 \Sigma_k / B

and two independent runs differ by twice that, so the floor is ``E KL = tr(F C)``. Early on it is
``eta^2 k tr(F Sigma)/B``. Logits of one prefix, on-policy, true baseline; NumPy float64. Claim
``noise-floor``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory.arrays import log_softmax
from theory.fisher import fisher, gradient, hessian


class FloorPath(NamedTuple):
    """Mean on-policy path and the spread of runs around it."""

    logits: np.ndarray
    """Shape (steps + 1, K)"""
    covariance: np.ndarray
    """Covariance of the logits between runs, shape (steps + 1, K, K)"""
    floor: np.ndarray
    """KL between two independent runs, nats, shape (steps + 1,)"""


def update_covariance(p: np.ndarray, advantage: np.ndarray, /) -> np.ndarray:
    """Covariance of one sample's gradient ``At (e_a - p)``, a drawn from p: shape (K, K)."""
    at = advantage - p @ advantage
    score = np.eye(p.shape[-1]) - p
    g = gradient(p, advantage)
    return np.einsum("a,ai,aj->ij", p * at**2, score, score) - np.outer(g, g)


def noise_floor(p: np.ndarray, covariance: np.ndarray, /) -> float:
    """``tr(F C)``: KL in nats between two independent runs that each spread by `covariance` around p."""
    return float(np.trace(fisher(p) @ covariance))


def floor_path(
    logits: np.ndarray, advantage: np.ndarray, /, *, lr: float, steps: int, batch: int
) -> FloorPath:
    """Propagate the covariance along the mean on-policy path.

    Parameters
    ----------
    logits, advantage : arrays, shape (K,)
        Start, and the advantage of each arm before its baseline.
    lr : float
        Step size.
    steps : int
        Updates.
    batch : int
        Independent samples per update.
    """
    if batch < 1:
        raise ValueError(f"batch must be >= 1 sample, got {batch}")
    z, cov = np.array(logits, dtype=np.float64), np.zeros((len(logits), len(logits)))
    path, spread, floor = [z], [cov], [0.0]
    for _ in range(steps):
        p = np.exp(log_softmax(z))
        step = np.eye(len(z)) + lr * hessian(p, advantage)
        cov = step @ cov @ step.T + lr**2 * update_covariance(p, advantage) / batch
        z = z + lr * gradient(p, advantage)
        path.append(z)
        spread.append(cov)
        floor.append(noise_floor(np.exp(log_softmax(z)), cov))
    return FloorPath(np.array(path), np.array(spread), np.array(floor))


def early_floor(p: np.ndarray, advantage: np.ndarray, /, *, lr: float, steps: int, batch: int) -> float:
    """``eta^2 k tr(F Sigma)/B`` in nats: the floor before the policy has moved; fails once it saturates."""
    return lr**2 * steps * noise_floor(p, update_covariance(p, advantage)) / batch


def deviation_in_floors(
    offset: np.ndarray, p: np.ndarray, floor: float, /, *, variance_ratio: float = 1.0
) -> float:
    """Deviation of a method from on-policy, in floors: ``(1 + R)/2 + D'FD/(2 floor)``.

    Parameters
    ----------
    offset : array, shape (K,)
        Mean displacement D of the method's logits from the on-policy ones.
    p : array, shape (K,)
        On-policy policy.
    floor : float
        `noise_floor` there, nats.
    variance_ratio : float
        R: the method's spread over that of on-policy.

    Returns
    -------
    float
        1 for an exact on-policy method. Grows with the batch, since the floor falls as 1/B.
    """
    return (1 + variance_ratio) / 2 + float(offset @ fisher(p) @ offset) / (2 * floor)


def measured_floor(among: np.ndarray, /) -> np.ndarray:
    r"""Mean KL between different on-policy runs, every ordered pair: the floor that was measured.

    Parameters
    ----------
    among : array, shape (..., F, F)
        KL of each on-policy run to each other, nats per token; the diagonal, a run to itself, is 0.

    Returns
    -------
    array, shape (...)
        nats per token.

    Raises
    ------
    ValueError
        For a single on-policy run: there is no floor then.
    """
    n = among.shape[-1]
    if n < 2:
        raise ValueError(f"a floor needs at least 2 on-policy runs, got {n}; run more seeds")
    return among.sum((-2, -1)) / (n * (n - 1))


def in_floors(distance: np.ndarray, among: np.ndarray, /) -> np.ndarray:
    r"""Count measured distances to the on-policy runs in measured floors.

    .. math:: \frac{\mathrm{mean}_{i,j} KL(method_i || on_j)}{\mathrm{mean}_{i \ne j} KL(on_i || on_j)}

    Parameters
    ----------
    distance : array, shape (..., S, R)
        KL of each of S runs to each of R on-policy runs, nats per token.
    among : array, shape (..., F, F)
        KL of each on-policy run to each other; the diagonal, a run to itself, is 0. May be the same R runs.

    Returns
    -------
    array, shape (...)
        1 for runs that are on-policy themselves, up to the error of both means.

    Raises
    ------
    ValueError
        For a single on-policy run: there is no floor then.
    """
    return distance.mean((-2, -1)) / measured_floor(among)
