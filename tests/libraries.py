"""Moving numbers between NumPy and the array library under test."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NAMES = ("numpy", "array_api_strict", "torch", "jax.numpy")


def carry(xp: Any, x: Any, dtype: Any = np.float64) -> Any:
    """Array of the library `xp` with the values of `x`, floats in the NumPy dtype `dtype`."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        x = x.astype(dtype)
    return xp.asarray(np.array(x))


def as_numpy(x: Any) -> np.ndarray:
    """Values of an array of any library."""
    return np.asarray(x)


@contextlib.contextmanager
def jax_x64() -> Iterator[None]:
    """Context in which JAX keeps float64, and compiles fast rather than well: a test runs a kernel once."""
    import jax

    switch = getattr(jax, "enable_x64", None)  # jax >= 0.8; before that it was experimental
    if switch is None:
        from jax import experimental

        switch = experimental.enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with switch(True):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@functools.cache
def _jitted(f: Callable[..., Any], static: tuple[str | int, ...]) -> Callable[..., Any]:
    import jax

    names = [s for s in static if isinstance(s, str)]
    return jax.jit(f, static_argnames=names, static_argnums=[s for s in static if isinstance(s, int)])


def compiled(xp: Any, f: Callable[..., Any], *static: str | int) -> Callable[..., Any]:
    """`f` as its library would run it: compiled as one kernel by JAX, which also shows that it can be.

    `static` names the arguments (or the places of positional ones) that are no arrays.
    """
    return _jitted(f, static) if xp.__name__ == "jax.numpy" else f
