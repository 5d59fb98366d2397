"""Runs of the real engine: worker processes with one live sampler each, resumable, compared on own prefixes.

Suffixes: K compared steps, S runs, R reference runs, n prefixes, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from real.settings import Mini
from theory.experiment import Experiment, Numerics
from validation.derived import derived
from validation.evidence import Cell, Evidence, Rows, World
from validation.gather.compare import ENGINE, compared_steps, distances, held
from validation.manifest import CorruptRun, read_status
from validation.plan import IS, Plan, WorldPlan
from validation.provenance import module_digest
from validation.store import STATE, Store, StoredRun

ROWS_PROMPTS, ROWS_STEP = 64, 10
"""Problems and step the rows of the split are taken at: by then a stale run lags"""

_live: dict[tuple[str, str, str], Any] = {}
"""Samplers of this process by settings: starting vLLM takes seconds, syncing it does not"""


def live_sampler(environment: Mini, numerics: Numerics) -> Any:
    """Return this process's sampler for these settings, started once."""
    from real.samplers import open_sampler

    key = (environment.sampler, environment.task, str(numerics))
    if key not in _live:
        for other in list(_live):  # two engines at once would share the cores and the memory
            _live.pop(other).close()
        _live[key] = open_sampler(environment, numerics)
    return _live[key]


def run(
    store: Store, experiment: Experiment, *, fresh: bool = False, on_step: Callable[[Any], None] | None = None
) -> StoredRun:
    """Return an experiment's stored run; made now, or gone on with, if there is none by this code."""
    if not fresh and (found := store.find(ENGINE, experiment)) is not None:
        return found
    from real.checkpoint import write_snapshot
    from real.loop import run as run_real

    with store.write(ENGINE, experiment) as writer:
        sampler = live_sampler(experiment.environment, experiment.numerics)
        done = run_real(experiment, on_step=on_step, checkpoint=writer.state, resume=True, sampler=sampler)
        for step, snapshot in done.snapshots.items():
            # the engine's writer names its file itself: it is made beside and moved to the store's name
            writer.attach(
                _snapshot(step), lambda path, k=step, s=snapshot: _renamed(path, k, s, write_snapshot)
            )
        proofs = [dataclasses.asdict(proof) for proof in done.syncs]
        return writer.finish([done.trace], notes={"stopped": done.stopped, "syncs": proofs})


def _snapshot(step: int) -> str:
    return f"snapshot-{step:05d}.safetensors"


def _renamed(path: Path, step: int, snapshot: Any, write: Callable[[Path, int, Any], None]) -> None:
    folder = path.with_name(path.name + ".d")
    folder.mkdir(exist_ok=True)
    write(folder, step, snapshot)
    os.replace(folder / _snapshot(step), path)
    folder.rmdir()


def gather(
    plan: Plan,
    store: Store,
    *,
    workers: int = 1,
    fresh: bool = False,
    on_step: Callable[[int, int], None] = lambda done, total: None,
    on_run: Callable[[], None] = lambda: None,
    on_world: Callable[[], None] = lambda: None,
) -> Evidence:
    """Run what a plan lacks in worker processes and compare the runs of each world.

    Parameters
    ----------
    plan : Plan
        Of the real engine.
    store : Store
        Where finished runs are found and kept, and unfinished ones go on.
    workers : int
        Processes; each starts a sampler of its own.
    fresh : bool
        Run everything again.
    on_step : callable
        Gets the steps done and their total, every second or so.
    on_run, on_world : callable
        Called after each run's comparison and after each world's.
    """
    experiments = [experiment for experiment, _ in plan.runs()]
    missing = [e for e in experiments if fresh or store.find(ENGINE, e) is None]
    _parallel(
        [(_work, (store, e, fresh)) for e in missing],
        workers=workers,
        watch=lambda: on_step(*steps_done(store, experiments)),
    )
    on_step(*steps_done(store, experiments))
    runs = {e.fingerprint(): found for e in experiments if (found := store.find(ENGINE, e)) is not None}
    tasks = []
    for world in plan.worlds:
        reference = [(r.folder, r.digest) for e in world.cells[0].experiments if (r := runs[e.fingerprint()])]
        for cell in world.cells:
            for e in cell.experiments:
                own = runs[e.fingerprint()]
                tasks.append((distances, (store.root, e, (own.folder, own.digest), reference)))
    rows = _rows_task(plan, store, runs)
    results = _parallel([*tasks, *rows], workers=workers, each=on_run)
    apart = {(t[1][2][0], t[1][3][0][0]): results[i] for i, t in enumerate(tasks)}
    worlds = tuple(_world(world, runs, apart) for world in plan.worlds)
    for _ in worlds:
        on_world()
    columns = results[-1] if rows else None
    return Evidence(
        engine=ENGINE,
        seed=plan.seed,
        worlds=worlds,
        rows=None if columns is None else as_rows(columns, rows),
    )


def _parallel(
    tasks: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]],
    *,
    workers: int,
    watch: Callable[[], None] | None = None,
    each: Callable[[], None] | None = None,
) -> list[Any]:
    """Results of the calls, in order, from worker processes that a Ctrl-C here ends at once."""
    tasks = list(tasks)
    if not tasks:
        return []
    stop = threading.Event()

    def look(report: Callable[[], None]) -> None:
        while not stop.wait(1.0):
            report()

    if watch is not None:
        threading.Thread(target=look, args=(watch,), daemon=True).start()
    # spawned: a forked child would inherit the locks of torch's threads; and no pool that restarts a worker
    # for its memory, since a sampler is half a gigabyte that is meant to stay
    pool = ProcessPoolExecutor(
        max_workers=min(workers, len(tasks)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_ignore_interrupts,
    )
    results = []
    try:
        for future in [pool.submit(call, *arguments) for call, arguments in tasks]:
            results.append(future.result())
            if each is not None:
                each()
    except BaseException:
        # a run that is stopped here goes on from its own state the next time
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        stop.set()
    pool.shutdown()
    return results


def _ignore_interrupts() -> None:
    # a Ctrl-C reaches the whole terminal group; the parent decides, and it says one line
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(store: Store, experiment: Experiment, fresh: bool) -> None:
    run(store, experiment, fresh=fresh)


def steps_done(store: Store, experiments: list[Experiment], *, engine: str = ENGINE) -> tuple[int, int]:
    """Count the steps done and their total on disk: finished runs, and the engine's state of the others."""
    done = 0
    for experiment in experiments:
        folder = store.folder(engine, experiment)
        if (folder / STATE).is_dir():
            done += sum(1 for _ in (folder / STATE).glob("step-*.safetensors"))
        elif _is_done(folder):
            done += experiment.steps
    return done, sum(e.steps for e in experiments)


def _is_done(folder: Path) -> bool:
    try:
        status = read_status(folder)
    except CorruptRun:
        return False
    return status is not None and status["state"] == "done"


def _world(
    plan: WorldPlan,
    runs: dict[str, StoredRun],
    apart: dict[tuple[Path, Path], dict[str, np.ndarray]],
) -> World:
    on_policy = plan.cells[0]
    reference = runs[on_policy.experiments[0].fingerprint()].folder
    steps = np.array(compared_steps(on_policy.experiments[0]))
    cells = {}
    for cell in plan.cells:
        stored = [runs[e.fingerprint()] for e in cell.experiments]
        kl = [apart[s.folder, reference]["kl"].reshape(len(steps), -1) for s in stored]
        accuracy = [held(s.traces[0], "accuracy", steps) for s in stored]
        cells[cell.name] = Cell(
            traces=tuple(s.traces[0] for s in stored),
            distance=np.stack(kl, axis=1),
            accuracy=np.stack(accuracy, axis=-1),
            folders=tuple(str(s.folder) for s in stored),
        )
    return World(
        label=plan.label,
        group=plan.group,
        lr=plan.lr,
        main=plan.main,
        steps=steps,
        cells=cells,
        on_policy=on_policy.name,
    )


def _rows_task(plan: Plan, store: Store, runs: dict[str, StoredRun]) -> list[tuple[Any, tuple[Any, ...]]]:
    for cell in plan.worlds[0].cells:
        if cell.name == IS:
            experiment = cell.experiments[0]
            stored = runs[experiment.fingerprint()]
            return [(rows_at, (store.root, experiment, (stored.folder, stored.digest)))]
    return []


def rows_at(root: Path, experiment: Experiment, run: tuple[Path, str]) -> dict[str, np.ndarray]:
    """Full rows at prefixes the stale sampler itself visits: as it reports them, and by the trainer twice."""

    def compute() -> dict[str, np.ndarray]:
        import torch

        from real.checkpoint import read_snapshot
        from real.evaluate import held_out, prompt_ids
        from real.loop import start_model
        from real.model import row_logps

        snapshot = read_snapshot(run[0], ROWS_STEP)
        sampler = live_sampler(experiment.environment, experiment.numerics)
        sampler.sync(dict(snapshot.sampler_weights), 0)
        task = experiment.environment.definition
        rollout = sampler.sample(prompt_ids(held_out(ROWS_PROMPTS, task), task), 2, experiment.seed)
        model = start_model(experiment.environment)
        rows = {"logmu": rollout.logmu_BTV}
        for name, weights in (("logpi_s", snapshot.sampler_weights), ("logpi", snapshot.weights)):
            model.load_state_dict(dict(weights))
            with torch.no_grad():
                rows[name] = row_logps(model, rollout.prompt_CP, rollout.response_BT)
        # reported in float32 they sum to 1 up to 1e-7; the identities are about distributions
        live = {n: row[rollout.mask_BT].double().log_softmax(-1).numpy() for n, row in rows.items()}
        vocabulary = rows["logmu"].shape[-1]
        return {n: x.reshape(-1) for n, x in live.items()} | {
            "width": np.full(live["logmu"].size, vocabulary)
        }

    return derived(root / ENGINE, "rows", module_digest(__name__), run[1], str(ROWS_STEP), compute=compute)


def as_rows(columns: dict[str, np.ndarray], tasks: list[tuple[Any, tuple[Any, ...]]]) -> Rows:
    """Shape what `rows_at` kept for the checks."""
    width = int(columns["width"][0])
    experiment: Experiment = tasks[0][1][1]
    logmu, logpi_s, logpi = (columns[n].reshape(-1, width) for n in ("logmu", "logpi_s", "logpi"))
    what = (
        f"{len(logmu)} prefixes of the stale {experiment.environment.sampler} sampler, "
        f"trainer after {ROWS_STEP} updates with IS, seed {experiment.seed}"
    )
    return Rows(logmu=logmu, logpi_s=logpi_s, logpi=logpi, what=what)
