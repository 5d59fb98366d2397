"""Runs of the toy: ensembles in one compiled call each, kept with their weights, compared exactly.

Suffixes: K steps, S training seeds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import numpy as np

from theory.experiment import Experiment
from toy.simulate import ensemble
from validation.derived import derived
from validation.evidence import Cell, Evidence, Probe, World
from validation.gather import exact, gradients, infrastructure, invisible, monitor, weights
from validation.gather.rows import rows_of
from validation.gather.weights import WEIGHTS, distances_of, ensemble_of, write_weights
from validation.plan import HALF_BATCH, ON_POLICY, Plan, WorldPlan
from validation.provenance import module_digest
from validation.store import Store, StoredRun

ENGINE = "toy"
PROBES: Mapping[str, Callable[[int], dict[str, float]]] = MappingProxyType(
    {
        **gradients.PROBES,
        "monitor": monitor.monitor,
        "infra": infrastructure.infrastructure,
        "invisible": invisible.invisible,
    }
)
"""Numbers of one environment, by the name of the analysis"""


def run(
    store: Store, experiment: Experiment, *, seeds: int = 1, fresh: bool = False, keep_weights: bool = True
) -> StoredRun:
    """Return an experiment's stored run, made now if there is none by this code."""
    if not fresh and (found := store.find(ENGINE, experiment, seeds=seeds)) is not None:
        return found
    with store.write(ENGINE, experiment, seeds=seeds) as writer:
        result = ensemble(experiment, seeds=seeds)
        if keep_weights:
            writer.attach(WEIGHTS, lambda path: write_weights(path, result))
        return writer.finish(result.traces)


def gather(
    plan: Plan,
    store: Store,
    *,
    fresh: bool = False,
    on_run: Callable[[], None],
    on_world: Callable[[], None],
    on_probe: Callable[[], None] = lambda: None,
) -> Evidence:
    """Run what a plan lacks, compare the runs of each world, and make its analyses.

    Parameters
    ----------
    plan : Plan
        Of the toy.
    store : Store
        Where finished runs are found and kept.
    fresh : bool
        Run everything again.
    on_run, on_world, on_probe : callable
        Called after each run, each world's comparison, and each analysis of an environment.
    """

    def one(item: tuple[Experiment, int]) -> tuple[tuple[str, int], StoredRun]:
        experiment, seeds = item
        done = run(store, experiment, seeds=seeds, fresh=fresh)
        on_run()
        return (experiment.fingerprint(), seeds), done

    # a compiled call holds no Python lock, so threads fill the cores
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        runs = dict(pool.map(one, plan.runs()))

        def compare(world: WorldPlan) -> World:
            result = _world(store.root / ENGINE, world, runs)
            on_world()
            return result

        worlds = tuple(pool.map(compare, plan.worlds))

        def probe(item: tuple[str, int]) -> Probe:
            result = _probe(store.root / ENGINE, *item)
            on_probe()
            return result

        todo = list(itertools.product(plan.probes, plan.environments))
        done = zip(todo, pool.map(probe, todo), strict=True)
    probes: dict[str, list[Probe]] = {name: [] for name in plan.probes}
    for (name, _), result in done:
        probes[name].append(result)
    return Evidence(
        engine=ENGINE,
        seed=plan.seed,
        worlds=worlds,
        rows=rows_of(store.root / ENGINE, next(e for e, _ in plan.runs())),
        probes={name: tuple(found) for name, found in probes.items()},
    )


def _probe(root: Path, name: str, env: int) -> Probe:
    def compute() -> dict[str, np.ndarray]:
        return {key: np.array([value]) for key, value in PROBES[name](env).items()}

    columns = derived(root, name, module_digest(PROBES[name].__module__), str(env), compute=compute)
    return Probe(group=f"environment {env}", numbers={key: float(x[0]) for key, x in columns.items()})


def _world(root: Path, plan: WorldPlan, runs: dict[tuple[str, int], StoredRun]) -> World:
    parts = {
        cell.name: [(e, runs[e.fingerprint(), cell.seeds]) for e in cell.experiments] for cell in plan.cells
    }

    def distances(first: str, second: str) -> np.ndarray:
        def compute() -> dict[str, np.ndarray]:
            one, two = ([ensemble_of(e, stored) for e, stored in parts[name]] for name in (first, second))
            return {"kl": distances_of(one, two).reshape(-1)}

        digests = [stored.digest for name in (first, second) for _, stored in parts[name]]
        flat = derived(root, "kl", module_digest(weights.__name__), *digests, compute=compute)["kl"]
        counts = [sum(len(stored.traces) for _, stored in parts[name]) for name in (first, second)]
        return flat.reshape(-1, *counts)

    cells, halves = {}, {}
    for name in parts:
        if name == HALF_BATCH:
            halves[name] = distances(name, name)
            continue
        traces = tuple(itertools.chain.from_iterable(stored.traces for _, stored in parts[name]))
        cells[name] = Cell(
            traces=traces,
            distance=distances(name, ON_POLICY),
            accuracy=np.stack([t.steps["accuracy"] for t in traces], axis=-1),
            exact=_exact(root, name, parts[name]),
            folders=tuple(str(stored.folder) for _, stored in parts[name]),
        )
    return World(
        label=plan.label,
        group=plan.group,
        lr=plan.lr,
        main=plan.main,
        steps=parts[ON_POLICY][0][1].traces[0].steps["step"],
        cells=cells,
        on_policy=ON_POLICY,
        batch_floors=halves,
    )


def _exact(root: Path, name: str, parts: list[tuple[Experiment, StoredRun]]) -> dict[str, np.ndarray]:
    if name not in exact.EXACT:
        return {}
    ((experiment, stored),) = parts
    steps = experiment.steps

    def compute() -> dict[str, np.ndarray]:
        return {key: x.reshape(-1) for key, x in exact.EXACT[name](ensemble_of(experiment, stored)).items()}

    columns = derived(root, "exact", module_digest(exact.__name__), stored.digest, compute=compute)
    return {key: x.reshape(steps, -1) for key, x in columns.items()}
