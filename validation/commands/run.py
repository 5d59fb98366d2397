"""``lagfloor run toy|real``: one experiment into a run folder, reused when finished, resumed when not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from theory.advantage import Baseline
from theory.corrections import PpoRef, correction
from theory.experiment import Experiment, Numerics, NumericsKind
from validation.errors import CannotRun, running, usage
from validation.flags import refuse_flags
from validation.places import folder as folder_usable

if TYPE_CHECKING:
    from theory.records import Trace
    from validation.store import StoredRun


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run one experiment and keep it; the folder's name is the fingerprint of its settings."""

    engine: Annotated[Literal["toy", "real"], tyro.conf.Positional]
    """toy: setting S in JAX; real: mini-Qwen3 with a torch trainer"""
    correction: str = "pg"
    """A name from the table of corrections; an unknown one lists them"""
    lr: float | None = None
    """Step of plain SGD; the engine's usual one if left out (toy 2, real .15)"""
    steps: int = 40
    """Updates"""
    sync_every: int = 1
    """Scheduled sync period in steps; 64 is the articles' stale sampler"""
    resync_below: float | None = None
    """ESS share below which the sampler is synced; 0 never; the correction's own if left out"""
    resync_level: Literal["token", "sequence"] | None = None
    """Whose ESS that is"""
    ppo_ref: PpoRef | None = None
    """For ppo: what its ratio refers to"""
    samples: int | None = None
    """Responses per prompt; the engine's usual number if left out (toy 128, real 8)"""
    minibatches: int = 1
    """Updates per batch"""
    baseline: Baseline | None = None
    """What is subtracted from the rewards; the engine's usual one if left out (toy group, real none)"""
    numerics: NumericsKind = "exact"
    """What the sampler's engine does differently at equal weights"""
    scale: float = 0.0
    """Size of its noise, where it is noise"""
    seed: int = 0
    """Of the run"""
    environment: int | None = None
    """Toy: seed of the environment; 0 if left out"""
    quantile: float | None = None
    """Toy: share of the initial policy's responses that score below a success; .93 if left out"""
    sampler: Literal["vllm", "torch"] | None = None
    """Real: where responses come from; vllm if left out"""
    model: str | None = None
    """Real: the shipped mini-Qwen3 if left out, or a safetensors file of the same model"""
    runs: Path = Path("runs")
    """Folder of the stored runs"""
    fresh: bool = False
    """Run again even if there is a finished run"""


def main(options: Options) -> int:
    """Run, or find the finished run, and print a line on it."""
    with usage():
        experiment = experiment_of(options)
        _known_to_engine(options.engine, experiment)
    folder_usable(options.runs, "--runs")
    from validation.screen import stages
    from validation.store import Store

    store = Store(options.runs)
    folder = store.folder(options.engine, experiment)
    try:
        with running(), stages() as stage:
            if options.engine == "toy":
                from validation.gather import toy

                stored = toy.run(store, experiment, fresh=options.fresh)
            else:
                from validation.gather import real

                bar = stage("training steps", total=experiment.steps)
                stored = real.run(
                    store,
                    experiment,
                    fresh=options.fresh,
                    on_step=lambda record: bar.at(record.step, experiment.steps),
                )
    except KeyboardInterrupt:
        kept = (
            "nothing was written; the same command runs it again, in one call"
            if options.engine == "toy"
            else f"{folder} keeps the steps done; the same command goes on from there"
        )
        raise KeyboardInterrupt(kept) from None
    print(summary(stored))
    return 0


_ONLY = {"toy": ("environment", "quantile"), "real": ("sampler", "model")}
"""Flags that one engine has and the other does not"""
_NOISE = ("gaussian", "laplace", "student-t", "weight-noise")
"""Numerics that have a size"""


def experiment_of(options: Options) -> Experiment:
    """Build the experiment the flags describe.

    Raises
    ------
    ValueError
        For settings no engine could run.
    """
    other = "real" if options.engine == "toy" else "toy"
    refuse_flags(options, _ONLY[other], f"the {options.engine} engine")
    changes: dict[str, Any] = {
        name: value
        for name, value in (("resync_below", options.resync_below), ("resync_level", options.resync_level))
        if value is not None
    }
    rule = correction(options.correction, ppo_ref=options.ppo_ref, **changes)
    if rule.resync_below == 0:
        refuse_flags(
            options, ("resync_level",), "a rule that never resyncs (--resync-below makes one that does)"
        )
    numerics = Numerics(kind=options.numerics, scale=options.scale)
    if numerics.kind not in _NOISE:
        refuse_flags(options, ("scale",), f"numerics {numerics.kind!r}, which is no noise")
    fields: dict[str, Any] = {
        "steps": options.steps,
        "sync_every": options.sync_every,
        "minibatches": options.minibatches,
        "numerics": numerics,
        "seed": options.seed,
    }
    fields |= {
        name: value
        for name, value in (("lr", options.lr), ("samples", options.samples), ("baseline", options.baseline))
        if value is not None
    }
    if options.engine == "toy":
        from toy.settings import setting_s

        if options.environment is not None and options.environment < 0:
            raise ValueError(
                f"environment must be >= 0, got {options.environment}; any number from 0 up will do"
            )
        if options.quantile is not None:
            fields["quantile"] = options.quantile
        return setting_s(options.environment or 0, correction=rule, **fields)
    from real.settings import working_point_a

    base = working_point_a(rule, sampler=options.sampler or "vllm", **fields)
    return replace(base, environment=replace(base.environment, model=options.model or "mini"))


def _known_to_engine(engine: str, experiment: Experiment) -> None:
    """Refuse what the engine does not have before a folder is made for it."""
    numerics = experiment.numerics
    if numerics.kind in _NOISE and numerics.scale == 0:
        raise ValueError(
            f"numerics {numerics.kind!r} is noise of a size, got --scale 0; give one, for example .5"
        )
    if engine == "toy":
        from toy.engine import engine_settings
        from toy.simulate import refuse_unrunnable

        refuse_unrunnable(experiment)
        engine_settings(numerics, float)
    else:
        from real.fp8.recipe import recipe_of
        from real.weights_file import check_weights

        check_weights(experiment.environment.model, experiment.environment.definition)

        recipe_of(numerics)
        if experiment.prompts < experiment.minibatches:
            raise ValueError(
                f"minibatches must be <= prompts ({experiment.prompts}), got {experiment.minibatches}; choose"
                " fewer"
            )


def summary(stored: StoredRun) -> str:
    """Say in one line what a run found and where it is."""
    from theory.crossing import first_below

    trace: Trace = stored.traces[0]
    steps = trace.steps
    if not len(steps["step"]):
        raise CannotRun(
            f"{stored.folder} has no step: {stored.notes.get('stopped') or 'the run ended at once'}"
        )
    known = {name: values[~_nan(values)] for name, values in steps.items()}
    parts = [f"{len(steps['step'])} steps"]
    if len(known.get("accuracy", ())):
        parts.append(f"accuracy {known['accuracy'][-1]:.3f}")
    if "ess_token" in steps:
        crossed = first_below(steps["ess_token"], steps=steps["step"])
        parts.append("ESS stays above 1/2" if math.isinf(crossed) else f"ESS first below 1/2 at {crossed:g}")
    parts.append(f"{int(known['resynced'].sum())} resyncs")
    if stored.notes.get("stopped"):
        parts.append(f"stopped at {stored.notes['stopped']}")
    return f"{stored.folder}: {', '.join(parts)}, {stored.seconds:.0f} s"


def _nan(values: Any) -> Any:
    import numpy as np

    return np.isnan(np.asarray(values, dtype=float))
