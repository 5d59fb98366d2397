"""Canonical traces that a trainer appends to, read once and a line at a time.

A line that cannot be read is counted and said, and the others go on. The last line is left alone until it
ends: it may be half written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from validation.audit.errors import one_line
from validation.audit.files import parse
from validation.audit.readers.base import Source
from validation.watch.progress import Progress
from validation.watch.response import Response, holes_of, measures_of, response_of

OPEN_STEPS = 4
"""Newest steps that still take lines: the files of several workers do not grow in step. The responses of
older ones are let go, or a long run would not fit in memory"""


@dataclass
class _Place:
    """How far a file has been read."""

    identity: tuple[int, int] = (0, 0)
    """Device and number of the file: another one under its name was begun anew"""
    byte: int = 0
    line: int = 0
    ended: bool = True
    """False where the last line read has no newline yet"""
    half: bool = False
    """Whether a line that is no whole object stood at the end at the last look"""


@dataclass
class _Read:
    """What has been read of all files."""

    places: dict[Path, _Place]
    open: dict[int, list[Response]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    """Steps to be judged anew"""
    done: dict[int, Mapping[str, float]] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)
    bad: int = 0
    first_bad: str = ""

    def take(self, response: Response) -> None:
        """Put a response to its step."""
        step = response.step
        if step not in self.open and step in self.done:
            raise ValueError(f"it came after {OPEN_STEPS} later steps, and step {step} is judged already")
        self.open.setdefault(step, []).append(response)
        self.changed.add(step)
        if response.version is not None:
            self.versions[step] = max(response.version, self.versions.get(step, response.version))

    def judge(self) -> None:
        """Measure the steps that got lines, and let the old ones go."""
        for step in self.changed:
            self.done[step] = measures_of(self.open[step])
            self.holes[step] = holes_of(self.open[step])
        self.changed.clear()
        for step in sorted(self.open)[:-OPEN_STEPS]:
            del self.open[step]

    def steps(self) -> list[dict[str, float]]:
        """Measures by step."""
        found = [dict(self.done[s]) | {"step": float(s)} for s in sorted(self.done)]
        for now, after in pairwise(found):
            before, later = (self.versions.get(int(s["step"])) for s in (now, after))
            if before is not None and later is not None and later > before:
                now["pushed"] = 1.0
        return found

    def unread(self) -> str:
        """Say how many lines could not be read, and why the first could not."""
        if not self.bad:
            return ""
        many = f"{self.bad} lines not read, the first at" if self.bad > 1 else "1 line not read, at"
        return f"{many} {self.first_bad}; `lagfloor audit` reads other formats and says more"

    def notes(self) -> tuple[str, ...]:
        """Say how many tokens were left out, and which files end in the middle of a line."""
        said = []
        holes = {step: n for step, n in sorted(self.holes.items()) if n}
        if holes:
            said.append(
                f"{sum(holes.values())} response tokens have no number in a column of their step and do not "
                f"count, the first at step {min(holes)}"
            )
        for file, place in self.places.items():
            if place.half:
                said.append(
                    f"{one_line(file.name)} ends in the middle of line {place.line + 1}, which does not "
                    "count: it is being written, or its writer was stopped"
                )
        return tuple(said)


@dataclass
class TraceFiles:
    """Canonical traces that a trainer appends to."""

    files: list[Path]
    folder: Path | None = None
    """Where more of them may turn up: the workers of a run do not all begin to write at once"""
    _read: _Read | None = None

    def poll(self) -> Progress:
        """Read the lines appended since; a step is judged anew while it still gets lines."""
        if self.folder is not None:
            self.files = sorted({*self.files, *traces_in(self.folder)})
        read = self._read
        if read is None or any(_begun_anew(file, place) for file, place in read.places.items()):
            # what was read of the old one is gone
            read = self._read = _Read({})
        for file in self.files:
            if file not in read.places:
                read.places[file] = _Place(_identity(file))
        for number, file in enumerate(self.files):
            for line, record in _new_lines(file, read.places[file]):
                try:
                    read.take(response_of(record, Source(file, number), line))
                except ValueError as error:
                    read.bad += 1
                    read.first_bad = read.first_bad or f"{one_line(file.name)} line {line}: {error}"
        read.judge()
        title = ", ".join(one_line(f.name) for f in self.files)
        return Progress(title, "growing", tuple(read.steps()), None, read.unread(), read.notes())


def traces_in(folder: Path, /) -> list[Path]:
    """Files of a folder named as hooks name theirs: TRL's ends in its rank where it has several processes."""
    return sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.rank*")])


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_dev, found.st_ino


def _begun_anew(file: Path, place: _Place) -> bool:
    """Whether the file has shrunk, or is another one: it was rotated."""
    return file.stat().st_size < place.byte or _identity(file) != place.identity


def _new_lines(file: Path, place: _Place, /) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the whole lines beyond where the last poll ended; None: no JSON."""
    place.half = False
    with file.open("rb") as opened:
        opened.seek(place.byte)
        for raw in opened:
            text, ends = raw.strip(), raw.endswith(b"\n")
            record = parse(text) if text else None
            if not ends and not isinstance(record, dict):
                place.half = bool(text)
                return  # still being written; an object that is whole cannot go on
            place.byte += len(raw)
            place.line += 1 if text or place.ended else 0
            place.ended = ends
            if text:
                yield place.line, record
