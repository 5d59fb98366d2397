"""A trainer's batch of log-probs on the host: checked, and only the tokens that count.

Arrays of any library are taken; single precision stays as it is, everything else becomes float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory.arrays import same_shape
from theory.limits import SHOWN, shown

ROUNDING = 0.125
"""Nats a log-prob may be above 0: half the spacing of bfloat16 from 32 on, where logits are"""


LONG_RUN = 16
"""Tokens a run of equal mask entries must have on average to be selected by truth value: NumPy copies whole
runs then, at two thirds of the time by index; scattered entries take it five times as long"""


class TokenBatch(NamedTuple):
    """N tokens that count, in R responses that have any; of B responses of T tokens."""

    logmu: np.ndarray | None
    """Shape (N,), nats, row by row; None if the engine reported none"""
    logpi_s: np.ndarray
    logpi: np.ndarray
    lag: np.ndarray
    """``log(pi/pi_s)``, shape (N,)"""
    length: np.ndarray
    """Tokens that count of each response, shape (B,)"""
    response_lag: np.ndarray
    """Sums of `lag` over responses in float64, shape (R,)"""


@np.errstate(invalid="ignore")  # of two infinities; the measures have values for it
def token_batch(logmu: Any, logpi_s: Any, logpi: Any, /, *, mask: Any = None) -> TokenBatch:
    """Check a batch and take the tokens that count out of it.

    Parameters
    ----------
    logmu : array, shape (B, T), or None
        Log-probs of the sampled tokens under the engine, nats; None if it reported none.
    logpi_s, logpi : arrays, shape (B, T)
        The trainer's at the sampler's weights and now.
    mask : array of bool, shape (B, T), optional
        True at tokens that count; all of them if left out. What stands elsewhere, NaN included, never
        matters.

    Raises
    ------
    ValueError
        For arrays of different shapes, numbers that are no log-probs, a mask with NaN.
    """
    ps, pi = on_host(logpi_s), on_host(logpi)
    if ps.ndim != 2:
        raise ValueError(f"a batch is (responses, tokens), got shape {ps.shape}; add the missing axis")
    mu = None if logmu is None else on_host(logmu)
    same_shape("a batch", **({} if mu is None else {"mu": mu}), pi_s=ps, pi=pi)
    valid = np.ones(ps.shape, dtype=bool) if mask is None else on_host(mask, bool)
    if valid.shape != ps.shape:
        raise ValueError(f"mask needs the shape of the log-probs {ps.shape}, got {valid.shape}")
    logs = {"logpi_s": ps, "logpi": pi} | ({} if mu is None else {"logmu": mu})
    which = _selection(valid.ravel())
    kept = {name: x.ravel()[which] for name, x in logs.items()}
    refuse_positive(**kept)
    packed = np.packbits(valid, axis=-1)  # counted in half the time of count_nonzero along an axis
    length = np.bitwise_count(packed).sum(axis=-1, dtype=np.intp)
    lag = kept["logpi"] - kept["logpi_s"]
    return TokenBatch(
        logmu=kept.get("logmu"),
        logpi_s=kept["logpi_s"],
        logpi=kept["logpi"],
        lag=lag,
        length=length,
        response_lag=_sums(lag, length),
    )


def _selection(valid: np.ndarray) -> np.ndarray:
    """Return what selects the entries that count the fastest: the mask itself where its runs are long."""
    changes = np.count_nonzero(valid[1:] != valid[:-1])
    return valid if changes < valid.size // LONG_RUN else np.flatnonzero(valid)


def _sums(lag: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Sum the lag over each response that has tokens."""
    length = length[length > 0]
    starts = np.cumsum(length) - length
    return np.add.reduceat(lag, starts, dtype=np.float64) if length.size else lag.astype(np.float64)


def refuse_positive(**logs: np.ndarray) -> None:
    """Refuse what cannot be log-probs of tokens that count: probabilities, or losses.

    Raises
    ------
    ValueError
        Naming the array, by its keyword, and its largest number.
    """
    for name, x in logs.items():
        if x.size and not x.max() <= ROUNDING and (above := x > ROUNDING).any():
            raise ValueError(
                f"log-probs are at most 0 (and {ROUNDING} of rounding), got {int(above.sum())} above in "
                f"{name}, the largest {x[above].max():.3g}; pass logs of probabilities"
            )


def on_host(x: Any, dtype: Any = None, /, *, what: str = "log-probs and masks") -> np.ndarray:
    """Array of any library as NumPy: off the graph and off the device where it has one.

    Parameters
    ----------
    x : array_like
        Numbers.
    dtype : optional
        bool for a mask, whose entries are 0 or 1. Left out, float32 stays and everything else becomes
        float64.
    what : str
        What the numbers are, for the refusal.

    Raises
    ------
    ValueError
        For what is no array of real numbers, for a masked array, and for a mask with other entries.
    """
    if np.ma.isMaskedArray(x):
        raise ValueError(
            "a masked array hides entries that would count, got one; pass its data, and mask=~x.mask"
        )
    try:
        if hasattr(x, "detach"):
            x = x.detach().cpu()
            x = x.double() if x.is_floating_point() and x.element_size() < 4 else x  # NumPy has no bfloat16
        x = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, meta and sparse tensors, tracers
        raise ValueError(f"{what} are an array of numbers, got {_words(error)}; pass a plain one") from None
    if "float" in x.dtype.name:  # JAX's bfloat16 and its like are no kind of float to NumPy
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
    if x.dtype.kind not in "biuf":
        got = x.dtype if x.ndim else shown(x.item())
        raise ValueError(f"{what} are real numbers, got {got}; pass an array of floats")
    if dtype is bool and x.dtype != bool:
        if unknown := int(np.isnan(x).sum()):
            raise ValueError(f"a mask says of every token whether it counts, got {unknown} NaN; fill them in")
        if (odd := x[(x != 0) & (x != 1)]).size:
            raise ValueError(f"a mask says by 0 or 1 whether a token counts, got {odd[0]:g}; pass mask > 0")
    if dtype is None:
        dtype = x.dtype if x.dtype == np.float32 else np.float64
    return x.astype(dtype, copy=False)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:SHOWN] or type(error).__name__
