"""A batch's tokens in one pass over blocks that fit the cache, and a step's figures from what that keeps.

What is kept of two batches, shards or workers merges to that of both (`theory.moments`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from theory.arrays import Array, namespace, reduces_on_host, same_shape
from theory.ess import EssState, ess_from_state, ess_state, merge_states
from theory.moments import (
    MomentState,
    RatioState,
    cumulants_of,
    kl_and_chi_square,
    mean_ratio,
    merge_moments,
    merge_ratios,
    moment_state,
    ratio_state,
    root_mean_square,
)

BLOCK = 131_072
"""Tokens `statistics` handles at a time: the few arrays of that size it makes stay in a core's cache, which
is most of its speed, and the calls for a block cost as much as some 50,000 tokens."""


class Statistics(NamedTuple):
    """What is kept of a batch's tokens."""

    lag: RatioState
    """``w = pi/pi_s``"""
    total: EssState
    """``pi/mu``"""
    discrepancy: MomentState
    """``log(mu/pi_s)``"""


@reduces_on_host
def statistics(
    logmu: Array, logpi_s: Array, logpi: Array, /, *, mask: Array | None = None, block: int = BLOCK
) -> Statistics:
    """Summarise a batch's tokens in one pass over blocks that fit the cache; under jit only without a mask.

    Parameters
    ----------
    logmu, logpi_s, logpi : arrays of one shape
        Log-probabilities of the same tokens, nats. float32 will do: sums are kept in float64 where the
        library has it.
    mask : array of bool, same shape, optional
        True at response tokens; what stands elsewhere, NaN included, never matters.
    block : int
        Tokens handled at a time.

    Returns
    -------
    Statistics
        Scalars; two of them merge by `merge_statistics`.

    Raises
    ------
    ValueError
        If the shapes differ, or `block` is below 1.
    """
    if block < 1:
        raise ValueError(f"a block needs at least one token, got {block}; leave it at {BLOCK}")
    xp = namespace(logmu, logpi_s, logpi)
    available = xp.__array_namespace_info__().dtypes(kind="real floating")
    wide = available.get("float64", logpi.dtype)
    same_shape("statistics", mu=logmu, pi_s=logpi_s, pi=logpi)
    flat = [xp.reshape(x, (-1,)) for x in (logmu, logpi_s, logpi)]
    keep = None if mask is None else xp.reshape(mask, (-1,))
    n = flat[0].shape[0]
    found = []
    for start in range(0, max(n, 1), block):
        part = slice(start, min(start + block, n))
        # by index: three times as fast as by truth value
        at = None if keep is None else xp.nonzero(keep[part])[0]
        mu, pi_s, pi = (x[part] if at is None else xp.take(x[part], at) for x in flat)
        found.append(
            Statistics(
                ratio_state(pi - pi_s, dtype=wide),
                ess_state(pi - mu, dtype=wide),
                moment_state(mu - pi_s, dtype=wide),
            )
        )
    if len(found) == 1:
        return found[0]
    stacked = _leaves(lambda *x: namespace(*x).stack(x), *found)
    return _merged(stacked, len(found), merge_statistics)


def merge_statistics(a: Statistics, b: Statistics, /) -> Statistics:
    """Statistics of two batches, shards or workers together."""
    return Statistics(
        merge_ratios(a.lag, b.lag),
        merge_states(a.total, b.total),
        merge_moments(a.discrepancy, b.discrepancy),
    )


State = TypeVar("State", bound=tuple)


def _leaves(f: Callable[..., Array], *states: State) -> State:
    """Apply `f` to corresponding arrays of states, which are named tuples of arrays or of such tuples."""
    parts = (_leaves(f, *x) if isinstance(x[0], tuple) else f(*x) for x in zip(*states, strict=True))
    return type(states[0])(*parts)


def _merged(left: State, size: int, merge: Callable[[State, State], State]) -> State:
    """Merge `size` states that are stacked along a first axis, by halves: few calls, little rounding."""
    if size == 1:
        return _leaves(lambda x: x[0], left)
    half = size // 2
    both = merge(_leaves(lambda x: x[:half], left), _leaves(lambda x: x[half : 2 * half], left))
    odd = _leaves(lambda x: x[2 * half :], left)
    return _merged(_leaves(lambda *x: namespace(*x).concat(x), both, odd), size - half, merge)


def step_measures(state: Statistics, /) -> dict[str, float]:
    """Figures of a step, under the names of STEP_COLUMNS; what has no tokens is NaN."""
    state = _leaves(_plain, state)
    lag = cumulants_of(state.lag.moments)
    kl, chi = kl_and_chi_square(state.lag)
    found = {
        "ess_token": ess_from_state(state.lag.ess),
        "ess_total": ess_from_state(state.total),
        "mean_w": mean_ratio(state.lag.ess),
        "discrepancy_rms": root_mean_square(state.discrepancy),
        "lag_rms": root_mean_square(state.lag.moments),
        **lag._asdict(),
        "kl_k3": kl,
        "chi_square": chi,
    }
    return {name: float(value) for name, value in found.items()}


def _plain(x: Array) -> np.float64:
    """Read a scalar back once: formulas on NumPy's scalars take a fifth of the time of those on tensors."""
    return np.float64(float(x))
