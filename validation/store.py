"""The store of runs: Parquet tables and JSON, one folder per experiment, whole at any moment.

``<root>/<engine>/<fingerprint>/`` holds ``settings.json`` (what was run, with which code), the tables of the
traces, attachments such as weights, and ``status.json``, whose manifest names every file with its size and
hash. The rename of ``status.json`` is the only commit point. Killed before it, a run is unfinished and goes
on from the engine's own state in ``state/``; after it, a file that disagrees with the manifest is reported
and never read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from theory.experiment import Experiment
from theory.records import Provenance, Trace
from validation.atomic import write_file, write_json
from validation.manifest import FORMAT, SETTINGS, STATUS, TABLES, CorruptRun, read_status, verify
from validation.provenance import code_digest, versions

LOCK, STATE = ".lock", "state"
SEED = "_run"
"""Column of the stored tables that tells the traces of one ensemble apart; not part of a trace"""


class RunBusy(ValueError):
    """Another process is writing the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished run, read back and verified."""

    folder: Path
    settings: Mapping[str, Any]
    """The experiment in plain values, versions and code"""
    traces: tuple[Trace, ...]
    """One, or one per training seed where the engine runs an ensemble in one call"""
    seconds: float
    """Wall time it took, all sittings together"""
    notes: Mapping[str, Any]
    """What the engine wanted kept beside the traces, plain values"""
    files: Mapping[str, Path]
    """Attachments by name"""
    digest: str
    """Hash of all its files: what is computed from them is kept under it"""


@dataclass(frozen=True, slots=True)
class Store:
    """All runs under one folder."""

    root: Path

    def folder(self, engine: str, experiment: Experiment, *, seeds: int = 1) -> Path:
        """Where an experiment's run is, or would be; an ensemble of several seeds is another run."""
        suffix = f"-{seeds}" if seeds > 1 else ""
        return self.root / engine / f"{experiment.fingerprint()}{suffix}"

    def find(
        self, engine: str, experiment: Experiment, *, seeds: int = 1, tables: Sequence[str] = TABLES
    ) -> StoredRun | None:
        """Return a finished run made by this very code, with some of its tables; None if there is none.

        Raises
        ------
        CorruptRun
            If the folder claims a finished run and its files disagree.
        """
        folder = self.folder(engine, experiment, seeds=seeds)
        status = read_status(folder)
        if status is None or status["state"] != "done" or status["code"] != code_digest(engine):
            return None
        return load(folder, tables=tables)

    def write(self, engine: str, experiment: Experiment, *, seeds: int = 1) -> RunWriter:
        """Open an experiment's run for writing; what an earlier sitting left in ``state/`` is kept."""
        return RunWriter(self.folder(engine, experiment, seeds=seeds), engine, experiment)

    def finished(self, engine: str) -> list[Path]:
        """Folders of the engine's finished runs, by name."""
        found = sorted((self.root / engine).glob(f"*/{STATUS}"))
        return [p.parent for p in found if (status := read_status(p.parent)) and status["state"] == "done"]


@dataclass
class RunWriter:
    """Writes one run; a context that holds the folder's lock until the run is finished or given up."""

    folder: Path
    engine: str
    experiment: Experiment
    _files: dict[str, dict[str, Any]] = field(default_factory=dict)
    _started: float = 0.0
    _seconds: float = 0.0
    _lock: int = -1

    @property
    def state(self) -> Path:
        """Folder for the engine's own resumable state; deleted when the run is finished."""
        return self.folder / STATE

    def __enter__(self) -> RunWriter:
        """Lock the folder; keep an unfinished run of the same code, drop anything else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RunBusy(
                f"run folder {self.folder}: another process is writing it; wait for it to end, or stop it"
            ) from None
        try:
            status = read_status(self.folder)
        except CorruptRun:
            status = None  # asked to write it anew: what is there goes
        code = code_digest(self.engine)
        resumes = status is not None and status["state"] == "running" and status["code"] == code
        if status is not None and resumes:
            self._seconds = status["seconds"]
        self._sweep({STATUS, LOCK, STATE} if resumes else {LOCK})
        self._started = time.perf_counter()
        settings = {
            "engine": self.engine,
            "fingerprint": self.experiment.fingerprint(),
            "experiment": self.experiment.to_dict(),
            "code": code,
            "versions": versions(),
        }
        self.attach(SETTINGS, lambda path: write_json(path, settings))
        self._write_status("running")
        return self

    def __exit__(self, *exc: object) -> None:
        """Note the time spent on a run that is given up here, and let the folder go."""
        if exc[0] is not None and (self.folder / STATUS).exists():
            self._write_status("running")
        os.close(self._lock)

    def attach(self, name: str, write: Callable[[Path], object]) -> None:
        """Keep a file that `write` makes; it counts once the run is finished."""
        path = self.folder / name
        write_file(path, write)
        content = path.read_bytes()
        self._files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def finish(self, traces: Sequence[Trace], *, notes: Mapping[str, Any] | None = None) -> StoredRun:
        """Write the traces, mark the run as done, drop the engine's state, read the run back."""
        for table in TABLES:
            parts = [(i, getattr(t, table)) for i, t in enumerate(traces)]
            if any(columns for _, columns in parts):
                rows = pa.concat_tables([_table(i, c) for i, c in parts if c], promote_options="default")
                self.attach(f"{table}.parquet", lambda path, rows=rows: pq.write_table(rows, path))
        provenance = {name: [p.kind, p.how] for t in traces for name, p in t.provenance.items()}
        self._write_status("done", provenance, notes or {})
        self._sweep({STATUS, LOCK, *self._files})
        return load(self.folder)

    def _write_status(
        self, state: str, provenance: Mapping[str, Any] | None = None, notes: Mapping[str, Any] | None = None
    ) -> None:
        status = {
            "format": FORMAT,
            "state": state,
            "code": code_digest(self.engine),
            "seconds": self._seconds + time.perf_counter() - self._started,
            "provenance": provenance or {},
            "notes": notes or {},
            "files": self._files,
        }
        write_json(self.folder / STATUS, status)

    def _sweep(self, keep: set[str]) -> None:
        """Delete what a killed or outdated writer left; the status goes first, so nothing stale is read."""
        if STATUS not in keep:
            (self.folder / STATUS).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def load(folder: Path, /, *, tables: Sequence[str] = TABLES) -> StoredRun:
    """Read a finished run, every file checked against the manifest; of its tables those that are named.

    Raises
    ------
    CorruptRun
        If there is no finished run or a file is not what the manifest says.
    """
    status = read_status(folder)
    if status is None:
        raise CorruptRun(folder, f"holds no {STATUS}")
    if status["state"] != "done":
        raise CorruptRun(folder, "is unfinished")
    for name, entry in status["files"].items():
        verify(folder, name, entry)
    try:
        read = {t: _columns(folder / f"{t}.parquet") for t in tables if f"{t}.parquet" in status["files"]}
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (pa.ArrowException, json.JSONDecodeError, OSError) as error:
        raise CorruptRun(folder, str(error).splitlines()[0]) from None
    provenance = {name: Provenance(kind=k, how=how) for name, (k, how) in status["provenance"].items()}
    runs = sorted({int(i) for columns in read.values() for i in np.unique(columns[SEED])})
    own = {f"{t}.parquet" for t in TABLES} | {SETTINGS}
    return StoredRun(
        folder=folder,
        settings=settings,
        traces=tuple(
            Trace(**{t: _of_run(columns, i) for t, columns in read.items()}, provenance=provenance)
            for i in runs
        ),
        seconds=status["seconds"],
        notes=status["notes"],
        files={name: folder / name for name in status["files"] if name not in own},
        digest=hashlib.sha256(json.dumps(status["files"], sort_keys=True).encode()).hexdigest(),
    )


def _table(run: int, columns: Mapping[str, np.ndarray]) -> pa.Table:
    length = len(next(iter(columns.values())))
    return pa.table({SEED: np.full(length, run, dtype=np.int16), **columns})


def _columns(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    return {n: table.column(n).to_numpy() for n in table.column_names}


def _of_run(columns: Mapping[str, np.ndarray], run: int) -> dict[str, np.ndarray]:
    """Columns of one trace; one that none of its rows has (null in the joined table) was not measured."""
    rows = columns[SEED] == run
    return {name: values[rows] for name, values in columns.items() if name != SEED}
