"""The evidence behind DLC's defaults: every clip and both ESS levels of the gate, on both engines.

Run ``python -m validation.dlc_default toy`` or ``... real``. The seeds (toy environments 20-24, real runs
50-51 with references 60-62) are used for nothing else. What it printed is in LOG.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from real.command_line import start
from theory.corrections import Correction, correction
from theory.experiment import Numerics

STALE = 64
CLIPS: dict[str, dict] = {
    "truncate 2": {"high": 2.0},
    "truncate 5": {"high": 5.0},
    "truncate 10": {"high": 10.0},
    "mask 5": {"clip": "mask", "low": 0.0, "high": 5.0},
    "ppo .2": {"clip": "ppo", "low": 0.8, "high": 1.2},
}
TOY_ENVIRONMENTS = range(20, 25)
TOY_POINTS = {
    "q .93, lr 2": (0.93, 2.0, Numerics()),
    "q .7, lr 4": (0.7, 4.0, Numerics()),
    "q .93, lr 2, noise .3": (0.93, 2.0, Numerics(kind="gaussian", scale=0.3)),
}
REAL_SEEDS = (50, 51)
REAL_REFERENCES = (60, 61, 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One variant on one setting."""

    variant: str
    setting: str
    end: float
    """Deviation at the last step, floors"""
    worst: float
    """Largest deviation at any compared step, floors"""
    resyncs: float
    accuracy: float
    reference: float
    """Accuracy of the on-policy runs"""


def variants() -> Iterator[tuple[str, Correction]]:
    """All clips with both gates, and importance sampling with the same gates as the yardstick."""
    for level in ("token", "sequence"):
        for name, fields in CLIPS.items():
            yield f"{name}, {level} gate", correction("dlc", resync_level=level, **fields)
        yield f"is, {level} gate", correction("is", resync_below=0.5, resync_level=level)


def toy_cells(steps: tuple[int, ...] = (10, 20, 30, 40), seeds: int = 4) -> Iterator[Cell]:
    """Every variant on the toy's settings, one environment after the other."""
    from toy.measure import deviation_in_floors
    from toy.settings import setting_s
    from toy.simulate import sweep

    named = list(variants())
    for setting, (quantile, lr, numerics) in TOY_POINTS.items():
        point = partial(setting_s, quantile=quantile, lr=lr)
        for env in track(TOY_ENVIRONMENTS, description=setting):
            runs = [point(env, seed=seed) for seed in (1, 2)]
            runs += [
                point(env, correction=rule, sync_every=STALE, numerics=numerics, seed=3) for _, rule in named
            ]
            reference, floor, *methods = sweep(runs, seeds=seeds)
            on_policy = float(reference.measures["accuracy"][:, -1].mean())
            for (name, _), method in zip(named, methods, strict=True):
                found = deviation_in_floors(method, reference, floor=floor, steps=steps).value
                yield Cell(
                    variant=name,
                    setting=f"{setting}, env {env}",
                    end=float(found[-1]),
                    worst=float(found.max()),
                    resyncs=float(method.measures["resynced"].sum(axis=1).mean()),
                    accuracy=float(method.measures["accuracy"][:, -1].mean()),
                    reference=on_policy,
                )


def real_cells() -> Iterator[Cell]:
    """Every variant on mini-Qwen3 at both working points, torch sampler."""
    from real.evaluate import kl_between
    from real.loop import run, start_model
    from real.outcome import Run
    from real.settings import Mini, working_point_a, working_point_b

    def distance(first: Run, second: Run, step: int) -> float:
        environment = Mini()
        p, q = start_model(environment), start_model(environment)
        p.load_state_dict(dict(first.snapshots[step].weights))
        q.load_state_dict(dict(second.snapshots[step].weights))
        return kl_between(p, q, environment, seed=step)

    for setting, point in (("A", working_point_a), ("B", working_point_b)):
        references = [
            run(point(correction("pg"), seed=s))
            for s in track(REAL_REFERENCES, description=f"{setting}: on-policy")
        ]
        steps = [k for k in references[0].snapshots if k > 0]
        pairs = [(i, j) for i in references for j in references if i is not j]
        floor = {k: statistics.mean(distance(i, j, k) for i, j in pairs) for k in steps}
        on_policy = statistics.mean(r.evaluations[steps[-1]].accuracy.value for r in references)
        for seed in REAL_SEEDS:
            for name, rule in track(list(variants()), description=f"{setting}: seed {seed}"):
                method = run(point(rule, sync_every=STALE, seed=seed))
                done = [k for k in steps if k in method.snapshots]
                far = [statistics.mean(distance(method, r, k) for r in references) / floor[k] for k in done]
                complete = done == steps
                yield Cell(
                    variant=name,
                    setting=f"{setting}, seed {seed}",
                    end=far[-1] if complete else float("inf"),
                    worst=max(far) if complete else float("inf"),
                    resyncs=float(method.trace.steps["resynced"].sum()),
                    accuracy=method.evaluations[max(method.evaluations)].accuracy.value,
                    reference=on_policy,
                )


def summary(cells: list[Cell]) -> Table:
    """One line a variant: medians and how often it stayed within two floors."""
    table = Table(
        "variant",
        "end (median)",
        "worst (median)",
        "worst (max)",
        "end <= 2",
        "all <= 2",
        "resyncs",
        "accuracy lost",
    )
    for name, _ in variants():
        own = [c for c in cells if c.variant == name]
        table.add_row(
            name,
            f"{statistics.median(c.end for c in own):.2f}",
            f"{statistics.median(c.worst for c in own):.2f}",
            f"{max(c.worst for c in own):.2f}",
            f"{sum(c.end <= 2 for c in own)}/{len(own)}",
            f"{sum(c.worst <= 2 for c in own)}/{len(own)}",
            f"{statistics.mean(c.resyncs for c in own):.1f}",
            f"{statistics.mean(c.reference - c.accuracy for c in own):+.3f}",
        )
    return table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every clip and both ESS levels of DLC's gate, on fresh runs of one engine; half an hour or more."""

    engine: Annotated[Literal["toy", "real"], tyro.conf.Positional] = "toy"
    """Which half to run"""


def main(options: Options) -> int:
    """Run one engine's half and print every cell and the summary."""
    cells = []
    for cell in toy_cells() if options.engine == "toy" else real_cells():
        cells.append(cell)
        print(cell, flush=True)
    Console(width=140).print(summary(cells))
    return 0


if __name__ == "__main__":
    sys.exit(start(Options, "python -m validation.dlc_default", main))
