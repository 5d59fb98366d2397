"""``lagfloor check toy|real|theory``: run what the claims need, judge them, print the verdict table."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from validation.errors import running, usage
from validation.flags import refuse_flags, words_in
from validation.places import folder, writable

if TYPE_CHECKING:
    from validation.evidence import Evidence
    from validation.plan import Plan

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check the claims of one engine, each with a margin fixed beforehand and a control that must fail."""

    engine: Annotated[Literal["toy", "real", "theory"], tyro.conf.Positional]
    """toy: JAX simulator, minutes; real: mini-Qwen3 sampled by vLLM, minutes; theory: closed forms"""
    only: str = ""
    """Claim ids, separated by commas; all that have a check if left out"""
    seed: int = 0
    """Other environments (toy) or seeds (real) than the default ones"""
    json: Path | None = None
    """Write the outcomes to this file"""
    runs: Path = RUNS
    """Folder of the stored runs; finished ones are reused"""
    fresh: bool = False
    """Run everything again"""
    sampler: Literal["vllm", "torch"] | None = None
    """real: what samples; vllm if left out"""
    model: str | None = None
    """real: the shipped mini-Qwen3 if left out, or a safetensors file of the same model"""
    workers: int | None = None
    """real: processes; one per core, at most 2, if left out"""


def main(options: Options) -> int:
    """Run the checks; 0 if every one could be run, whatever its verdict."""
    started = time.perf_counter()
    from validation import closed_forms
    from validation.checks import needed, selected

    with usage():
        _refuse_unused(options)
        if options.seed < 0:
            raise ValueError(f"seed must be >= 0, got {options.seed}; any whole number from 0 up will do")
        if options.workers is not None and options.workers < 1:
            raise ValueError(f"workers must be >= 1, got {options.workers}; leave it out for one per core")
        only = words_in(options.only, "only")
        theory = options.engine == "theory"
        claims = closed_forms.selected(only) if theory else selected(only, engine=options.engine)
        whole = _plan(options)
        plan = None if whole is None else needed(whole, claims)
    folder(options.runs, "--runs")
    writable(options.json)
    from validation.check import Verdict, conclude
    from validation.results import Results, save
    from validation.screen import print_verdicts

    with running():
        if plan is None:
            evidence, checks = None, closed_forms.checks_of(claims, seed=options.seed)
        else:
            from validation.checks import CHECKS

            evidence = _gather(plan, options)
            checks = [check for name in claims for check in CHECKS[name].checks(evidence)]
        results = Results(
            engine=options.engine,
            seed=options.seed,
            seconds=time.perf_counter() - started,
            command=command_line(),
            checks=tuple(checks),
        )
    print_verdicts(results)
    with running():
        if not options.only:
            save(results, evidence, options.runs / "checks")
        if options.json is not None:
            from validation.atomic import write_json

            write_json(options.json, results.document())
    return int(any(conclude(c).verdict is Verdict.NOT_RUN for c in results.checks))


def _refuse_unused(options: Options) -> None:
    """Refuse flags that this engine would ignore."""
    if options.engine != "real":
        refuse_flags(options, ("sampler", "model", "workers"), f"engine {options.engine!r}")
    if options.engine == "theory":
        refuse_flags(options, ("fresh",), "engine 'theory': closed forms store no run")


def command_line() -> str:
    """Return the command that is running, as it can be typed again."""
    return shlex.join(["python", "-m", "validation", *sys.argv[1:]])


def _plan(options: Options) -> Plan | None:
    match options.engine:
        case "toy":
            from validation.plan import toy_plan

            return toy_plan(options.seed)
        case "real":
            from real.tasks import TASKS
            from real.weights_file import check_weights
            from validation.real_plan import real_plan

            model = options.model or "mini"
            made = real_plan(options.seed, sampler=options.sampler or "vllm", model=model)
            check_weights(model, TASKS["countdown"])
            return made
        case "theory":
            return None


def _gather(plan: Plan, options: Options) -> Evidence:
    from validation.screen import stages
    from validation.store import Store

    store = Store(options.runs)
    kept = f"finished runs are kept in {options.runs}/; the same command goes on from there"
    try:
        with stages() as stage:
            if plan.engine == "toy":
                from validation.gather import toy

                runs = stage("toy runs", total=len(list(plan.runs())))
                worlds = stage("comparing runs", total=len(plan.worlds))
                probes = stage("analyses", total=len(plan.probes) * len(plan.environments))
                return toy.gather(
                    plan,
                    store,
                    fresh=options.fresh,
                    on_run=runs.advance,
                    on_world=worlds.advance,
                    on_probe=probes.advance,
                )
            from validation.gather import real

            steps = stage("training steps", total=sum(e.steps for e, _ in plan.runs()))
            compared = stage("comparing runs", total=len(list(plan.runs())) + 1)
            return real.gather(
                plan,
                store,
                workers=options.workers or min(2, os.cpu_count() or 1),
                fresh=options.fresh,
                on_step=steps.at,
                on_run=compared.advance,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept) from None
