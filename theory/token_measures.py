"""Measures of discrepancy and lag from three log-probabilities a token: all any trainer has to hand over.

Every name is a key of `theory.records.STEP_COLUMNS`; everything is pooled and raw, and sums are in float64.
"""

from __future__ import annotations

import math

import numpy as np

from theory.arrays import Array
from theory.batch import TokenBatch, token_batch
from theory.ess import ess_fraction
from theory.tail import k_hat
from theory.token_statistics import statistics, step_measures

OF_THE_ENGINE = ("discrepancy_rms", "ess_total")
"""What cannot be said without the engine's log-probs"""


def token_measures(
    logmu: Array | None, logpi_s: Array, logpi: Array, /, *, mask: Array | None = None
) -> dict[str, float]:
    """Measures over the tokens of a batch and, where they are one number a response, over its responses.

    Parameters
    ----------
    logmu : array, shape (B, T), or None
        Log-probs under the engine, nats. None, or a NaN at a token that counts: the engine reported none, and
        what needs them is absent.
    logpi_s, logpi : array, shape (B, T)
        The trainer's at the sampler's weights and now. float32 will do.
    mask : array of bool, shape (B, T), optional
        True at tokens that count; what stands elsewhere never matters.

    Returns
    -------
    dict
        What could be measured; empty where no token counts.

    Raises
    ------
    ValueError
        As of `theory.batch.token_batch`.
    """
    found = measures_of(token_batch(logmu, logpi_s, logpi, mask=mask))
    return {name: value for name, value in found.items() if not math.isnan(value)}


@np.errstate(invalid="ignore", over="ignore")  # infinite and unknown ratios have values
def measures_of(batch: TokenBatch, /) -> dict[str, float]:
    """`token_measures` of a batch that is checked; NaN where not measured."""
    logmu = batch.logpi_s if batch.logmu is None else batch.logmu
    found = step_measures(statistics(logmu, batch.logpi_s, batch.logpi))
    found["ess_sequence"] = float(ess_fraction(batch.response_lag))
    found["k_hat"] = float(k_hat(batch.lag)) if batch.lag.size else math.nan
    if batch.logmu is None:
        found |= dict.fromkeys(OF_THE_ENGINE, math.nan)
    return found
