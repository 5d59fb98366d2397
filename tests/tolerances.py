"""How close two numbers must be, by the kind of claim; no test writes a bare 1e-something of its own.

========================================  ====================================================================
kind of claim                             tolerance
========================================  ====================================================================
identity of bits                          0: ``BITWISE``
exact algebra                             ``algebra(*magnitudes)``: c * eps * sum of magnitudes, c <= 8
same math, other library, float32         ``OTHER_LIBRARY_FLOAT32``
library default                           ``library(dtype)``: rtol 4 * sqrt(eps)
asymptotic law                            ``order_of`` within ``ORDER_MARGIN`` of the law's integer
Monte Carlo                               ``MONTE_CARLO_Z`` standard errors, fixed seed, error printed
replication of a published number         declared with the claim, before the run
golden trace                              ``GOLDEN_RTOL``
========================================  ====================================================================
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BITWISE = 0.0
"""Same kernel, same batch: the right tolerance for a claim of identity is none"""

ALGEBRA_FACTOR = 8.0
"""The largest factor an exact identity may ask for: about that many roundings of its largest terms"""

OTHER_LIBRARY_FLOAT32: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}
"""The same float32 formula in another library: exp and log differ by ulps, sums by their order"""

ORDER_MARGIN = 0.35
"""How far a measured order of convergence may be from the law's integer: the next order, at steps of 2^-3 to
2^-6 of a unit logit, bends the slope by less; a wrong order misses by at least 1"""

MONTE_CARLO_Z = 4.0
"""Standard errors; n is chosen so that they are below half of the effect"""

GOLDEN_RTOL = 1e-6


def eps(dtype: Any = np.float64) -> float:
    """Spacing of a NumPy dtype's numbers at 1."""
    return float(np.finfo(dtype).eps)


def algebra(*magnitudes: Any, factor: float = ALGEBRA_FACTOR, dtype: Any = np.float64) -> float:
    """Absolute tolerance of an exact identity whose terms are as large as `magnitudes`."""
    if not factor <= ALGEBRA_FACTOR:
        raise ValueError(f"exact algebra is off by at most {ALGEBRA_FACTOR} roundings a term, got {factor}")
    total = sum(float(np.max(np.abs(np.asarray(m, dtype=np.float64)), initial=0.0)) for m in magnitudes)
    return factor * eps(dtype) * total


def library(dtype: Any = np.float64) -> float:
    """Relative tolerance where nothing sharper is claimed."""
    return 4 * math.sqrt(eps(dtype))


def order_of(errors: Any, steps: Any) -> float:
    """Exponent p of ``error ~ step^p``, by least squares in logs."""
    return float(np.polyfit(np.log(np.asarray(steps)), np.log(np.asarray(errors)), 1)[0])
