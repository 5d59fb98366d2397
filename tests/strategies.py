"""Hypothesis strategies that speak the project's language."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.extra.numpy as npst
import numpy as np
from hypothesis import strategies as st
from scipy.special import log_softmax

FURTHEST = 30.0
"""Largest logit: the rarest action of a row then has probability e^-60, far below any that is sampled"""

SHAPES = ((2,), (3, 5))
"""Few, so that JAX compiles each kernel once and not per example"""


class Rows(NamedTuple):
    """Logits and log-probabilities (float64) of full rows under the three policies, one shape (..., K)."""

    z_mu: np.ndarray
    z_s: np.ndarray
    z: np.ndarray

    @property
    def logmu(self) -> np.ndarray:
        """Engine."""
        return log_softmax(self.z_mu, axis=-1)

    @property
    def logpi_s(self) -> np.ndarray:
        """Trainer at the sampler's weights."""
        return log_softmax(self.z_s, axis=-1)

    @property
    def logpi(self) -> np.ndarray:
        """Trainer now."""
        return log_softmax(self.z, axis=-1)

    @property
    def logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All three, in the order of every signature of theory/."""
        return self.logmu, self.logpi_s, self.logpi


def floats(shape: tuple[int, ...], limit: float) -> st.SearchStrategy[np.ndarray]:
    """Array of finite float64 in [-limit, limit]; Hypothesis fills many entries alike, so ties are common."""
    return npst.arrays(np.float64, shape, elements=st.floats(-limit, limit, allow_subnormal=False))


@st.composite
def rows(draw: st.DrawFn, shapes: tuple[tuple[int, ...], ...] = SHAPES, furthest: float = FURTHEST) -> Rows:
    """Three rows of logits up to `furthest`; the engine's error, the lag, or both may be exactly zero."""
    shape = draw(st.sampled_from(shapes))
    z_s = draw(floats(shape, furthest))
    z_mu = draw(st.one_of(st.just(z_s), floats(shape, furthest)))
    z = draw(st.one_of(st.just(z_s), st.just(z_mu), floats(shape, furthest)))
    return Rows(z_mu, z_s, z)


def log_ratios(sizes: tuple[int, ...] = (1, 7, 32), spread: float = 60.0) -> st.SearchStrategy[np.ndarray]:
    """(n,) log ratios in nats, finite, as far apart as two extreme rows can put them."""
    return st.sampled_from(sizes).flatmap(lambda n: floats((n,), spread))


def masks(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Array of bool of that shape, all-true and all-false included."""
    return npst.arrays(np.bool_, shape)
