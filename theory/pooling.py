r"""ESS of a pool from that of its parts: over prefixes, and over the tokens of a response.

Jensen's inequality makes any spread of the lag over prefixes bring the crossing forward: the pool's ESS is a
harmonic mean, below ``exp(-mean variance)``. Claim ``ess-half``.
"""

from __future__ import annotations

from theory.arrays import Array, namespace


def pooled_ess(ess: Array, weight: Array | None = None, /, *, axis: int = -1) -> Array:
    """ESS of draws pooled over prefixes whose ratios each average to one: the harmonic mean.

    Parameters
    ----------
    ess : array, shape (..., C)
        ESS share of each prefix.
    weight : array, same shape, optional
        How often the sampler visits it; need not be normalised. Equal if left out.
    axis : int
        The axis of the prefixes.
    """
    xp = namespace(ess, weight)
    share = xp.ones_like(ess) if weight is None else weight
    return xp.sum(share, axis=axis) / xp.sum(share / ess, axis=axis)


def sequence_ess(token_ess: Array, /, *, axis: int = -1) -> Array:
    """ESS of the product ratio of a response whose tokens are independent: the product of the tokens'.

    With T equal tokens it crosses 1/2 at a token variance of ``ln 2/T`` (Gaussian), long before the token ESS
    does. With dependent tokens it is ``1/E prod w_t^2``; measure it with `theory.ess.response_ess`.
    """
    return namespace(token_ess).prod(token_ess, axis=axis)
