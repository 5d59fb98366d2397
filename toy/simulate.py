"""Run experiments on the toy: `Experiment` in, `Trace` out, many seeds in one compiled call."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np

from theory.experiment import Experiment
from theory.limits import refuse_count
from theory.records import StepRecord, Trace
from toy import cache
from toy.engine import engine_settings
from toy.ensemble import Ensemble
from toy.environment import build, memory_of
from toy.families import branches_for, family_of, rule_settings
from toy.infrastructure import infrastructure_settings
from toy.keys import words
from toy.loop import BASELINES, Reported, Settings, Static, simulate
from toy.task import Task
from toy.toggles import Infrastructure

BYTES_A_TOKEN = 100
"""Memory a drawn token takes at the least, measured on setting S: 645 MB more for 6.4 million tokens"""


def ensemble(
    experiment: Experiment,
    *,
    seeds: int,
    on_step: Callable[[int, StepRecord], None] | None = None,
    tokens: bool = False,
    double: bool = False,
) -> Ensemble:
    """Run an experiment with several training seeds.

    Parameters
    ----------
    experiment : Experiment
        Its environment is one of `toy.settings`; ``prompts`` must be the environment's.
    seeds : int
        Runs; the i-th draws from the i-th key of ``experiment.seed``, whatever their number. Frozen engine
        noise is the environment's and so the same for all.
    on_step : callable, optional
        Gets the index of the seed and its `StepRecord`, seed after seed, once the compiled call is over.
    tokens : bool
        Report every drawn token as well; compiles anew.
    double : bool
        Float64 in place of float32.

    Returns
    -------
    Ensemble

    Raises
    ------
    ValueError
        For what the toy cannot run: another engine's environment or numerics, sizes that do not fit.

    Notes
    -----
    A correction whose family is not among `toy.families.FAMILIES` compiles a function of its own, once.
    """
    cache.switch_on()
    with jax.enable_x64(double):
        arguments, static = _prepare(experiment, seeds, tokens, np.float64 if double else np.float32)
        with _compiling_once(static, arguments[0]):
            reported: Reported = jax.device_get(simulate(*arguments, static=static))
    result = Ensemble(
        experiment=experiment,
        measures={name: np.asarray(values) for name, values in reported.measures.items()},
        theta=np.asarray(reported.weights_DV),
        theta_sampler=np.asarray(reported.sampler_DV),
        drawn={name: np.asarray(values) for name, values in reported.tokens.items()},
    )
    if on_step is not None:
        for seed in range(seeds):
            for record in result.records(seed):
                on_step(seed, record)
    return result


_compiled: set[tuple[Any, ...]] = set()
_compiling = threading.Lock()


@contextmanager
def _compiling_once(static: Static, task: Task) -> Iterator[None]:
    """Let one thread compile a new shape while the others wait: JAX would have each of them compile it."""
    shapes = (static, *(None if x is None else (x.shape, x.dtype) for x in task))
    with nullcontext() if shapes in _compiled else _compiling:
        yield
    _compiled.add(shapes)


def run(
    experiment: Experiment,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    tokens: bool = False,
    double: bool = False,
) -> Trace:
    """Run one seed; the interface both engines share. Options as in `ensemble`."""
    each = None if on_step is None else lambda _, record: on_step(record)
    return ensemble(experiment, seeds=1, on_step=each, tokens=tokens, double=double).traces[0]


def sweep(
    experiments: Iterable[Experiment],
    *,
    seeds: int,
    workers: int | None = None,
    on_done: Callable[[int, Ensemble], None] | None = None,
    **options: Any,
) -> Sequence[Ensemble]:
    """Run many experiments, a few at a time in threads; results in their order.

    Parameters
    ----------
    experiments : iterable of Experiment
        The cells.
    seeds : int
        Training seeds of each.
    workers : int, optional
        Threads; by default one a core. A compiled call holds no Python lock, so they run side by side.
    on_done : callable, optional
        Gets the index of a cell and its ensemble as soon as the cell and all before it are done.
    **options
        Further options of `ensemble`.
    """
    cells = list(experiments)
    one = partial(ensemble, seeds=seeds, **options)
    workers = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=workers) as pool:
        results = []
        for i, result in enumerate(pool.map(one, cells)):
            results.append(result)
            if on_done is not None:
                on_done(i, result)
    return results


def _prepare(
    experiment: Experiment, seeds: int, tokens: bool, dtype: Any
) -> tuple[tuple[Task, Settings, np.ndarray, np.ndarray], Static]:
    """Traced and static arguments of the compiled loop; NumPy, so that nothing is compiled to make them."""
    environment = experiment.environment
    task = build(environment)
    refuse_unrunnable(experiment, seeds)
    rule = experiment.correction
    infrastructure = getattr(environment, "infrastructure", Infrastructure())
    families = branches_for(rule)
    static = Static(
        memory=memory_of(environment),
        samples=experiment.samples,
        steps=experiment.steps,
        minibatches=experiment.minibatches,
        seeds=seeds,
        families=families,
        tokens=tokens,
        infrastructure=infrastructure != Infrastructure(),
    )
    settings = Settings(
        lr=np.asarray(experiment.lr, dtype),
        sync_every=np.int32(experiment.sync_every),
        branch=np.int32(families.index(family_of(rule))),
        baseline=np.int32(BASELINES.index(experiment.baseline)),
        rule=rule_settings(rule, dtype),
        engine=engine_settings(experiment.numerics, dtype),
        infrastructure=infrastructure_settings(infrastructure, dtype),
    )
    return (task.cast(dtype), settings, words(environment.seed), words(experiment.seed)), static


def refuse_unrunnable(experiment: Experiment, seeds: int = 1) -> None:
    """Raise ValueError, in one line, for an experiment the toy cannot run."""
    environment = experiment.environment
    refuse_count("seeds", seeds, least=1)
    if experiment.prompts != environment.prompts:
        raise ValueError(
            f"the toy draws every prompt of its environment each step, got prompts={experiment.prompts} with "
            f"an environment of {environment.prompts}; set them equal"
        )
    if experiment.samples % experiment.minibatches:
        raise ValueError(
            f"minibatches split the samples of each prompt evenly, got {experiment.samples} samples in "
            f"{experiment.minibatches}; choose a divisor"
        )
    _refuse_too_large(experiment, seeds)
    chosen = getattr(environment, "infrastructure", Infrastructure())
    if experiment.minibatches > 1 and chosen != Infrastructure():
        raise ValueError(
            f"infrastructure toggles need one update a batch, got minibatches={experiment.minibatches}: a "
            "late response would meet another minibatch than its group; set minibatches=1"
        )


def _refuse_too_large(experiment: Experiment, seeds: int) -> None:
    """Raise ValueError for what this machine's memory cannot hold: one call holds a batch and all weights."""
    environment = experiment.environment
    batch = BYTES_A_TOKEN * experiment.prompts * experiment.samples * environment.length
    # after each step, float32: the trainer's weights and the sampler's
    record = 4 * experiment.steps * 2 * environment.weights
    needed, there = seeds * (batch + record), _memory()
    if needed > there:
        raise ValueError(
            f"the toy runs in one call, and {experiment.steps} steps of {experiment.samples} samples a "
            f"prompt in {seeds} seed(s) need {needed / 2**30:.3g} GiB or more, got {there / 2**30:.3g} GiB "
            "of memory; lower steps or samples"
        )


def _memory() -> float:
    """Bytes of memory of this machine; inf where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
