"""Files that are whole or absent: written beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"
"""Prefix of files under construction; whatever carries it was left by a killed writer and is never read"""


def write_file(path: Path, write: Callable[[Path], object], /) -> None:
    """Let `write` make a file under a temporary name, then put it at `path` in one step.

    A kill at any moment leaves the old content of `path` or the new one, and at worst a temporary file
    beside it. A link is followed; what is no regular file, such as a terminal, is written to as it is.
    """
    if path.exists() and not path.is_file():
        write(path)
        return
    if path.is_symlink():
        path = path.resolve()
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    # the rename itself is durable only when the folder's entry is on disk
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str, /) -> None:
    """Write UTF-8 text in one step; what it cannot hold, as of a file's name, stands as its escape."""
    content = text.encode("utf-8", errors="backslashreplace")
    write_file(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, value: Any, /) -> None:
    """Write JSON in one step; NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def plain(value: Any, /) -> Any:
    """Replace every number JSON cannot hold with None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
