"""Runs of the toy: ensembles in one compiled call each, kept with their weights, compared exactly.

Suffixes: K steps, S training seeds, D features, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from theory.experiment import Experiment, Numerics
from theory.records import STEP_COLUMNS
from toy.engine import engine_settings, noise, sampled_log_probs
from toy.ensemble import Ensemble
from toy.environment import build
from toy.keys import engine_key
from toy.measure import kl_between
from toy.policy import log_probs
from toy.settings import STALE, setting_s
from toy.simulate import ensemble
from validation.derived import derived
from validation.evidence import Cell, Evidence, Probe, Rows, World
from validation.gather import gradients, leaving, pipeline, watching
from validation.gather.exact import entropy_scaled_discrepancy, lag_spread
from validation.plan import HALF_BATCH, IS, NOISY, ON_POLICY, RUNS, Plan, WorldPlan
from validation.provenance import code_digest
from validation.store import Store, StoredRun

WEIGHTS = "weights.parquet"
ENGINE = "toy"
PROBES: Mapping[str, Callable[[int], dict[str, float]]] = MappingProxyType(
    {
        **gradients.PROBES,
        "watching": watching.watching,
        "pipeline": pipeline.pipeline,
        "leaving": leaving.leaving,
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
            writer.attach(WEIGHTS, lambda path: _write_weights(path, result))
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
        rows=_rows(store.root / ENGINE, plan),
        probes={name: tuple(found) for name, found in probes.items()},
    )


def _probe(root: Path, name: str, env: int) -> Probe:
    def compute() -> dict[str, np.ndarray]:
        return {key: np.array([value]) for key, value in PROBES[name](env).items()}

    columns = derived(root, name, code_digest("probes"), str(env), compute=compute)
    return Probe(group=f"environment {env}", numbers={key: float(x[0]) for key, x in columns.items()})


def _world(root: Path, plan: WorldPlan, runs: dict[tuple[str, int], StoredRun]) -> World:
    parts = {
        cell.name: [(e, runs[e.fingerprint(), cell.seeds]) for e in cell.experiments] for cell in plan.cells
    }

    def distances(first: str, second: str) -> np.ndarray:
        def compute() -> dict[str, np.ndarray]:
            one, two = ([_ensemble(e, stored) for e, stored in parts[name]] for name in (first, second))
            return {"kl": _distances(one, two).reshape(-1)}

        digests = [stored.digest for name in (first, second) for _, stored in parts[name]]
        flat = derived(root, "kl", code_digest(ENGINE), *digests, compute=compute)["kl"]
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


EXACT: Mapping[str, Callable[[Ensemble], dict[str, np.ndarray]]] = MappingProxyType(
    {
        IS: lambda runs: lag_spread(runs)._asdict(),
        NOISY: lambda runs: {"discrepancy if noise scaled with entropy": entropy_scaled_discrepancy(runs)},
    }
)
"""Exact sums over the runs of a cell, by its name: each (K, S)"""


def _exact(root: Path, name: str, parts: list[tuple[Experiment, StoredRun]]) -> dict[str, np.ndarray]:
    if name not in EXACT:
        return {}
    ((experiment, stored),) = parts
    steps = experiment.steps

    def compute() -> dict[str, np.ndarray]:
        return {key: x.reshape(-1) for key, x in EXACT[name](_ensemble(experiment, stored)).items()}

    columns = derived(root, "exact", code_digest("probes"), stored.digest, compute=compute)
    return {key: x.reshape(steps, -1) for key, x in columns.items()}


def _distances(first: list[Ensemble], second: list[Ensemble]) -> np.ndarray:
    """KL of all runs of some ensembles to all runs of others, (K, S1, S2); a run to itself is 0."""
    blocks = [[kl_between(a, b) for b in second] for a in first]
    return np.concatenate([np.concatenate(row, axis=2) for row in blocks], axis=1)


def _write_weights(path: Path, result: Ensemble) -> None:
    S, K, D, V = result.theta.shape
    table = pa.table(
        {
            "seed": np.repeat(np.arange(S, dtype=np.int16), K),
            "step": np.tile(result.steps.astype(np.int32), S),
            "trainer": pa.FixedSizeListArray.from_arrays(pa.array(result.theta.reshape(-1)), D * V),
            "sampler": pa.FixedSizeListArray.from_arrays(pa.array(result.theta_sampler.reshape(-1)), D * V),
        },
        metadata={"features": str(D), "vocabulary": str(V)},
    )
    pq.write_table(table, path)


def _ensemble(experiment: Experiment, stored: StoredRun) -> Ensemble:
    """Rebuild the ensemble a stored run was made from."""
    table = pq.read_table(stored.files[WEIGHTS])
    S = len(stored.traces)
    D, V = (int(table.schema.metadata[name]) for name in (b"features", b"vocabulary"))

    def weights(name: str) -> np.ndarray:
        flat = table.column(name).combine_chunks().flatten().to_numpy()
        return flat.reshape(S, -1, D, V)

    measures = {
        name: np.stack([t.steps[name] for t in stored.traces])
        for name in stored.traces[0].steps
        if name in STEP_COLUMNS and name != "step"
    }
    return Ensemble(
        experiment=experiment,
        measures=measures,
        theta=weights("trainer"),
        theta_sampler=weights("sampler"),
    )


NOISE = 0.3
"""Logit noise of the run the split is read from, nats: with an exact engine the discrepancy would be 0"""


def _rows(root: Path, plan: Plan) -> Rows:
    """Rows of a stale, noisy run at its last step, at every state of the environment."""
    first = next(e for e, _ in plan.runs())
    experiment = dataclasses.replace(
        setting_s(first.environment.seed, lr=first.lr, correction="dlc", sync_every=STALE, seed=6),
        numerics=Numerics(kind="gaussian", scale=NOISE),
    )

    def compute() -> dict[str, np.ndarray]:
        result = ensemble(experiment, seeds=RUNS)
        environment = experiment.environment
        with jax.enable_x64(True):
            task = build(environment).cast(np.float64)
            engine = engine_settings(experiment.numerics, jnp.float64)
            pi_s = log_probs(task, jnp.asarray(result.theta_sampler[0, -1], jnp.float64))
            pi = log_probs(task, jnp.asarray(result.theta[0, -1], jnp.float64))
            key = engine_key(environment.seed)
            # drawn in single precision, as the run draws it: double would be other numbers
            drawn = engine_settings(experiment.numerics, jnp.float32)
            delta = noise(drawn, key, pi_s.shape, jnp.float32).astype(jnp.float64)
            mu = sampled_log_probs(pi_s, delta, engine)
        columns = {"logmu": mu, "logpi_s": pi_s, "logpi": pi}
        return {name: np.asarray(x).reshape(-1) for name, x in columns.items()}

    columns = derived(root, "rows", code_digest(ENGINE), experiment.fingerprint(), compute=compute)
    width = first.environment.vocabulary
    what = (
        f"environment {first.environment.seed}, stale DLC with logit noise {NOISE}, step {experiment.steps}"
    )
    return Rows(**{name: x.reshape(-1, width) for name, x in columns.items()}, what=what)
