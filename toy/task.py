"""The numbers an environment consists of, as one pytree: traced, so that another seed recompiles nothing.

Shape suffixes in toy/: C prompts, N samples per prompt, T positions, U memory states (a word, or last
the beginning), V vocabulary, D features, K steps, S seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """Policy parametrisation and rewards of one environment; NumPy when built, JAX inside a compiled call."""

    features_CTUD: Any
    logits_CTUV: Any
    """Logits of the initial policy, nats"""
    projector_VV: Any
    """Output embedding O: logits are ``z0 + (h W) O``"""
    reward_CV: Any = None
    """Reward by first token; None where the whole response decides"""
    score_CTUV: Any = None
    """Score of each token, summed over the response; None where the first token decides"""
    threshold_C: Any = None
    """Summed score from which a response is right"""

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Shape (D, V) of the trained weights."""
        return self.features_CTUD.shape[-1], self.projector_VV.shape[0]

    def cast(self, dtype: Any) -> Task:
        """Every array in one floating type."""
        return Task(*(None if x is None else np.asarray(x, dtype=dtype) for x in self))
