r"""What a correction's gradient is on average, and the exact and first-order terms of its bias.

All gradients are in the logits of one prefix, averaged over the engine's draws; shapes (..., K) with leading
axes for prefixes. Claim ``centering``.
"""

from __future__ import annotations

import math

from theory.arrays import Array, namespace
from theory.centering import coefficients
from theory.corrections import Correction, Logps
from theory.fisher import expect, fisher, fisher_product, hessian, hessian_product, score_mean


def expected_gradient(rule: Correction, row: Logps, advantage: Array, /) -> Array:
    """Mean logit gradient of a correction, by enumeration of all K actions through the correction core.

    Parameters
    ----------
    rule : Correction
        A row of the table. A ratio over the response (level "sequence" or "geometric") is that of a response
        of one token; a budget over the batch ("second-moment") sees each action once.
    row : Logps
        Full rows of log-probabilities, shape (..., K).
    advantage : array, shape (..., K)
        Advantage of each action.

    Returns
    -------
    array, shape (..., K)
        To be ascended.
    """
    xp = namespace(row.pi)
    # every action becomes a response of one token: (..., K, 1), its prefix's row beside it: (..., K, 1, K)
    token = Logps(*(None if x is None else x[..., None] for x in row))
    spread = xp.zeros_like(row.pi)[..., None, None]
    rows = Logps(*(None if x is None else x[..., None, None, :] + spread for x in row))
    constants = coefficients(rule, token, advantage[..., None], row=rows if rule.centered else None)
    mu = xp.exp(row.mu)
    weight = mu * constants.token[..., 0]
    if constants.row is not None:
        # a column's constant adds to its own score, whichever action was drawn
        weight = weight + xp.sum(mu[..., None] * constants.row[..., 0, :], axis=-2)
    return score_mean(weight, xp.exp(row.pi))


def baseline_drift(mu: Array, pi: Array, advantage: Array, /) -> Array:
    """``(mu.A)(mu - pi)``: exactly what centring the score removes from the uncorrected gradient.

    Zero where no mean advantage is left, as with a group baseline on a shared prefix.
    """
    return expect(mu, advantage) * (mu - pi)


def discrepancy_bias(p: Array, advantage: Array, delta: Array, /, *, centered: bool) -> Array:
    """Bias of the gradient at zero lag when the engine adds `delta` to the logits, to first order in delta.

    ``H delta + Abar F delta`` without centring, ``H delta`` with it: the joint moment of advantage,
    discrepancy and score stays, since no vector of the prefix alone can remove it. Only the factor pi_s/mu
    does.
    """
    left = hessian_product(p, advantage, delta)
    return left if centered else left + expect(p, advantage) * fisher_product(p, delta)


def weighted_bias(p: Array, p_s: Array, advantage: Array, delta: Array, /, *, form: str) -> Array:
    """First-order bias of the two centred lag-weighted gradients at any lag, shape (..., K).

    Parameters
    ----------
    p, p_s : arrays, shape (..., K)
        Trainer now and at the sampler's weights.
    advantage, delta : arrays, shape (..., K)
        Advantage of each action; what the engine adds to the logits at the sampler's weights.
    form : {"matched", "form-i"}
        The centre of the correction. "form-i" keeps a term that grows with the lag.
    """
    base = hessian_product(p, advantage, delta) + expect(p, _centered(p_s, delta)) * (
        p * (advantage - expect(p, advantage))
    )
    if form == "matched":
        return base
    if form == "form-i":
        return base + (expect(p, advantage) - expect(p_s, advantage)) * fisher_product(p, delta)
    raise ValueError(f"unknown form {form!r}; known: matched, form-i")


def _centered(p_s: Array, delta: Array) -> Array:
    """``log(mu/pi_s)`` to first order: delta less its mean, the change of the log-normaliser."""
    return delta - expect(p_s, delta)


def fresh_noise_bias(p: Array, advantage: Array, scale: float, /) -> Array:
    """Mean drift ``Abar s^2 p (|p|^2 - p)`` that centring removes when zero-mean logit noise is drawn anew.

    Second order in the standard deviation `scale` (nats): frozen noise acts at first order, fresh noise does
    not.
    """
    return expect(p, advantage) * scale**2 * p * (expect(p, p) - p)


def rms_removed(p: Array, advantage: Array, scale: float, /) -> Array:
    """Rms over random iid noise of what centring removes, ``s |Abar| |F|``, Frobenius norm, shape (...)."""
    xp = namespace(p, advantage)
    return scale * xp.abs(expect(p, advantage)[..., 0]) * _frobenius(fisher(p))


def rms_left(p: Array, advantage: Array, scale: float, /) -> Array:
    """Rms over random iid noise of what centring leaves, ``s |H|``; centring gains where removed >> left."""
    return scale * _frobenius(hessian(p, advantage))


def _frobenius(matrix: Array) -> Array:
    xp = namespace(matrix)
    return xp.sqrt(xp.sum(matrix**2, axis=(-2, -1)))


def centre_error_bound(kept: float, /) -> float:
    """Bound ``2 (1 - m)`` in L1 on the centre when only the top-K of mass m is reported by the engine."""
    if not 0 <= kept <= 1:
        raise ValueError(f"kept mass is a share in [0, 1], got {kept}")
    return 2 * math.fsum((1, -kept))
