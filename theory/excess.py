r"""The excess update of score centring over importance weighting under a stale sampler: four readings of it.

With ``t = lr * steps`` since the sync, the centred update stays ``u_SC = g`` while the weighted one follows
the policy, ``u_IS = g + t H g + (t^2/2) q + ...``, with ``q = H^2 g + T[g, g]`` and T the third derivative.
"Positive and quadratic" is true of two readings and false of the others:

====  =================================  =================================  =======================
name  reading                            to order t^2                       positive quadratic?
====  =================================  =================================  =======================
R1    per step, ``|u_SC - u_IS|^2``      ``t^2 |Hg|^2``                     always
R2    per step, ``|u_SC|^2 - |u_IS|^2``  ``-2t g'Hg - t^2 (|Hg|^2 + g'q)``  no: has a linear term
R3    cumulative, ``|D_SC - D_IS|``      ``(t^2/2) |Hg|``                   always
R4    cumulative, ``|D_SC| - |D_IS|``    ``-(t^2/2) g'Hg/|g|``              if and only if g'Hg < 0
====  =================================  =================================  =======================

Claim ``excess``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from theory.fisher import gradient, hessian_product, third_product


class Excess(NamedTuple):
    """Coefficients of the readings in t; multiply by t or t^2 as named."""

    per_step_square: float
    """R1, of t^2"""
    per_step_linear: float
    """R2, of t"""
    per_step_quadratic: float
    """R2, of t^2"""
    cumulative: float
    """R3, of t^2"""
    cumulative_norm: float
    """R4, of t^2; NaN at a stationary point, where g = 0"""


class Readings(NamedTuple):
    """The four readings of one pair of runs, arrays of shape (...)."""

    per_step_square: np.ndarray
    per_step_norm: np.ndarray
    cumulative: np.ndarray
    cumulative_norm: np.ndarray


def excess_coefficients(g: np.ndarray, hg: np.ndarray, q: np.ndarray, /) -> Excess:
    """Coefficients from the velocity ``g``, ``H g`` and ``q``, twice the t^2 term of the on-policy update.

    All of shape (K,), in whatever coordinates the norms are taken in: logits of one prefix or parameters.
    """
    norm, ghg = float(np.linalg.norm(g)), float(g @ hg)
    return Excess(
        per_step_square=float(hg @ hg),
        per_step_linear=-2 * ghg,
        per_step_quadratic=-float(hg @ hg + g @ q),
        cumulative=float(np.linalg.norm(hg)) / 2,
        cumulative_norm=-ghg / (2 * norm) if norm > 0 else math.nan,
    )


def arm_excess(p: np.ndarray, advantage: np.ndarray, /) -> Excess:
    r"""Coefficients for a K-arm softmax bandit, shapes (K,).

    .. math:: (Hg)_a = p_a (p_a \tilde A_a^2 - S_2 - \tilde A_a S_1), \quad S_n = \sum_a p_a^2 \tilde A_a^n
    """
    at = advantage - p @ advantage
    s1, s2 = float(p**2 @ at), float(p**2 @ at**2)
    hg = p * (p * at**2 - s2 - at * s1)
    g = gradient(p, advantage)
    q = hessian_product(p, advantage, hg) + third_product(p, advantage, g, g)
    return excess_coefficients(g, hg, q)


def alignment(p: np.ndarray, advantage: np.ndarray, /) -> float:
    """``g'Hg = sum p^3 At^3 - 2 S1 S2`` of a K-arm bandit; negative: on-policy decelerates, SC runs ahead."""
    at = advantage - p @ advantage
    return float(p**3 @ at**3 - 2 * (p**2 @ at) * (p**2 @ at**2))


def uniform_alignment(advantage: np.ndarray, /) -> float:
    """``g'Hg = m3/K^2`` at the uniform policy, m3 the third central moment of the advantages over the K arms.

    Negative skew of the advantages makes the excess positive; with rewards +-1 and a share rho of right arms,
    ``m3 = 8 rho (1 - rho)(1 - 2 rho)``, so the excess is positive at the start if and only if rho > 1/2.
    """
    at = advantage - advantage.mean()
    return float((at**3).mean() / advantage.shape[-1] ** 2)


def excess_readings(
    update_sc: np.ndarray, update_is: np.ndarray, moved_sc: np.ndarray, moved_is: np.ndarray, /
) -> Readings:
    """Read the four quantities off two runs, in the coordinates given.

    Parameters
    ----------
    update_sc, update_is : arrays, shape (..., P)
        Gradient of each run at its own point, the same time after the sync.
    moved_sc, moved_is : arrays, shape (..., P)
        Displacement of each run since the sync.
    """

    def norm(x: np.ndarray) -> np.ndarray:
        return np.linalg.norm(x, axis=-1)

    return Readings(
        per_step_square=norm(update_sc - update_is) ** 2,
        per_step_norm=norm(update_sc) ** 2 - norm(update_is) ** 2,
        cumulative=norm(moved_sc - moved_is),
        cumulative_norm=norm(moved_sc) - norm(moved_is),
    )
