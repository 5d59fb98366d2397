r"""From a correction to the constants an engine differentiates: K+1 columns a token are enough.

Every correction's gradient is a sum of scores, so the loss of one token is

.. math:: -\Big( c_0 \log \pi(a) + \sum_k c_k \log \pi(id_k) \Big)

with constants c: column 0 is the sampled token, the others are the columns of the sampler's row. The row
may be full (K = V) or the engine's top-K; then the mass outside it is taken to have the trainer's own shape
there, and because scores average to zero under pi, that tail folds into the K columns: no tensor over the
vocabulary is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from theory.arrays import Array, masked, namespace
from theory.corrections import Correction, Logps
from theory.weights import clipped_weight


class Coefficients(NamedTuple):
    """Constants of the surrogate ``token * log pi(a) + sum_k row_k * log pi(id_k)``; never differentiated."""

    token: Array
    """Shape (...)"""
    row: Array | None
    """Shape (..., K), or None where the correction has no centre"""


def coefficients(
    rule: Correction,
    token: Logps,
    advantage: Array,
    /,
    *,
    mask: Array | None = None,
    row: Logps | None = None,
    log_tail: Logps | None = None,
) -> Coefficients:
    """Constants of the surrogate whose gradient is the corrected policy gradient (to be ascended).

    Parameters
    ----------
    rule : Correction
        The row of the table.
    token : Logps
        Log-probabilities of the sampled tokens, shape (..., T), nats.
    advantage : array, shape (..., T)
        Advantage of each token.
    mask : array of bool, shape (..., T), optional
        True at response tokens; coefficients are 0 elsewhere.
    row : Logps, optional
        Log-probabilities at the columns of the sampler's row, shape (..., T, K): needed by a centred
        correction. An entry the engine cannot sample has mu = -inf.
    log_tail : Logps, optional
        Log of the mass each policy has outside the columns, shape (..., T); None: the row is full (K = V).

    Returns
    -------
    Coefficients

    Raises
    ------
    ValueError
        If a centred correction gets no row.
    """
    xp = namespace(advantage)
    zero = xp.zeros_like(token.pi)
    advantage = masked(advantage, mask, 0.0)
    wc = clipped_weight(rule, token, advantage, mask=mask)
    score = advantage * wc
    if mask is not None:
        score = xp.where(mask, score, zero)
    if not rule.centered:
        return Coefficients(score, None)
    if row is None:
        raise ValueError(
            f"a correction with center={rule.center!r} needs the sampler's row, got none; "
            "have the sampler return its full row or its top-K with the tail"
        )
    wc_row = clipped_weight(rule, row, advantage[..., None])
    mu_row = xp.exp(row.mu)
    measure = mu_row - xp.exp(row.pi_s) if rule.center == "numerics" else mu_row
    beta = measure * wc_row
    tail = zero
    if log_tail is not None:
        wc_tail = clipped_weight(rule, log_tail, advantage)
        mu_tail = xp.exp(log_tail.mu)
        tail = (mu_tail - xp.exp(log_tail.pi_s) if rule.center == "numerics" else mu_tail) * wc_tail
    if rule.center == "matched":
        total = xp.sum(beta, axis=-1) + tail
        # a mask clip can drop the whole row: then wc_a is 0 too and there is nothing to centre
        scale = xp.where(total > 0, wc / xp.where(total > 0, total, zero + 1), zero)
        beta = beta * scale[..., None]
        tail = tail * scale
    center = -beta
    if log_tail is not None:
        # pi_k / pi(outside); where nothing is left to spread, the mass outside may be 0 and is not divided by
        outside = xp.where(tail != 0, log_tail.pi, zero)
        center = center + tail[..., None] * xp.exp(row.pi - outside[..., None])
    center = advantage[..., None] * center
    if mask is not None:
        center = xp.where(mask[..., None], center, xp.zeros_like(center))
    return Coefficients(score, center)


def surrogate(constants: Coefficients, logpi: Array, logpi_row: Array | None = None, /) -> Array:
    """Value whose gradient is the corrected policy gradient, per token: the loss is minus its mean.

    Parameters
    ----------
    constants : Coefficients
        From `coefficients`, detached from the graph.
    logpi : array, shape (...)
        The trainer's log-probabilities of the sampled tokens, differentiable.
    logpi_row : array, shape (..., K), optional
        The same at the columns of the row.

    Returns
    -------
    array, shape (...)
    """
    xp = namespace(logpi)

    def weighted(c: Array, logp: Array) -> Array:
        # 0 * -inf is NaN: padding, or a column the trainer cannot reach, has no weight and adds nothing
        return c * xp.where(c != 0, logp, xp.zeros_like(logp))

    value = weighted(constants.token, logpi)
    if constants.row is None:
        return value
    return value + xp.sum(weighted(constants.row, logpi_row), axis=-1)
