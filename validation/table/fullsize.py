"""The same table on a full-size Qwen3: its plan on any machine, its runs where there is a card.

Runs are made one after another in this process, each resumable. What needs the weights of two runs at once,
the deviation in floors, is not measured there: forty runs' weights are terabytes. Accuracy, crossings, ESS,
off-support shares and resyncs are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from real.fullsize.settings import FullSize
from theory.experiment import Experiment, Numerics
from validation.errors import running, usage
from validation.flags import refuse_flags
from validation.places import writable
from validation.table.plan import REFERENCES, SEEDS, TablePlan, cells_of, check_seeds
from validation.table.rows import CORRECTIONS, SAMPLERS, chosen
from validation.table.variant import variant_of

if TYPE_CHECKING:
    from validation.commands.table import Options

MODELS: Mapping[str, str] = MappingProxyType({"0.6b": "Qwen/Qwen3-0.6B", "1.7b": "Qwen/Qwen3-1.7B"})
ENGINE = "fullsize"
"""Name in the store"""
PLANNED_LR = 0.05
"""Stands in for the learning rate in a plan; a run has to be given one, since the articles state none"""
EVALUATED = 256
"""Held-out problems, two responses each"""
ASSUMED_GIB = 80.0
"""Card to plan for where the machine has none"""


def main(options: Options) -> int:
    """Plan, or run, the table of a full-size preset."""
    with usage():
        plan = plan_of(options)
    if options.plan:
        return _show(plan, options.out)
    return _run(plan, options)


def plan_of(options: Options) -> TablePlan:
    """Plan the runs the flags describe.

    Raises
    ------
    ValueError
        For flags that fit no table, or a run without a learning rate.
    """
    from validation.commands.table import numbers

    if options.lr is None and not options.plan:
        raise ValueError(
            "the articles do not state their learning rate: give one with --lr, after a short on-policy run "
            "(`python -m real.fullsize`), or look at the table with --plan"
        )
    preset = f"preset {options.preset!r}"
    refuse_flags(options, ("every_cell",), f"{preset}, where only equal arithmetic is shared")
    refuse_flags(options, ("point", "engine", "jobs", "backend"), preset)
    lr = PLANNED_LR if options.lr is None else options.lr
    base = options.precision or "bf16"
    seeds = numbers(options.seeds, "seeds", SEEDS)
    references = numbers(options.references, "references", REFERENCES)
    check_seeds(seeds, references)
    articles = [name for name, row in SAMPLERS.items() if row.article]
    samplers = chosen(options.samplers, SAMPLERS, "sampler", articles)
    sizes: dict[str, Any] = {"model": options.model or MODELS[options.preset], "eval_every": 5}
    lengths = {"max_response_tokens": options.response_tokens, "max_prompt_tokens": options.prompt_tokens}
    sizes |= {name: tokens for name, tokens in lengths.items() if tokens is not None}

    def at(name: str, row: str, seed: int) -> Experiment:
        sampler = SAMPLERS[row]
        kind = sampler.numerics.kind
        noisy = kind == "weight-noise"
        precision = base if kind == "exact" or noisy else _precision(kind, base)
        return Experiment(
            environment=FullSize(
                precision=precision, eval_prompts=min(EVALUATED, 4 * options.prompts), **sizes
            ),
            correction=CORRECTIONS[name],
            lr=lr,
            steps=options.steps,
            prompts=options.prompts,
            baseline="none",
            sync_every=sampler.sync_every,
            numerics=sampler.numerics if noisy else Numerics(),
            seed=seed,
        )

    return TablePlan(
        preset=options.preset,
        point=f"lr {lr:g}",
        engine=ENGINE,
        seeds=seeds,
        references=tuple(at("pg", "reference", seed) for seed in references),
        cells=cells_of(
            at,
            samplers,
            chosen(options.corrections, CORRECTIONS, "correction", CORRECTIONS),
            seeds,
            rounding=False,
        ),
        variant=variant_of(options),
    )


def _precision(kind: str, base: str) -> str:
    """Name of a rounding engine: vLLM's own FP8 beside bf16, the emulated one beside float32."""
    return "fp8" if kind == "fp8" and base == "bf16" else f"{kind}-emulated" if kind != "bf16" else "bf16"


def _show(plan: TablePlan, out: Path) -> int:
    """Print the cells, then for each engine what its first run would do."""
    from real.fullsize.devices import cards
    from real.fullsize.plan import assumed_cards
    from real.fullsize.plan import plan as describe
    from validation.table.screen import print_plan

    print_plan(plan, out)
    found = cards() or assumed_cards(1, ASSUMED_GIB)
    seen: set[str] = set()
    for experiment in plan.runs():
        if experiment.environment.precision not in seen:
            seen.add(experiment.environment.precision)
            print()
            with usage():
                print(describe(experiment, found))
    return 0


def make(root: Path, experiment: Experiment) -> str:
    """Make one full-size run in a store, or go on with it."""
    import dataclasses

    from real.run import run
    from validation.store import Store

    store = Store(root)
    if store.find(ENGINE, experiment, tables=()) is not None:
        return ""
    with store.write(ENGINE, experiment) as writer:
        done: Any = run(experiment, checkpoint=writer.state, resume=True)
        notes = {
            "stopped": done.stopped,
            "tail_mass": done.tail_mass,
            "evaluations": {str(k): dataclasses.asdict(e) for k, e in done.evaluations.items()},
        }
        writer.finish([done.trace], notes=notes)
    return ""


def _run(plan: TablePlan, options: Options) -> int:
    from validation.commands.table import finish
    from validation.table.gather import gather

    writable(options.json)
    from real import process

    if not Path(options.model or MODELS[options.preset]).exists():
        process.allow_hub()
    process.prepare()
    from real.fullsize.devices import cards, place

    with usage():
        place(plan.references[0].environment.devices, cards())
    started = time.perf_counter()
    with running():
        found = gather(plan, options.out, jobs=1, make=make, compare=False)
    return finish(found, options, started=started)
