"""From paths to blocks: which reader each file gets, and what cannot be audited and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from theory.records import Provenance
from validation.audit.block import Block, Row
from validation.audit.discovery import discover
from validation.audit.errors import BadLog, NoLog, one_line
from validation.audit.files import Opened, Record, peek, records
from validation.audit.looks import look_at, of_one_format
from validation.audit.options import Options
from validation.audit.packing import blocks
from validation.audit.readers import READERS, curves, reader_for, slime, unauditable
from validation.audit.readers.base import Reader, Source, step_in

MOST_SETTINGS = 16
"""Distinct sampling settings that are remembered"""


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
    named: frozenset[Path] = frozenset()
    """Files the user named one by one; those found in a folder may be no logs at all"""
    again: list[Path] = field(default_factory=list)
    """Names that lead to a file which is read already"""
    moved_out: int = 0
    """Rows whose engine's log-probs --align moved out, all of them"""
    refused: list[str] = field(default_factory=list)
    """Why files of a folder were passed over"""

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
        return {} if self.reader is None else self.options.provenance(self.reader.provenance)

    def _rows(self) -> Iterator[Row]:
        # each file is looked at twice, so that the heads of thousands of shards are never held together
        looks = [look_at(path) for path in self.files]
        dumps = slime.by_rollout([look.path for look in looks if look.content == "torch"])
        if self.options.format is None:
            looks, beside = of_one_format(looks, self.named)
            self.inputs += [InputFile(path=str(p), format=f, note=note) for p, f, note in beside]
        for number, look in enumerate(looks):
            file = peek(look.path)
            entry = InputFile(path=str(file.path), format=file.content)
            match file.content:
                case "torch":
                    yield from self._dump_rows(dumps.pop(slime.rollout_of(file.path), []), number)
                    continue
                case "json":
                    found = self._json_rows(file, number, entry)
                case "parquet":
                    found = self._parquet_rows(file.path, number, entry)
                case "csv":
                    found = self._table(file, entry)
                case "empty":
                    entry.note, found = "empty", iter(())
                case "pickle":
                    found = _refuse(f"{one_line(file.path)}: {unauditable.PICKLE}")
                case "binary":
                    found = _refuse(
                        f"{one_line(file.path)}: a log must be JSON lines, CSV, a torch dump or parquet, "
                        "got other bytes; name the files a trainer wrote"
                    )
            self.inputs.append(entry)
            try:
                yield from found
            except NoLog as error:
                # beside logs in a folder lie configurations and notes; only what was named must be a log
                if file.path in self.named:
                    raise
                entry.note = "passed over: no log the audit knows"
                self.refused.append(str(error))
        if self.refused and not any(f.rows or f.tokens for f in self.inputs) and not self.advice:
            raise BadLog(self.refused[0])

    def _table(self, file: Opened, entry: InputFile) -> Iterator[Row]:
        """Take in a table of metrics; it has no rows of tokens."""
        before = len(self.metrics.rows)
        curves.read_csv(file, self.metrics)
        entry.format, entry.rows = "curves", len(self.metrics.rows) - before
        yield from ()

    def _dump_rows(self, paths: list[Path], number: int) -> Iterator[Row]:
        """Rows of one rollout's dumps; where the trainer's is there, the engine's adds what only it knows."""
        loaded = [(path, slime.load(path)) for path in paths]
        trained = [record for _, record in loaded if slime.is_train(record)]
        joined: dict[Any, Any] = {}
        for path, record in loaded:
            if trained and "samples" in record and not slime.is_train(record):
                joined |= slime.rollout_facts(record)
                self.inputs.append(InputFile(path=str(path), format="slime", note="joined to the train dump"))
        for path, record in loaded:
            if not trained or slime.is_train(record):
                entry = InputFile(path=str(path), format="torch")
                self.inputs.append(entry)
                yield from self._record_rows(path, number, entry, iter([Record(record, 1)]), joined=joined)

    def _json_rows(self, file: Opened, number: int, entry: InputFile) -> Iterator[Row]:
        found = records(file, progress=self.progress, skip_bad=self.options.skip_bad)
        yield from self._record_rows(file.path, number, entry, found)

    def _record_rows(
        self,
        path: Path,
        number: int,
        entry: InputFile,
        found: Iterator[Record],
        *,
        joined: Mapping[Any, Any] = MappingProxyType({}),
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
                raise NoLog(
                    f"{one_line(path)}:{first.line}: no known format has these keys ({keys}); "
                    f"known: {', '.join(READERS)}; pass --format"
                )
            entry.format, entry.note = advice.source, "no log-probs"
            self._advise(f"{advice.source}: not auditable; {advice.switch_on}")
            return
        entry.format = reader.name
        source = Source(path, number, step_in(path), joined)
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
                self.moved_out += self.options.moves_out(row)
                yield self.options.applied_to(row)
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
    found = discover(paths)
    return Log(
        files=found.files,
        options=options or Options(),
        progress=progress,
        named=found.named,
        again=found.again,
    )


def _refuse(reason: str) -> Iterator[Row]:
    """Stand for the rows of a file that is no log."""
    raise NoLog(reason)
    yield  # a generator, so that the refusal comes where rows would


def _counted(row: Row) -> int:
    """Tokens of a row under its mask."""
    mu, mask = row.logmu, row.mask
    if not isinstance(mu, list):
        return 0
    return len(mu) - (mask.count(0) if isinstance(mask, list) else 0)
