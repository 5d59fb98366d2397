"""Which runs of mini-Qwen3 the checks need: one world, whose repetitions are the seeds."""

from __future__ import annotations

from dataclasses import replace

from real.settings import Mini, SamplerName, working_point_a
from theory.corrections import Correction, correction
from theory.experiment import Experiment
from toy.settings import STALE
from validation.plan import CORRECTIONS, DLC, IS, IS_RESYNC, ON_POLICY, PG, SC, Cell, Plan, WorldPlan

REFERENCE_SEEDS = (10, 11, 12, 13)
METHOD_SEEDS = (20, 21, 22)
"""Never used to find the working points (0 to 3) or DLC's defaults (50, 51, 60 to 62)"""
SEED_STRIDE = 100
COMPARE_EVERY = 5
"""Steps between the weights that are compared with the reference; each costs about half a second a run"""
REAL_CELLS = (PG, SC, IS, IS_RESYNC, DLC)


def real_plan(seed: int = 0, *, sampler: SamplerName = "vllm", model: str = "mini") -> Plan:
    """Plan mini-Qwen3 at working point A with fresh seeds; `seed` moves them by 100.

    Point A (rewards +-1, no baseline) leaves a mean advantage on every prefix, so PG and SC differ there; and
    it has the lower floor of the two, so deviations stand out. One world: its repetitions are the seeds.
    """
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}; the seeds below were used for tuning")
    environment = Mini(
        sampler=sampler, model=model, eval_every=COMPARE_EVERY, eval_prompts=256, eval_samples=2
    )

    def at(runs: tuple[int, ...], rule: Correction, sync_every: int) -> tuple[Experiment, ...]:
        return tuple(
            replace(
                working_point_a(rule, sampler=sampler, seed=run + SEED_STRIDE * seed, sync_every=sync_every),
                environment=environment,
            )
            for run in runs
        )

    cells = [Cell(name=ON_POLICY, experiments=at(REFERENCE_SEEDS, correction("pg"), 1))]
    cells += [Cell(name=name, experiments=at(METHOD_SEEDS, CORRECTIONS[name], STALE)) for name in REAL_CELLS]
    lr = cells[0].experiments[0].lr
    world = WorldPlan(label="mini-Qwen3, point A", group="mini-Qwen3", lr=lr, main=True, cells=tuple(cells))
    return Plan(engine="real", seed=seed, worlds=(world,))
