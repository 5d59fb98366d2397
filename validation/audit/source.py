"""From paths to blocks: which reader each file gets, what the user overrides.

What cannot be audited and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson

from theory.records import NOT_MEASURED, Provenance
from validation.audit.block import Block, Row, blocks
from validation.audit.discovery import discover
from validation.audit.errors import BadLog, NoLog, one_line
from validation.audit.files import Content, Opened, Record, head_records, peek, records
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
        # each file is looked at twice, so that the heads of thousands of shards are never held together
        looks = [_look(path) for path in self.files]
        dumps = _by_rollout([look.path for look in looks if look.content == "torch"])
        for number, path in enumerate(self._of_one_format(looks)):
            file = peek(path)
            entry = InputFile(path=str(file.path), format=file.content)
            match file.content:
                case "torch":
                    yield from self._dump_rows(dumps.pop(_rollout_of(file.path), []), number)
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

    def _of_one_format(self, looks: list[_Look]) -> list[Path]:
        """Where a folder holds several token formats, keep the one that tells most and say so."""
        order = list(READERS)
        known = [look.reader for look in looks if look.reader is not None]
        chosen = min(known, key=order.index, default=None) if self.options.format is None else None
        kept = []
        for look in looks:
            other = chosen is not None and look.reader not in (None, chosen) and look.path not in self.named
            if other:
                note = f"passed over: beside {chosen}"
                self.inputs.append(InputFile(path=str(look.path), format=look.reader or "", note=note))
            else:
                kept.append(look.path)
        return kept

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
        source = Source(path, number, _number_in(path), joined)
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
        if self.options.align and isinstance(row.logmu, list):
            mu = row.logmu
            k = max(-len(mu), min(self.options.align, len(mu)))
            moved = [None] * k + mu[: len(mu) - k] if k > 0 else mu[-k:] + [None] * -k
            mask = row.mask if row.mask is not None else [1] * len(mu)
            edge = [0] * k + mask[k:] if k > 0 else mask[:k] + [0] * -k
            row = row._replace(logmu=moved, mask=edge)
            self.moved_out += abs(k) == len(mu) > 0
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


class _Look(NamedTuple):
    path: Path
    content: Content
    reader: str | None


def _look(path: Path) -> _Look:
    """Say what a file is, and its reader by its first line if that is whole in what is peeked at."""
    opened = peek(path)
    first = next(head_records(opened), None) if opened.content == "json" else None
    reader = None if first is None else reader_for(first)
    return _Look(path, opened.content, None if reader is None else reader.name)


def _rollout_of(path: Path) -> str:
    """Return what the dumps of one rollout share: the number their names begin with."""
    digits = "".join(itertools.takewhile(str.isdecimal, path.name))
    return digits or path.name


def _by_rollout(paths: list[Path]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(_rollout_of(path), []).append(path)
    return groups


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
