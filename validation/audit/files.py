"""Opening the files of a log: plain, gz and zst, JSON lines and whole documents.

Judged by content.

Nothing here trusts a file name. A file's first bytes say what it is; a pickle is named and refused, never
loaded.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import orjson
import zstandard

from validation.audit.errors import BadLog, one_line

Content = Literal["json", "csv", "torch", "parquet", "pickle", "binary", "empty"]

LONGEST_DOCUMENT = 1 << 30
"""Bytes of a JSON document that is not one record a line; it has to be held in memory whole"""
LONGEST_LINE = 1 << 28
"""Bytes of one line; a longer one is no log line, and reading it would break the memory bound"""
_PEEK = 1 << 16
BROKEN = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What reading a damaged or cut file raises"""


class Opened(NamedTuple):
    """A file's readable stream with what its first bytes say."""

    path: Path
    content: Content
    head: bytes
    compressed: bool


def peek(path: Path, /) -> Opened:
    """Look at the first bytes of a file."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(6)
        compressed = magic[:2] == b"\x1f\x8b" or magic[:4] == b"\x28\xb5\x2f\xfd"
        with stream(path) as file:
            head = file.read(_PEEK)
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise BadLog(f"{one_line(path)}: cannot be read ({reason}); the file may be cut off") from None
    return Opened(path, _content(path, head, compressed), head, compressed)


def stream(path: Path, /) -> IO[bytes]:
    """Open a file for reading bytes, decompressed if its magic says gz or zst."""
    raw = path.open("rb")
    magic = raw.read(4)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        raw.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if magic == b"\x28\xb5\x2f\xfd":
        return io.BufferedReader(_Zst(raw), 1 << 20)
    return raw


class _Zst(io.RawIOBase):
    """Frames of a zst file, one after the other; a file that ends within a frame is an error, not an end."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None
        self._fed = b""
        self._ready = b""

    def readable(self) -> bool:
        """Tell the buffer above that this can be read."""
        return True

    def close(self) -> None:
        """Close the file below as well."""
        self._raw.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with decompressed bytes."""
        while not self._ready:
            if not self._fed:
                self._fed = self._raw.read(1 << 17)
                if not self._fed:
                    if self._frame is not None:
                        raise EOFError("the file ends within a zst frame")
                    return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready, fed = self._frame.decompress(self._fed), self._fed
            self._fed = b""
            if self._frame.eof:
                self._fed = self._frame.unused_data if len(self._frame.unused_data) < len(fed) else b""
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _content(path: Path, head: bytes, compressed: bool) -> Content:
    if not head.strip():
        return "empty"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:4] == b"PK\x03\x04" and not compressed:
        try:
            with zipfile.ZipFile(path) as archive:
                return "torch" if any(n.endswith("data.pkl") for n in archive.namelist()) else "binary"
        except (zipfile.BadZipFile, OSError):
            return "binary"
    if head[:6] == b"\x80\x02\x8a\nl\xfc":
        return "torch"  # the format before torch 1.6
    if head[:1] == b"\x80" and len(head) > 1 and head[1] in (2, 3, 4, 5):
        return "pickle"
    if b"\0" in head:
        return "binary"
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if first in (b"{", b"["):
        return "json"
    line = head.split(b"\n", 1)[0]
    return "csv" if b"," in line or b"\t" in line else "binary"


class Record(NamedTuple):
    """One JSON object with its place."""

    value: dict[str, Any]
    line: int


def records(opened: Opened, /, *, progress: Any = None, skip_bad: bool = False) -> Iterator[Record]:
    """Objects of a JSON file: one a line, an array of them, or one document.

    Parameters
    ----------
    opened : Opened
        A file whose content is "json".
    progress : callable, optional
        Called with the bytes read since the last call.
    skip_bad : bool
        Pass over lines that are not JSON in place of stopping.
    """
    path = opened.path
    if not _is_lines(opened):
        yield from _document(path, progress)
        return
    line_number, unseen = 0, 0
    try:
        with stream(path) as file:
            while line := file.readline(LONGEST_LINE):
                line_number += 1
                unseen += len(line)
                if progress is not None and unseen > 1 << 20:
                    progress(unseen)
                    unseen = 0
                if len(line) >= LONGEST_LINE:
                    raise BadLog(
                        f"{one_line(path)}:{line_number}: a line must be shorter than {LONGEST_LINE} bytes"
                    )
                text = line.strip()
                if not text:
                    continue
                value = parse(text)
                if isinstance(value, dict):
                    yield Record(value, line_number)
                elif not skip_bad:
                    raise BadLog(_bad_line(path, line_number, text, value))
    except BROKEN as error:
        if skip_bad:
            return
        raise BadLog(
            f"{one_line(path)}:{line_number}: the compressed stream is broken ({one_line(error)}); "
            "the file may be cut off (--skip-bad reads what is there)"
        ) from None
    if progress is not None:
        progress(unseen)


def head_records(opened: Opened, /) -> Iterator[dict[str, Any]]:
    """Objects on the whole lines of what `peek` saw."""
    for line in opened.head.split(b"\n")[: max(opened.head.count(b"\n"), 1)]:
        value = parse(line.strip())
        if isinstance(value, dict):
            yield value


def _bad_line(path: Path, line: int, text: bytes, value: Any) -> str:
    got = "not JSON" if value is None else f"a {type(value).__name__}"
    cut = " (cut off?)" if text[:1] == b"{" and text[-1:] != b"}" else ""
    return (
        f"{one_line(path)}:{line}: each line must be one JSON object, got {got}{cut}: "
        f"{one_line(text[:60].decode('utf-8', 'replace'))!r}; repair it or pass --skip-bad"
    )


def parse(text: bytes) -> Any:
    """JSON of one line; None where it is none. Python's own NaN and Infinity words are accepted."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_lines(opened: Opened) -> bool:
    """Whether the first line is a whole object: pretty-printed documents and arrays are not."""
    head = opened.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] != b"{":
        return False
    line, newline, _ = head.partition(b"\n")
    if not newline:
        return True  # longer than the peek, or the only line
    return line.strip() != b"{" and (parse(line.strip()) is not None or b"}" in line)


def _document(path: Path, progress: Any) -> Iterator[Record]:
    """Read a JSON document whole: one object, or an array of objects."""
    try:
        with stream(path) as file:
            text = file.read(LONGEST_DOCUMENT + 1)
    except BROKEN as error:
        raise BadLog(f"{one_line(path)}: the compressed stream is broken ({one_line(error)})") from None
    if len(text) > LONGEST_DOCUMENT:
        raise BadLog(
            f"{one_line(path)}: a JSON document may have {LONGEST_DOCUMENT} bytes at most, since it is held"
            " in memory; write one record a line"
        )
    value = parse(text.lstrip(b"\xef\xbb\xbf").strip())
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, dict) for item in items):
        got = "not JSON" if value is None else f"a {type(value).__name__}"
        raise BadLog(f"{one_line(path)}: a log must hold JSON objects, got {got}; the file may be cut off")
    for number, item in enumerate(items, start=1):
        yield Record(item, number)
    if progress is not None:
        progress(len(text))
