"""Finding the files of a log: folders walked, in order, each file once under whatever names it is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from validation.audit.errors import BadLog, one_line

_IGNORED = {"STABLE", ".DS_Store"}


class Found(NamedTuple):
    """The files behind some paths."""

    files: list[Path]
    """Each once, under the first name it came by"""
    named: frozenset[Path]
    """Those of them that were named one by one; the others lay in a folder"""
    again: list[Path]
    """Names that lead to a file which is there already"""

    @property
    def size(self) -> int:
        """Bytes on disk; a file that has gone has none."""
        return sum(_size_of(path) for path in self.files)


def discover(paths: list[str], /) -> Found:
    """Files behind the given paths, directories walked, in natural order of their numbers.

    Raises
    ------
    BadLog
        For a path that does not exist or a directory without a file.
    """
    files: dict[Path, Path] = {}
    named: set[Path] = set()
    again: list[Path] = []
    for text in paths:
        path = Path(text)
        try:
            inside = _behind(path)
            for file in inside:
                real = file.resolve()
                if real in files:
                    again.append(file)
                files.setdefault(real, file)
                if path.is_file():
                    named.add(files[real])
        except OSError as error:
            raise BadLog(
                f"{one_line(path)}: cannot be read ({error.strerror}); check the path and its rights"
            ) from None
    return Found(list(files.values()), frozenset(named), again)


def _behind(path: Path) -> list[Path]:
    """Files of a folder, or the file itself."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadLog(f"{one_line(path)}: no such file or folder; name what the trainer wrote")
    inside = [p for p in path.rglob("*") if p.is_file() and p.name not in _IGNORED]
    if not inside:
        raise BadLog(f"{one_line(path)}: the folder holds no file; name the folder the trainer wrote to")
    return sorted(inside, key=_natural)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sort key in which step_9 stands before step_10."""
    parts: list[tuple[int, int, str]] = []
    number = ""
    for c in str(path) + "\0":
        if c.isascii() and c.isdigit():
            number += c
        else:
            if number:
                parts.append((0, int(number[:18]), ""))
                number = ""
            parts.append((1, 0, c))
    return parts


def _size_of(path: Path) -> int:
    """Bytes on disk, 0 if the file has gone."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
