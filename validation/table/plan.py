"""Which runs the table needs: cells by sampler and correction, and the on-policy runs they are measured by.

Seeds and on-policy runs are those of ``check real``, so that the two share the store. Nothing is run twice:
cells that are one update (`same`) share their runs. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from real.settings import Mini, SamplerName, working_point_a, working_point_b
from theory.corrections import correction
from theory.experiment import Experiment
from validation.real_plan import COMPARE_EVERY, METHOD_SEEDS, REFERENCE_SEEDS
from validation.table.rows import CORRECTIONS, SAMPLERS
from validation.table.same import Same, representatives

Point = Literal["A", "B"]
ENGINE = "real"
SEEDS = METHOD_SEEDS
REFERENCES = (*REFERENCE_SEEDS, 14, 15)
"""Two more than `check real` has: the floor is the mean over their pairs, and its error is in every row"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One sampler with one correction."""

    sampler: str
    correction: str
    experiments: tuple[Experiment, ...]
    """One a seed"""
    same: Same | None = None
    """Row whose runs it shares"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """All runs of one table."""

    preset: str
    """mini, or the size of the model"""
    point: str
    """Working point; of a full-size model its learning rate"""
    engine: str
    """Name of the real engine in the store"""
    seeds: tuple[int, ...]
    references: tuple[Experiment, ...]
    """On-policy runs with seeds of their own"""
    cells: tuple[TableCell, ...]
    variant: str = ""
    """What is not as in the whole table of that point, `variant.variant_of`: it is kept beside that one"""

    def runs(self) -> Iterator[Experiment]:
        """Each experiment once: the on-policy ones, then seed by seed, so that a part of it is a table.

        Within a seed by engine, in turn forwards and backwards: a worker then seldom changes its engine.
        """
        cells = [e for cell in self.cells for e in cell.experiments]
        numerics = list(dict.fromkeys(e.numerics for e in (*self.references, *cells)))
        ordered = [*self.references]
        for n, seed in enumerate(self.seeds):
            own = [e for e in cells if e.seed == seed]
            ordered += sorted(own, key=lambda e: numerics.index(e.numerics), reverse=bool(n % 2))
        seen: set[str] = set()
        for experiment in ordered:
            if experiment.fingerprint() not in seen:
                seen.add(experiment.fingerprint())
                yield experiment


def mini_plan(
    *,
    point: Point = "A",
    samplers: tuple[str, ...],
    corrections: tuple[str, ...],
    seeds: tuple[int, ...] = SEEDS,
    references: tuple[int, ...] = REFERENCES,
    engine: SamplerName = "vllm",
    model: str = "mini",
    steps: int = 40,
    prompts: int = 64,
    samples: int = 8,
    eval_prompts: int = 256,
    every_cell: bool = False,
) -> TablePlan:
    """Plan the table on mini-Qwen3.

    Parameters
    ----------
    point : {"A", "B"}
        Working point.
    samplers, corrections : tuple of str
        Names of `rows`.
    seeds, references : tuple of int
        Of the cells and of the on-policy runs.
    engine : {"vllm", "torch"}
        What samples.
    steps, prompts, samples, eval_prompts : int
        Sizes; smaller ones are for trying out.
    every_cell : bool
        Run cells apart that are equal up to the rounding of the engine; those equal to the bit stay shared.

    Raises
    ------
    ValueError
        For settings that cannot be compared: a seed used twice, fewer than two on-policy runs.
    """
    check_seeds(seeds, references)
    environment = Mini(
        sampler=engine,
        model=model,
        eval_every=max(1, min(COMPARE_EVERY, steps)),
        eval_prompts=eval_prompts,
        eval_samples=2,
    )
    at_point = working_point_a if point == "A" else working_point_b

    def at(name: str, row: str, seed: int) -> Experiment:
        sampler = SAMPLERS[row]
        made = at_point(
            CORRECTIONS[name],
            seed=seed,
            sync_every=sampler.sync_every,
            numerics=sampler.numerics,
            steps=steps,
            prompts=prompts,
            samples=samples,
        )
        return replace(made, environment=environment)

    cells = cells_of(at, samplers, corrections, seeds, rounding=not every_cell)
    on_policy = tuple(
        replace(at("pg", "reference", seed), correction=correction("pg")) for seed in references
    )
    return TablePlan(
        preset="mini", point=point, engine=ENGINE, seeds=seeds, references=on_policy, cells=cells
    )


def check_seeds(seeds: tuple[int, ...], references: tuple[int, ...], /) -> None:
    """Refuse seeds that cannot be compared.

    Raises
    ------
    ValueError
        For a seed used twice, or fewer than two on-policy runs.
    """
    if len(references) < 2 or len(set(references)) != len(references):
        raise ValueError(f"a floor needs at least two different on-policy seeds, got {references}")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"the table needs different seeds, got {seeds}")
    if set(seeds) & set(references):
        both = sorted(set(seeds) & set(references))
        raise ValueError(f"cells and on-policy runs must share no draws, got seed {both[0]} in both")


def cells_of(
    at: Callable[[str, str, int], Experiment],
    samplers: tuple[str, ...],
    corrections: tuple[str, ...],
    seeds: tuple[int, ...],
    *,
    rounding: bool,
) -> tuple[TableCell, ...]:
    """All cells; `at` makes the experiment of a correction, a sampler and a seed."""
    cells = []
    for row in samplers:
        # over all corrections, chosen or not: a part of the table and the whole then share their runs
        shared = representatives(CORRECTIONS, SAMPLERS[row], rounding=rounding)
        shown_as: dict[str, str] = {}
        for name in corrections:
            same = shared[name]
            owner = name if same is None else same.row
            first = shown_as.setdefault(owner, owner if owner in corrections else name)
            runs = tuple(at(owner, row, seed) for seed in seeds)
            shown = None if same is None or first == name else Same(first, same.kind)
            cells.append(TableCell(sampler=row, correction=name, experiments=runs, same=shown))
    return tuple(cells)
