"""Where compiled simulators are kept between processes: the user's cache folder, never the checkout."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import jax

VARIABLE = "LAGFLOOR_CACHE"
"""Environment variable that names another folder; "off" keeps nothing."""


def folder() -> Path | None:
    """Folder of the compile cache, or None where the user has switched it off."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen).expanduser() / "jax"
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "lagfloor" / "jax"


@functools.cache
def switch_on() -> Path | None:
    """Have JAX keep what it compiles, unless the user has said where or not to."""
    chosen = jax.config.values["jax_compilation_cache_dir"]
    if chosen is not None:
        return Path(chosen)
    place = folder()
    if place is not None:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None  # a read-only home costs compile time, not the run
        jax.config.update("jax_compilation_cache_dir", str(place))
        # the small functions of `toy.measure` count too: a check calls dozens of them
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return place
