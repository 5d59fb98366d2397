"""A first look at every file of a log: what each is, and which stay out as copies in another format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from validation.audit.files import Content, head_records, peek
from validation.audit.readers import READERS, reader_for


class Look(NamedTuple):
    """What a file is."""

    path: Path
    content: Content
    reader: str | None
    """By its first line, if that is whole in what is peeked at"""


class Beside(NamedTuple):
    """A file that is passed over."""

    path: Path
    format: str
    note: str


def look_at(path: Path, /) -> Look:
    """Say what a file is."""
    opened = peek(path)
    first = next(head_records(opened), None) if opened.content == "json" else None
    reader = None if first is None else reader_for(first)
    return Look(path, opened.content, None if reader is None else reader.name)


def of_one_format(looks: list[Look], named: Collection[Path], /) -> tuple[list[Look], list[Beside]]:
    """Keep, where a folder holds several token formats, the one that tells most; the others with a note.

    Files in `named` stay whatever they are: the user asked for them.
    """
    known = [look.reader for look in looks if look.reader is not None]
    chosen = min(known, key=list(READERS).index, default=None)
    kept, beside = [], []
    for look in looks:
        if look.reader in (None, chosen) or look.path in named:
            kept.append(look)
        else:
            beside.append(Beside(look.path, look.reader or "", f"passed over: beside {chosen}"))
    return kept, beside
