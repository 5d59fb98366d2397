"""One line of a law: what a formula says, beside what a computation without it gives."""

from __future__ import annotations

import math

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control, Form
from validation.claims import CLAIMS

ROUNDING = 1e-9
"""Exact against exact: quadrature, enumeration and some hundred float64 operations agree to this"""


def law(
    claim: str,
    reading: str,
    /,
    *,
    predicted: float,
    computed: float | Estimate,
    control: tuple[str, float | Estimate],
    margin: float = ROUNDING,
    unit: str = "",
    form: Form = "within",
    note: str = "",
) -> Check:
    """Set a closed form beside an independent computation.

    Parameters
    ----------
    claim, reading : str
        Id of the claim; what exactly is compared.
    predicted : float
        The closed form, exact.
    computed : float or Estimate
        The independent value; an Estimate where it was sampled.
    control : tuple of str and float or Estimate
        The same with the effect switched off: what, and its value. It must fail.
    margin : float
        In `unit`.
    unit : str
        Of all three.
    form : {"within", "at most", "at least"}
        How they are compared.
    note : str
        What the numbers do not say.
    """

    def measured(value: float | Estimate) -> Estimate:
        return value if isinstance(value, Estimate) else Estimate(value=float(value), unit=unit)

    what, switched_off = control
    return Check(
        claim=claim,
        reading=reading,
        form=form,
        predicted=Estimate(value=float(predicted), unit=unit),
        margin=margin,
        measured=measured(computed),
        control=Control(what=what, measured=measured(switched_off)),
        source=CLAIMS[claim].law,
        note=note,
    )


def vectors(
    claim: str,
    reading: str,
    /,
    *,
    predicted: np.ndarray,
    computed: np.ndarray,
    control: tuple[str, np.ndarray],
    margin: float = ROUNDING,
    unit: str = "",
) -> Check:
    """Set a vector (or matrix) in closed form beside its computation: the largest difference must vanish."""
    what, switched_off = control
    shown = np.array2string(np.asarray(predicted), precision=4, suppress_small=True, separator=", ")
    return law(
        claim,
        f"{reading}: largest difference",
        predicted=0.0,
        computed=float(np.abs(predicted - computed).max()),
        control=(what, float(np.abs(predicted - switched_off).max())),
        margin=margin,
        unit=unit,
        note=f"predicted {' '.join(shown.split())}" if np.size(predicted) <= 8 else "",
    )


def share(hits: int, of: int, /, *, unit: str = "share") -> Estimate:
    """Share of independent trials, with its binomial error (half a count is added: 0 of n is not certain)."""
    p = (hits + 0.5) / (of + 1)
    return Estimate(value=hits / of, stderr=math.sqrt(p * (1 - p) / of), unit=unit)
