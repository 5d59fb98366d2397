"""``lagfloor table``: samplers x corrections x seeds, in parallel, resumed where a killed table stopped."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from validation.errors import CannotRun, running, usage
from validation.flags import refuse_flags, words_in
from validation.places import folder, writable

if TYPE_CHECKING:
    from validation.table.gather import Gathered
    from validation.table.plan import TablePlan


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run the articles' table and judge the claims on it; the same command goes on where it was stopped."""

    preset: Literal["mini", "0.6b", "1.7b"] = "mini"
    """mini: mini-Qwen3 on this CPU; 0.6b, 1.7b: Qwen3 of that size, on a GPU"""
    point: Literal["A", "B"] | None = None
    """mini: working point; A: rewards +-1, lr .15; B: group baseline, lr .3; A if left out"""
    samplers: str = ""
    """Names, separated by commas; the articles' four if left out"""
    corrections: str = ""
    """Names, separated by commas; all if left out"""
    seeds: str = ""
    """Of the cells, separated by commas; 20,21,22 if left out"""
    references: str = ""
    """Seeds of the on-policy runs; 10 to 15 if left out"""
    engine: Literal["vllm", "torch"] | None = None
    """mini: what samples; vllm if left out"""
    model: str = ""
    """A checkpoint in place of the preset's"""
    steps: int = 40
    """Updates of a run"""
    prompts: int = 64
    """Prompts of a batch, with 8 responses each"""
    precision: Literal["bf16", "fp32"] | None = None
    """0.6b, 1.7b: of the sampler that does not round; with fp32 the rounding ones are emulated; bf16 if left
    out"""
    response_tokens: int | None = None
    """0.6b, 1.7b: longest response; 512 if left out"""
    prompt_tokens: int | None = None
    """0.6b, 1.7b: longest prompt; 256 if left out"""
    lr: float | None = None
    """0.6b, 1.7b: step of plain SGD; the articles do not state theirs, so it has to be given"""
    every_cell: bool = False
    """Run cells apart that differ by the rounding of a float32 engine alone"""
    out: Path = Path("runs")
    """Folder of the stored runs, shared with `check real` and `run`; finished ones are reused"""
    jobs: int = 0
    """mini: processes, no more than there are runs; 0: one per core, at most 2 on a CPU"""
    backend: Literal["loky", "ray", "dask"] = "loky"
    """Of joblib"""
    json: Path | None = None
    """Write the table to this file"""
    plan: bool = False
    """Print which runs there are and what they take; run nothing"""


def main(options: Options) -> int:
    """Run the table; 0 if every cell was measured."""
    from real.weights_file import check_weights
    from validation.table.work import check_backend

    folder(options.out, "--out")
    if options.preset != "mini":
        from validation.table import fullsize

        return fullsize.main(options)
    with usage():
        plan = plan_of(options)
        check_weights(options.model or "mini", plan.references[0].environment.definition)
        check_backend(options.backend)
        if options.jobs < 0:
            raise ValueError(f"jobs must be >= 0, got {options.jobs}; 0 is one per core")
    writable(options.json)
    if options.plan:
        from validation.table.screen import print_plan

        print_plan(plan, options.out)
        return 0
    return _run(plan, options)


def plan_of(options: Options) -> TablePlan:
    """Plan the runs the flags describe.

    Raises
    ------
    ValueError
        For flags that fit no table.
    """
    from validation.table.plan import REFERENCES, SEEDS, mini_plan
    from validation.table.rows import CORRECTIONS, SAMPLERS, chosen
    from validation.table.variant import variant_of

    refuse_flags(options, ("lr",), "preset 'mini', whose working points (--point) fix the learning rate")
    refuse_flags(options, ("response_tokens", "prompt_tokens", "precision"), f"preset {options.preset!r}")
    articles = [name for name, row in SAMPLERS.items() if row.article]
    made = mini_plan(
        point=options.point or "A",
        samplers=chosen(options.samplers, SAMPLERS, "sampler", articles),
        corrections=chosen(options.corrections, CORRECTIONS, "correction", CORRECTIONS),
        seeds=numbers(options.seeds, "seeds", SEEDS),
        references=numbers(options.references, "references", REFERENCES),
        engine=options.engine or "vllm",
        model=options.model or "mini",
        steps=options.steps,
        prompts=options.prompts,
        every_cell=options.every_cell,
    )
    return replace(made, variant=variant_of(options))


def numbers(text: str, flag: str, default: tuple[int, ...], /) -> tuple[int, ...]:
    """Whole numbers in a comma-separated list.

    Raises
    ------
    ValueError
        For a word that is none, or a list without one.
    """
    words = words_in(text, flag)
    for word in words:
        if not word.isdecimal():
            raise ValueError(f"--{flag} takes whole numbers from 0 up, separated by commas, got {word!r}")
    return tuple(int(word) for word in words) or default


def _run(plan: TablePlan, options: Options) -> int:
    started = time.perf_counter()
    kept = f"finished and begun runs are kept in {options.out}/; the same command goes on from there"
    from validation.table.gather import gather

    try:
        with running():
            found = gather(
                plan,
                options.out,
                jobs=min(options.jobs or min(2, os.cpu_count() or 1), len(list(plan.runs()))),
                backend=options.backend,
                say=lambda text: print(f"lagfloor: {text}", file=sys.stderr),
            )
        return finish(found, options, started=started)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept) from None


def finish(found: Gathered, options: Options, *, started: float) -> int:
    """Judge, keep and print a table; 1 if a run is missing in it."""
    from validation.atomic import write_json
    from validation.commands.check import command_line
    from validation.table.gather import keep, said_once
    from validation.table.screen import print_table
    from validation.table.summary import document

    with running():
        if found.table is None:
            raise CannotRun("; ".join(said_once(found.failures)[:3]))
        made = document(found.table, command=command_line(), seconds=time.perf_counter() - started)
    print_table(made)
    for failure in said_once(found.failures):
        print(f"lagfloor: {failure}", file=sys.stderr)
    with running():
        keep(made, options.out)
        if options.json is not None:
            write_json(options.json, made)
    return int(bool(found.failures))
