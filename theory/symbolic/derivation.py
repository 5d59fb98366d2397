"""A derived formula: its symbols, its expression, and its value at numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """Result of a derivation."""

    symbols: tuple[Any, ...]
    """Arguments of the lambdified expression, each a symbol or a tuple of symbols (an array)"""
    expression: Any
    """Scalar or Matrix of sympy"""

    def __call__(self, *values: Any) -> np.ndarray:
        """Evaluate at numbers, one argument per entry of `symbols`; arrays of shape (K,) for tuples."""
        numeric = sp.lambdify(self.symbols, self.expression, "numpy")
        return np.squeeze(np.asarray(numeric(*values), dtype=np.float64))


def vector(name: str, size: int, /, **assumptions: Any) -> tuple[sp.Symbol, ...]:
    """Symbols name_0 ... name_(size-1), real unless said otherwise."""
    return tuple(sp.Symbol(f"{name}_{i}", **({"real": True} | assumptions)) for i in range(size))


def softmax(logits: Sequence[Any], /) -> list[Any]:
    """Probabilities of a softmax, as expressions."""
    total = sum(sp.exp(z) for z in logits)
    return [sp.exp(z) / total for z in logits]


def dot(x: Sequence[Any], y: Sequence[Any], /) -> Any:
    """Inner product of two lists of expressions."""
    return sum(a * b for a, b in zip(x, y, strict=True))
