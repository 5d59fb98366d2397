"""Runs of the table in worker processes through joblib; each goes on from its own state after a kill."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from theory.experiment import Experiment
from validation.errors import in_words
from validation.manifest import CorruptRun
from validation.store import RunBusy, Store

Backend = Literal["loky", "ray", "dask"]
NEEDS = {"ray": ("ray", "ray"), "dask": ("distributed", "dask[distributed]")}
"""Module and package behind a backend of joblib that is not its own"""
PATIENCE = 15.0
"""Seconds a run's folder may stay locked: a killed table's workers see within one that it is gone"""


class Outcome(NamedTuple):
    """How one task went."""

    number: int
    """Of the task"""
    error: str | None
    """One line; None: it is done"""
    note: str = ""
    """What should be known although it is done"""


def check_backend(backend: Backend, /) -> None:
    """Refuse a backend whose package is not there.

    Raises
    ------
    ValueError
        With the package to install.
    """
    if backend in NEEDS:
        module, package = NEEDS[backend]
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"backend {backend!r} needs the package {module}, which is not installed; "
                f"`pip install '{package}'`, or use --backend loky"
            )


def parallel(
    call: Callable[..., str],
    tasks: Sequence[tuple[Any, ...]],
    *,
    jobs: int,
    backend: Backend = "loky",
    on_done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Call a function on every task in worker processes; one that fails does not stop the others.

    Parameters
    ----------
    call : callable
        At module level; returns a note.
    tasks : sequence of tuple
        Its arguments.
    jobs : int
        Processes; 1 stays in this one.
    backend : {"loky", "ray", "dask"}
        Of joblib. Ray and Dask are those that run already, or a local one.
    on_done : callable
        Gets each outcome as it comes.

    Returns
    -------
    list of Outcome
        In the order of the tasks.
    """
    import joblib

    if not tasks:
        return []
    _register(backend, jobs)
    # one task at a time to each worker, none handed out ahead: what is not begun need not be taken back
    options = {"inner_max_num_threads": 1} if backend == "loky" else {}
    # joblib replaces a worker that has grown, between two tasks: nothing is lost and nothing is to be done
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
    with joblib.parallel_config(backend=backend, n_jobs=jobs, **options):
        workers: Any = joblib.Parallel
        run = workers(n_jobs=jobs, batch_size=1, pre_dispatch="n_jobs", return_as="generator_unordered")
        found: list[Outcome] = []
        parent = os.getpid() if backend == "loky" else 0
        for outcome in run(joblib.delayed(_guarded)(i, call, t, parent) for i, t in enumerate(tasks)):
            found.append(outcome)
            on_done(outcome)
    return sorted(found, key=lambda outcome: outcome.number)


def _register(backend: Backend, jobs: int) -> None:
    if backend == "ray":
        register_ray = importlib.import_module("ray.util.joblib").register_ray
        register_ray()
    elif backend == "dask":
        distributed = importlib.import_module("distributed")
        try:
            distributed.get_client()
        except ValueError:
            distributed.Client(n_workers=jobs, threads_per_worker=1)


def _guarded(index: int, call: Callable[..., str], arguments: tuple[Any, ...], parent: int) -> Outcome:
    if parent and os.getpid() != parent:
        _follow(parent)
    try:
        return Outcome(index, None, call(*arguments))
    except Exception as error:
        if os.environ.get("LAGFLOOR_DEBUG") == "1":
            raise
        if isinstance(error, OSError):
            return Outcome(index, in_words(error))
        words = " ".join(str(error).split()) or "no message"
        return Outcome(index, words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}")


_following = threading.Event()


def _follow(parent: int) -> None:
    """End this worker with the process that started it, even one that was killed: it holds a run's lock."""
    if _following.is_set():
        return
    _following.set()
    # a Ctrl-C reaches the whole terminal group; the parent decides, and it says one line
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while True:
            time.sleep(0.5)
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def make(root: Path, experiment: Experiment) -> str:
    """Make one run of the real engine in a store, or go on with it; a note if a broken one was replaced."""
    from validation.gather import real

    store = Store(root)
    note = ""
    try:
        if store.find(real.ENGINE, experiment, tables=()) is not None:
            return ""
    except CorruptRun as error:
        note = f"{error.what}: made again"
        shutil.rmtree(error.folder)
    waited = time.monotonic() + PATIENCE
    while True:
        try:
            real.run(store, experiment)
            return note
        except RunBusy:
            if time.monotonic() > waited:
                raise
            time.sleep(0.5)


def missing(store: Store, experiments: Iterable[Experiment], /, *, engine: str) -> list[Experiment]:
    """Experiments without a finished, whole run by this code."""
    found = []
    for experiment in experiments:
        try:
            if store.find(engine, experiment, tables=()) is None:
                found.append(experiment)
        except CorruptRun:
            found.append(experiment)  # `make` says so and makes it again
    return found
