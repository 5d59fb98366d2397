"""From paths to blocks: which reader each file gets, what the user overrides.

What cannot be audited and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from theory.records import NOT_MEASURED, Provenance
from validation.audit.block import Block, Row, blocks
from validation.audit.errors import BadLog, one_line
from validation.audit.files import Opened, Record, discover, peek, records
from validation.audit.readers import READERS, curves, reader_for, slime, unauditable
from validation.audit.readers.base import Reader, Source

OldMeans = Literal["pi_s", "pi", "mu"]
MOST_SETTINGS = 16
"""Distinct sampling settings that are remembered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user knows better than the format."""

    format: str | None = None
    """Name of a reader; None: by content"""
    old_means: OldMeans | None = None
    """What the recomputed log-probs are; None: as the format's provenance says"""
    align: int = 0
    """Entry i of the engine's log-probs belongs to token i + align"""
    skip_bad: bool = False
    """Pass over lines that cannot be read"""


@dataclass(slots=True, kw_only=True)
class InputFile:
    """One file of the log and what became of it."""

    path: str
    format: str
    rows: int = 0
    tokens: int = 0
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Log:
    """A log being read: `blocks` streams it once; the other fields fill up while it does."""

    files: list[Path]
    options: Options = field(default_factory=Options)
    inputs: list[InputFile] = field(default_factory=list)
    reader: Reader | None = None
    metrics: curves.Curves = field(default_factory=curves.Curves)
    advice: list[str] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Distinct sampling settings by their own text"""
    skipped: int = 0
    progress: Callable[[int], None] | None = None
    joined: dict[Any, Any] = field(default_factory=dict)

    def blocks(self) -> Iterator[Block]:
        """Blocks of all files in order.

        Raises
        ------
        BadLog
            For a file that cannot be read, or files of two token formats.
        """
        return blocks(self._rows())

    def provenance(self) -> dict[str, Provenance]:
        """Provenance of each log-prob column as read, the user's word included."""
        known = dict(self.reader.provenance) if self.reader is not None else {}
        if self.options.old_means is not None and self.reader is not None:
            said = Provenance(kind="measured", how=f"--old-means {self.options.old_means}")
            match self.options.old_means:
                case "pi_s":
                    known |= {"logpi_s": said}
                    if "logpi_s" not in self.reader.provenance or self._only_pi:
                        known["logpi"] = Provenance(
                            kind="not measured", how="read as pi_s (--old-means pi_s)"
                        )
                case "pi":
                    known |= {"logpi_s": NOT_MEASURED, "logpi": said}
                case "mu":
                    known |= {"logpi_s": Provenance(kind="not measured", how="a copy of mu (--old-means mu)")}
        return known

    @property
    def _only_pi(self) -> bool:
        """Whether the format has the trainer's log-probs as pi alone."""
        column = (
            self.reader.provenance.get("logpi_s", NOT_MEASURED) if self.reader is not None else NOT_MEASURED
        )
        return column.kind == "not measured"

    def _rows(self) -> Iterator[Row]:
        opened = [peek(path) for path in self.files]
        self._join_slime(opened)
        for number, file in enumerate(opened):
            entry = InputFile(path=str(file.path), format=file.content)
            self.inputs.append(entry)
            match file.content:
                case "json":
                    yield from self._json_rows(file, number, entry)
                case "torch":
                    record = Record(slime.load(file.path), 1)
                    yield from self._record_rows(file.path, number, entry, iter([record]))
                case "csv":
                    entry.format = "curves"
                    curves.read_csv(file, self.metrics)
                case "parquet":
                    yield from self._parquet_rows(file.path, number, entry)
                case "pickle":
                    raise BadLog(f"{one_line(file.path)}: {unauditable.PICKLE}")
                case "empty":
                    entry.note = "empty"
                case "binary":
                    raise BadLog(
                        f"{one_line(file.path)}: a log must be JSON lines, CSV, a torch dump or parquet, "
                        "got other bytes; name the files a trainer wrote"
                    )

    def _join_slime(self, opened: list[Opened]) -> None:
        """Collect what only slime's rollout dumps know, where a log has train dumps too."""
        dumps = [o.path for o in opened if o.content == "torch"]
        if len(dumps) < 2:
            return
        loaded = {path: slime.load(path) for path in dumps}
        if not any(slime.is_train(r) for r in loaded.values()):
            return
        for path, record in loaded.items():
            if "samples" in record and not slime.is_train(record):
                self.joined |= slime.rollout_facts(record)
                self.files.remove(path)
                self.inputs.append(
                    InputFile(path=str(path), format="slime", note="joined to the train dumps")
                )
        opened[:] = [o for o in opened if o.path in self.files]

    def _json_rows(self, file: Opened, number: int, entry: InputFile) -> Iterator[Row]:
        found = records(file, progress=self.progress, skip_bad=self.options.skip_bad)
        yield from self._record_rows(file.path, number, entry, found)

    def _record_rows(
        self, path: Path, number: int, entry: InputFile, found: Iterator[Record]
    ) -> Iterator[Row]:
        """Rows of one file; its first record decides the format."""
        first = next(found, None)
        if first is None:
            entry.note = "empty"
            return
        reader = self._reader(path, first.value)
        if reader is None:
            if curves.recognise(first.value):
                entry.format = "curves"
                for record in (first, *found):
                    self.metrics.add(record.value)
                    entry.rows += 1
                return
            advice = unauditable.advice_for(first.value)
            if advice is None:
                keys = one_line(", ".join(map(str, first.value)), limit=80)
                raise BadLog(
                    f"{one_line(path)}:{first.line}: no known format has these keys ({keys}); "
                    f"known: {', '.join(READERS)}; pass --format"
                )
            entry.format, entry.note = advice.source, "no log-probs"
            self._advise(f"{advice.source}: not auditable; {advice.switch_on}")
            return
        entry.format = reader.name
        source = Source(path, number, _number_in(path), self.joined)
        yield from self._read(reader, source, entry, first)
        for record in found:
            yield from self._read(reader, source, entry, record)

    def _read(self, reader: Reader, source: Source, entry: InputFile, record: Record) -> Iterator[Row]:
        """Rows of one record, with the user's overrides."""
        if not reader.recognise(record.value):
            if self.options.skip_bad:
                self.skipped += 1
                return
            keys = one_line(", ".join(map(str, record.value)), limit=80)
            raise BadLog(
                f"{one_line(source.path)}:{record.line}: a file must hold one format, began as {reader.name},"
                f" got keys {keys or '(none)'}; split the file or pass --skip-bad"
            )
        self._note_settings(record.value)
        try:
            for row in reader.rows(record.value, source, record.line):
                entry.rows += 1
                entry.tokens += _counted(row)
                yield self._override(row)
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            raise BadLog(
                f"{one_line(source.path)}:{record.line}: not a well-formed {reader.name} record "
                f"({one_line(error, limit=80)}); repair it or pass --format"
            ) from None

    def _reader(self, path: Path, record: Mapping[str, Any]) -> Reader | None:
        """Reader of a file; all token files of a log must have one format."""
        name = self.options.format
        if name is not None:
            if name not in READERS:
                raise BadLog(f"unknown format {one_line(name)!r}; known: {', '.join(READERS)}")
            reader: Reader | None = READERS[name]
            if reader is not None and not reader.recognise(record):
                raise BadLog(
                    f"{one_line(path)}: --format {name} was asked for, but the first record has keys "
                    f"{one_line(', '.join(map(str, record)), limit=80)}; leave --format out"
                )
        else:
            reader = reader_for(record)
        if reader is not None and self.reader is not None and reader.name != self.reader.name:
            raise BadLog(
                f"{one_line(path)}: one audit reads one token format, got {self.reader.name} and"
                f" {reader.name}; audit them apart"
            )
        if reader is not None:
            self.reader = reader
        return reader

    def _override(self, row: Row) -> Row:
        """Apply --old-means and --align to a row."""
        old = self.options.old_means
        if old == "mu":
            row = row._replace(logpi_s=None)
        elif old == "pi" and row.logpi_s is not None:
            row = row._replace(logpi_s=None, logpi=row.logpi if row.logpi is not None else row.logpi_s)
        elif old == "pi_s" and row.logpi_s is None:
            row = row._replace(logpi_s=row.logpi, logpi=None)
        k = self.options.align
        if k and isinstance(row.logmu, list):
            mu = row.logmu
            moved = [None] * k + mu[: len(mu) - k] if k > 0 else mu[-k:] + [None] * -k
            mask = row.mask if row.mask is not None else [1] * len(mu)
            edge = [0] * k + mask[k:] if k > 0 else mask[:k] + [0] * -k
            row = row._replace(logmu=moved, mask=edge)
        return row

    def _parquet_rows(self, path: Path, number: int, entry: InputFile) -> Iterator[Row]:
        """Rows of a parquet file with canonical columns; other parquet holds text."""
        import pyarrow  # only this format needs it
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path)
            names = file.schema_arrow.names
            reader = reader_for(dict.fromkeys(names))
            if reader is None:
                entry.format, entry.note = "parquet", "no log-probs"
                self._advise(f"{unauditable.PARQUET.source}: not auditable; {unauditable.PARQUET.switch_on}")
                return
            found = (
                Record(r, i) for b in file.iter_batches(1024) for i, r in enumerate(b.to_pylist(), start=1)
            )
            yield from self._record_rows(path, number, entry, found)
        except (pyarrow.ArrowException, OSError) as error:
            raise BadLog(
                f"{one_line(path)}: not a readable parquet file ({one_line(error, limit=80)})"
            ) from None

    def _advise(self, text: str) -> None:
        if text not in self.advice:
            self.advice.append(text)

    def _note_settings(self, record: Mapping[str, Any]) -> None:
        """Remember the sampling settings a record states."""
        stated = record.get("sampling")
        if not isinstance(stated, dict) or len(self.settings) >= MOST_SETTINGS:
            return
        try:
            key = orjson.dumps(stated, option=orjson.OPT_SORT_KEYS).decode()
        except (orjson.JSONEncodeError, UnicodeError):
            return
        self.settings.setdefault(key, stated)


def open_log(
    paths: list[str], /, *, options: Options | None = None, progress: Callable[[int], None] | None = None
) -> Log:
    """Find the files of a log; nothing is read yet."""
    return Log(files=discover(paths), options=options or Options(), progress=progress)


def _counted(row: Row) -> int:
    """Tokens of a row under its mask."""
    mu, mask = row.logmu, row.mask
    if not isinstance(mu, list):
        return 0
    return len(mu) - (mask.count(0) if isinstance(mask, list) else 0)


def _number_in(path: Path) -> int | None:
    """Step that a file's or its folder's name ends in: train_data_step7.jsonl, step_7/rank_0.jsonl, 7.pt."""
    for part in (path.parent.name, path.name.split(".")[0]):
        before, mark, digits = part.rpartition("step")
        digits = digits.strip("_-")
        if mark and digits.isascii() and digits.isdecimal() and len(digits) < 12:
            return int(digits)
        del before
    return None
