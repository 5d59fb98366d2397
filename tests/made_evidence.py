"""Evidence made up so that the right verdict of every check is known: what claims say, and its reverse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from theory.arrays import log_softmax
from theory.records import Trace
from validation import plan
from validation.evidence import Cell, Evidence, Probe, Rows, World

STEPS = np.arange(1, 41)
FLOOR = 1e-3 * STEPS / 40
SPREAD = 0.05
"""Relative scatter of made-up distances between runs"""
ON_POLICY_SHARE = 1e-3


def made(floors, runs, references, rng):
    """KL (K, S, R) of runs that lie so many floors from the references."""
    noise = np.exp(SPREAD * rng.normal(size=(len(STEPS), runs, references)))
    return (np.broadcast_to(floors, STEPS.shape) * FLOOR)[:, None, None] * noise


def cell(
    rng,
    *,
    floors=1.0,
    crossing=None,
    resyncs=0,
    syncs=0,
    tail=0.4,
    told=True,
    engine=1.0,
    scaled=0.5,
    collapses=True,
    informative=True,
    runs=3,
    references=6,
):
    """Runs whose ESS falls below 1/2 right at `crossing`, or never.

    `tail` is the share of -log ESS beyond the variance, and `told` whether third cumulant and spread over
    prefixes tell of it; `engine` the change of the discrepancy over the run,
    `scaled` that of an engine whose noise follows the entropy; `collapses` and `informative` say whether the
    off-support share rises with the loss of accuracy, or with nothing.
    """
    level = np.broadcast_to(floors, STEPS.shape)
    accuracy = 0.7 - 0.25 * np.log10(np.maximum(level, 1.0)) + 0.002 * rng.normal(size=(runs, len(STEPS)))
    # -log ESS grows as the square of the step, as a lag that drifts makes it
    y = math.log(2) * (STEPS / (1e6 if crossing is None else crossing - 0.01)) ** 2
    ess = np.exp(-y)
    lost = (0.7 - accuracy) / 0.65
    rise = np.sign(lost) * np.abs(lost) ** (4 if collapses else 12)
    share = ON_POLICY_SHARE + (0.9 if collapses else 1e-4) * rise
    if not informative:
        share = ON_POLICY_SHARE * np.exp(0.1 * rng.normal(size=share.shape))
    ones = np.ones(len(STEPS))
    steps = {
        "step": STEPS,
        "ess_token": ess,
        "ess_sequence": ess,
        "ess_exact": ess,
        "k1": -(1 - tail) * y / 2,
        "k2": (1 - tail) * y,
        "k3": tail * y if told else 0 * y,
        "k4": 0 * y,
        "resynced": (np.arange(40) < resyncs).astype(float),
        "synced": (np.arange(40) <= syncs).astype(float),
        "discrepancy_rms": 0.24 * engine ** ((STEPS - 1) / 39),
        "lag_rms": 0.05 * STEPS,
    }
    return Cell(
        traces=tuple(Trace(steps=steps | {"off_support": share[i]}) for i in range(runs)),
        distance=made(floors, runs, references, rng),
        accuracy=accuracy.T,
        exact={
            "mean": np.broadcast_to(-np.expm1(-y) * (1 if told else 3), (runs, 40)).T,
            "relative": np.ones((40, runs)),
            "discrepancy if noise scaled with entropy": np.outer(
                0.24 * scaled ** ((STEPS - 1) / 39), ones[:runs]
            ),
        },
    )


def leaving_at(step):
    """A deviation that is above two floors from a step on."""
    return np.where(step > STEPS, 1.0, 30.0)


def beyond(kl_per_floor):
    """Floors at which the KL beyond the floor is so many floors of step 1."""
    return 1 + kl_per_floor / STEPS


SCHEDULES = {
    2.0: {plan.scheduled(rule, 16): {"floors": beyond(320 * (15 / 16) ** 2)} for rule in (plan.PG, plan.SC)},
    4.0: {
        plan.scheduled(rule, n): {"floors": beyond(kl), "syncs": 39 // n}
        for rule in (plan.PG, plan.SC)
        for n, kl in ((8, 320 * (14 / 16) ** 2), (16, 6 * 320))
    },
    8.0: {plan.scheduled(rule, 4): {"floors": beyond(320 * (12 / 16) ** 2)} for rule in (plan.PG, plan.SC)},
}
"""Equal products of learning rate and period deviate equally, but for N (N - 1)"""
GOOD = {
    plan.PG: {"floors": 400.0},
    plan.SC: {"floors": 40.0},
    plan.IS: {"floors": leaving_at(11), "crossing": 10},
    plan.IS_SC: {"floors": 1.5},
    plan.IS_RESYNC: {"floors": 1.2, "resyncs": 2, "syncs": 2},
    plan.SEQ_IS: {"floors": leaving_at(8), "crossing": 8},
    plan.SEQ_IS_RESYNC: {"floors": 1.25, "resyncs": 2, "syncs": 3},
    plan.DLC: {"floors": 1.1, "resyncs": 1, "syncs": 1},
    plan.DLC_RESPONSE: {"floors": 1.15, "resyncs": 3, "syncs": 3},
    plan.DLC_FREE: {"floors": 20.0},
    plan.PG_RESYNC: {"floors": 1.6, "syncs": 4},
    plan.SC_RESYNC: {"floors": 1.4, "syncs": 3},
    plan.NOISY: {},
    plan.NOISY_STALE: {},
}
"""What the articles describe"""
BAD = {
    plan.PG: {"floors": 3.0, "collapses": False},
    plan.SC: {"floors": 2.5, "collapses": False},
    plan.IS: {"floors": leaving_at(3), "crossing": 12, "tail": -0.8, "told": False},
    plan.IS_SC: {"floors": 9.0},
    plan.IS_RESYNC: {"floors": 9.0, "resyncs": 2},
    plan.SEQ_IS: {"floors": leaving_at(2), "crossing": 10},
    plan.SEQ_IS_RESYNC: {"floors": 9.0},
    plan.DLC: {"floors": 5.0, "resyncs": 12},
    plan.DLC_RESPONSE: {"floors": 5.0, "resyncs": 12},
    plan.DLC_FREE: {"floors": 20.0},
    plan.PG_RESYNC: {"floors": 9.0},
    plan.SC_RESYNC: {"floors": 9.0},
    plan.NOISY: {"engine": 9.0},
    plan.NOISY_STALE: {"engine": 9.0},
    plan.scheduled(plan.IS, 2): {"floors": 1.2, "syncs": 19},
}
"""Every claim turned round"""
BAD_SCHEDULES = {
    lr: {name: kind | {"floors": beyond(320 / lr**2)} for name, kind in cells.items()}
    for lr, cells in SCHEDULES.items()
}
"""Deviations that follow the learning rate and not the product"""

GOOD_NUMBERS = {
    "centering": {
        "removed over law": 1.0,
        "removed over law, shared prefix": 0.0,
        "largest difference, shared prefix": 1e-12,
        "left over law": 1.02,
        "left by full IS": 0.0,
        "removed share, none": 0.8,
        "removed share, group": 0.7,
        "removed share, shared prefix": 0.0,
    },
    "feedback": {
        "largest error, pg": 0.02,
        "largest error, sc": 0.02,
        "largest error, is": 0.02,
        "largest error, synced": 3.7,
        "growth": 0.31,
        "growth by law": 0.3,
        "growth, sc": 0.01,
    },
    "excess": {
        "ratio": 4.05,
        "ratio of the update": 2.0,
        "over law": 1.0,
        "over law, no curvature": 0.0,
    },
    "monitor": {
        "runs that cross": 16.0,
        "runs that never cross": 2.0,
        "runs whose accuracy falls": 8.0,
        "late, monitor": 0.01,
        "late, plain": 0.3,
        "delay, monitor": -0.4,
        "delay, plain": 0.9,
        "early, monitor": 0.05,
        "early, plain": 0.05,
        "before the fall, monitor": 0.99,
        "before the fall, plain": 0.6,
        "fired without a crossing, monitor": 1.0,
        "fired without a crossing, plain": 0.0,
        "early, at once": 0.98,
        "delay, never": 20.0,
        "before the fall, never": 0.0,
    },
}
"""What the laws say"""
BAD_NUMBERS = {
    "centering": {
        "removed over law": 0.5,
        "left over law": 0.4,
        "removed share, none": 0.2,
        "removed share, group": 0.2,
    },
    "feedback": {f"largest error, {rule}": 0.4 for rule in ("pg", "sc", "is")} | {"growth": 0.1},
    "excess": {"ratio": 2.9, "over law": 0.5},
    "monitor": {
        "late, monitor": 0.4,
        "delay, monitor": -5.0,
        "early, monitor": 0.6,
        "before the fall, monitor": 0.3,
    },
}
"""Numbers that replace those of `GOOD_NUMBERS`"""
SCATTER = 0.002
"""Of the made-up numbers from repetition to repetition, relative"""


def rows(rng):
    """Rows of three unrelated policies."""
    mu, pi_s, pi = (log_softmax(rng.normal(size=(50, 8))) for _ in range(3))
    return Rows(logmu=mu, logpi_s=pi_s, logpi=pi, what="random rows")


def probes(rng, changes, environments):
    """Analyses of every environment, equal but for a little scatter."""
    found = {}
    for name, good in GOOD_NUMBERS.items():
        numbers = good | changes.get(name, {})
        found[name] = tuple(
            Probe(
                group=f"environment {e}",
                numbers={key: value * (1 + SCATTER * rng.normal()) for key, value in numbers.items()},
            )
            for e in range(environments)
        )
    return found


def evidence(
    table, rng, *, environments=5, half=2.0, schedules=None, numbers=None, lrs=(4.0,), informative=True
):
    """Worlds whose cells are as the table says, at each learning rate; readings at one rate are at 4."""
    chosen = SCHEDULES if schedules is None else schedules
    worlds = []
    for e in range(environments):
        for lr in lrs:
            kinds = table | chosen.get(lr, {})
            cells = {name: cell(rng, informative=informative, **kind) for name, kind in kinds.items()}
            reference = cell(rng, runs=6, syncs=39)
            own = reference.distance * (1 - np.eye(6))
            cells[plan.ON_POLICY] = dataclasses.replace(reference, distance=own)
            halves = made(half, 6, 6, rng) * (1 - np.eye(6))
            worlds.append(
                World(
                    label=f"environment {e}, lr {lr:g}",
                    group=f"environment {e}",
                    lr=lr,
                    main=lr == 4.0,
                    steps=STEPS,
                    cells=cells,
                    on_policy=plan.ON_POLICY,
                    batch_floors={plan.HALF_BATCH: halves},
                )
            )
    return Evidence(
        engine="toy",
        seed=0,
        worlds=tuple(worlds),
        rows=rows(rng),
        probes=probes(rng, numbers or {}, environments),
    )


def growing(power, crossing, *, halts=False):
    """Steps of a run whose -log ESS grows as a power of the step; one that halts crosses ten steps late."""
    y = math.log(2) * (STEPS / (crossing - 0.01)) ** power
    if halts:
        made = np.argmax(np.exp(-y) < 0.7)
        y = np.where((np.arange(len(STEPS)) > made) & (crossing + 10 > STEPS), y[made], y)
    # a Gaussian of the same ESS, so that the square law has the true variance to go on
    return {"step": STEPS, "ess_token": np.exp(-y), "ess_exact": np.exp(-y), "k1": -y / 2, "k2": y}


def with_forecastable_runs(found, *, missed, of=24):
    """Put runs in PG's cells that a forecast hits to a step, but for some that halt."""

    def changed(world):
        pg = world.cells[plan.PG]
        kept = dict(pg.traces[0].steps)
        runs = tuple(Trace(steps=kept | growing(2.5, 10, halts=i < missed)) for i in range(of))
        others = {
            name: dataclasses.replace(
                c, traces=tuple(Trace(steps=dict(t.steps) | {"ess_exact": np.ones(40)}) for t in c.traces)
            )
            for name, c in world.cells.items()
            if name in (plan.SC, plan.SEQ_IS)
        }
        # a cell's distances stay those of the runs it had: no check reads both
        return dataclasses.replace(
            world, cells={**world.cells, **others, plan.PG: dataclasses.replace(pg, traces=runs)}
        )

    return dataclasses.replace(found, worlds=tuple(changed(w) for w in found.worlds))
