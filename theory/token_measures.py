"""Measures of discrepancy and lag from three log-probabilities a token: all any trainer has to hand over.

Every name is a key of `theory.records.STEP_COLUMNS`; everything is pooled, raw and in float64.
"""

from __future__ import annotations

from theory.arrays import Array
from theory.monitor import read_batch


def token_measures(logmu: Array | None, logpi_s: Array, logpi: Array, /, *, mask: Array) -> dict[str, float]:
    """Measures over the tokens of a batch and, where they are one number a response, over its responses.

    Parameters
    ----------
    logmu : array, shape (B, T), or None
        Log-probs under the engine, nats. None, or a NaN at a token that counts: the engine reported none, and
        what needs them is absent.
    logpi_s, logpi : array, shape (B, T)
        The trainer's at the sampler's weights and now.
    mask : array of bool, shape (B, T)
        True at tokens that count; what stands elsewhere never matters.

    Returns
    -------
    dict
        What could be measured; empty where no token counts.
    """
    return read_batch(logmu, logpi_s, logpi, mask=mask, resamples=0).measures()
