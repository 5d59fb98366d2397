"""Make the runs of a table that are missing, then measure each against the on-policy runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from theory.experiment import Experiment
from theory.records import Trace
from validation.atomic import write_json
from validation.evidence import Rows
from validation.gather.compare import compared_steps
from validation.gather.real import ROWS_STEP, as_rows, rows_at, steps_done
from validation.store import Store, StoredRun
from validation.table.measure import against
from validation.table.plan import TablePlan
from validation.table.progress import watched
from validation.table.variant import file_stem
from validation.table.work import Backend, Outcome, make, missing, parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of the table."""

    experiment: Experiment
    trace: Trace
    """Steps alone: the tokens of a whole table are gigabytes"""
    compared: Mapping[str, np.ndarray]
    """Of `measure.against`: kl and kl_prefixes (K, R) by compared step and on-policy run"""
    stopped: str | None
    """Why it ended early"""
    seconds: float
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All runs of a plan."""

    plan: TablePlan
    steps: np.ndarray
    """Compared steps, ascending (K)"""
    runs: Mapping[str, Measured]
    """By fingerprint"""
    rows: Rows | None = None
    """Of a stale run with IS, by the engine that differs most from the trainer; None: no such run"""


class Failure(NamedTuple):
    """A run that could not be made or measured."""

    where: str
    """Its folder"""
    why: str
    """One line"""


def said_once(failures: Sequence[Failure], /) -> list[str]:
    """Lines on what failed; runs that failed alike share one."""
    places: dict[str, list[str]] = {}
    for where, why in failures:
        places.setdefault(why, []).append(where)
    return [
        f"{found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {why}"
        for why, found in places.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A table as far as it could be made."""

    table: Table | None
    """None where an on-policy run is missing: nothing can be compared then"""
    failures: tuple[Failure, ...]
    """Runs that could not be made or measured"""


def gather(
    plan: TablePlan,
    root: Path,
    *,
    jobs: int,
    backend: Backend = "loky",
    say: Callable[[str], None] = lambda text: None,
    make: Callable[[Path, Experiment], str] = make,
    compare: bool = True,
) -> Gathered:
    """Run what a plan lacks, in parallel, and measure all of it.

    Parameters
    ----------
    plan : TablePlan
        What to run.
    root : Path
        Of the store.
    jobs : int
        Processes.
    backend : {"loky", "ray", "dask"}
        Of joblib.
    say : callable
        Gets a line on what was found broken and made again.
    make : callable
        Makes one run in the store.
    compare : bool
        Measure distances to the on-policy runs; without, they are NaN.
    """
    store = Store(root)
    experiments = list(plan.runs())
    todo = missing(store, experiments, engine=plan.engine)
    failures: list[Failure] = []

    def told(tasks: list[Experiment], outcome: Outcome) -> None:
        where = store.folder(plan.engine, tasks[outcome.number])
        if outcome.error is not None:
            failures.append(Failure(str(where), outcome.error))
        elif outcome.note:
            say(f"{where}: {outcome.note}")

    with watched("training steps", lambda: steps_done(store, experiments, engine=plan.engine)):
        parallel(make, [(root, e) for e in todo], jobs=jobs, backend=backend, on_done=lambda o: told(todo, o))
    stored = {e: found for e in experiments if (found := _found(store, plan.engine, e)) is not None}
    if any(e not in stored for e in plan.references):
        return Gathered(table=None, failures=tuple(failures))
    references = [(stored[e].folder, stored[e].digest) for e in plan.references]
    here = list(stored)
    if compare:
        _compare_all(
            root, here, stored, references, jobs=jobs, backend=backend, on_done=lambda o: told(here, o)
        )
    failed = {failure.where for failure in failures}
    if any(str(stored[e].folder) in failed for e in plan.references):
        return Gathered(table=None, failures=tuple(failures))
    runs = {}
    for e in here:
        if str(stored[e].folder) not in failed:
            run = stored[e]
            runs[e.fingerprint()] = Measured(
                experiment=e,
                trace=run.traces[0],
                compared=against(root, e, (run.folder, run.digest), references)
                if compare
                else _not_compared(e, len(references)),
                stopped=run.notes.get("stopped"),
                seconds=run.seconds,
                folder=run.folder,
                digest=run.digest,
            )
    steps = np.array(compared_steps(plan.references[0]))
    rows = _rows(root, plan, runs, jobs=jobs, backend=backend) if compare else None
    return Gathered(table=Table(plan=plan, steps=steps, runs=runs, rows=rows), failures=tuple(failures))


def _rows(
    root: Path, plan: TablePlan, runs: Mapping[str, Measured], *, jobs: int, backend: Backend
) -> Rows | None:
    """Read rows along a stale run with IS, of the last sampler that has one: FP8 and stale, where run."""
    stale = [c.experiments[0] for c in plan.cells if c.correction == "is" and c.same is None]
    stale = [e for e in stale if e.sync_every > ROWS_STEP < e.steps and e.fingerprint() in runs]
    if not stale:
        return None
    run = runs[stale[-1].fingerprint()]
    task = (root, run.experiment, (run.folder, run.digest))
    # in a worker: it starts an engine
    failed = parallel(_draw_rows, [task], jobs=jobs, backend=backend)[0].error
    return None if failed else as_rows(rows_at(*task), [(rows_at, task)])


def _draw_rows(root: Path, experiment: Experiment, run: tuple[Path, str]) -> str:
    rows_at(root, experiment, run)
    return ""


def _found(store: Store, engine: str, experiment: Experiment) -> StoredRun | None:
    found = store.find(engine, experiment, tables=("steps",))
    return found if found is not None and found.traces else None


def _compare_all(
    root: Path,
    experiments: list[Experiment],
    stored: Mapping[Experiment, StoredRun],
    references: list[tuple[Path, str]],
    *,
    jobs: int,
    backend: Backend,
    on_done: Callable[[Outcome], None],
) -> None:
    """Measure every run against the on-policy ones, in parallel, into the store."""
    done = 0

    def measured(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        on_done(outcome)

    tasks = [(root, e, (stored[e].folder, stored[e].digest), references) for e in experiments]
    with watched("comparing runs", lambda: (done, len(tasks))):
        parallel(_compare, tasks, jobs=jobs, backend=backend, on_done=measured)


def _not_compared(experiment: Experiment, references: int) -> dict[str, np.ndarray]:
    nothing = np.full((len(compared_steps(experiment)), references), np.nan)
    return {"kl": nothing, "kl_prefixes": nothing}


def _compare(
    root: Path, experiment: Experiment, run: tuple[Path, str], references: list[tuple[Path, str]]
) -> str:
    against(root, experiment, run, references)
    return ""


FOLDER = "tables"


def keep(made: Mapping[str, Any], root: Path, /) -> Path:
    """Keep a table's document where the report finds it: the last one of each name (`variant.name_of`)."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stem(made)}.json"
    write_json(path, made)
    return path
