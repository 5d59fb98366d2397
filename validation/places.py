"""Where a command reads and writes: refused before anything is run, in one line."""

from __future__ import annotations

import os
from pathlib import Path

from validation.atomic import TEMPORARY
from validation.errors import BadUsage


def writable(path: Path | None, /, flag: str = "--json") -> None:
    """Refuse the path of an output now and not after minutes of runs.

    Raises
    ------
    BadUsage
        If no file can be made there. A folder it needs is made.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        if path.exists() and not path.is_file():
            raise OSError(22, "it is no regular file")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "permission denied")
        # what `os.access` allows a file system may still refuse, and the file is made beside its place
        real = path.resolve()
        trial = real.with_name(f"{TEMPORARY}{os.getpid()}-{real.name}")
        try:
            trial.touch()
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadUsage(f"{flag} must name a file that can be written, got {path} ({why})") from None


def made(path: Path, flag: str, /) -> None:
    """Make the folder of an output now, or refuse it, and not after minutes of runs.

    Raises
    ------
    BadUsage
        Naming the flag and why.
    """
    folder(path, flag)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadUsage(
            f"{flag} must name a folder that can be made, got {path} ({why}); name another"
        ) from None


def folder(path: Path, flag: str, /) -> None:
    """Refuse a folder that is a file, or lies below one; it need not exist.

    Raises
    ------
    BadUsage
        Naming the flag and what is in the way.
    """
    try:
        there = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
        if there.is_dir():
            return
        what = "is a file" if there.exists() else "is a link to nothing"
    except OSError as error:
        there, what = path, f"cannot be looked at ({(error.strerror or str(error)).lower()})"
    raise BadUsage(f"{flag} must name a folder, got {path}, and {there} {what}; name another")
