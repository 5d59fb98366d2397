"""Which runs the checks need: a plan of cells, each run once and shared by all claims that read it.

A *world* is what runs are compared within: one environment at one learning rate, with its own on-policy
reference runs. Everything here was fixed before any run of these seeds was seen: environments and seeds that
theory and tuning never touched. The toy is planned here, the mini model in `real_plan`; planning imports
neither JAX nor torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from theory.corrections import Correction, PpoRef, correction
from theory.experiment import Experiment, Numerics
from theory.resync import FAILURE_THRESHOLD
from toy.settings import STALE, setting_s

Engine = Literal["toy", "real"]

ON_POLICY, HALF_BATCH = "on-policy", "on-policy, half batch"
PG, SC, IS, IS_SC, IS_RESYNC = "pg", "sc", "is", "is-sc", "is + resync"
SEQ_IS, SEQ_IS_RESYNC = "seq-is", "seq-is + resync"
DLC, DLC_RESPONSE, DLC_FREE = "dlc", "dlc, response gate", "dlc, no resync"
PG_RESYNC, SC_RESYNC = "pg + resync", "sc + resync"
IS_EARLY, IS_LATE = "is + resync at .7", "is + resync at .3"
NOISY, NOISY_STALE = "noisy engine, synced", "noisy engine, stale"
"""Names of cells, as the figures show them. All but the on-policy, noisy and scheduled ones have a sampler
that is stale for the whole run, but for what its rule syncs."""

CORRECTIONS: dict[str, Correction] = {
    PG: correction("pg"),
    SC: correction("sc"),
    IS: correction("is"),
    IS_SC: correction("is-sc"),
    IS_RESYNC: correction("is", resync_below=FAILURE_THRESHOLD),
    SEQ_IS: correction("seq-is"),
    SEQ_IS_RESYNC: correction("seq-is", resync_below=FAILURE_THRESHOLD, resync_level="sequence"),
    DLC: correction("dlc"),
    DLC_RESPONSE: correction("dlc", resync_level="sequence"),
    DLC_FREE: correction("dlc", resync_below=0.0),
    PG_RESYNC: correction("pg", resync_below=FAILURE_THRESHOLD),
    SC_RESYNC: correction("sc", resync_below=FAILURE_THRESHOLD),
    IS_EARLY: correction("is", resync_below=0.7),
    IS_LATE: correction("is", resync_below=0.3),
}


def scheduled(name: str, period: int, /) -> str:
    """Name of the cell of a correction whose sampler is synced every `period` steps, rule off."""
    return f"{name}, every {period}"


PERIODS = (2, 4, 8, 16)
SCHEDULED = (PG, SC, IS)
"""Corrections run at every period at the main learning rate"""
EQUAL_PRODUCT = {2.0: 16, 4.0: 8, 8.0: 4}
"""Learning rate to sync period, one product: 32. Over equal total times lr x steps the claim is that they
agree"""
LOGIT_NOISE = 0.3
"""Nats; KL(mu||pi_s) of a few hundredths, that of quantised engines"""


MILD_LR = 2.0
"""At this learning rate the readings of claims ``ppo-reference`` and ``quantised`` are taken: at lr 4 PPO's
four updates a batch alone left the floor (2.9 floors in environment 0)"""
MINIBATCHES = 4
"""Updates a batch of PPO, each with a quarter of the learning rate; with one, a before-batch ratio is 1"""
PPO_PERIODS: dict[PpoRef, tuple[int, ...]] = {"before-batch": (1, 4, 16, STALE), "engine": (2, 4, STALE)}
"""Sync periods by reference. On an exact engine "synced" is "engine"; synced every step it is "before-batch",
and without a lag all three are one"""
STRENGTHS: dict[str, Numerics] = {
    "noise .3": Numerics(kind="gaussian", scale=0.3),
    "noise .5": Numerics(kind="gaussian", scale=0.5),
    "weight noise .1": Numerics(kind="weight-noise", scale=0.1),
}
"""Stand-ins for quantisation, frozen: logit noise in nats, and relative noise of every weight. In
environment 0 they put KL(mu||pi) at .03, .08 and .06 nats per token"""
BREAKING = ("noise .5", "weight noise .1")
"""Of these, those that PPO is run under"""
QUANTISED: dict[str, Correction] = {name: correction(name) for name in ("pg", "sc", "tis", "is")}
"""Corrections run on every stand-in, synced every step; DLC is SC then"""


def referring(reference: str, how: str, /) -> str:
    """Name of the cell of PPO with a reference, under a sync period ("every 4") or a strength."""
    return f"ppo on {reference}, {how}"


def quantised(name: str, strength: str, /) -> str:
    """Name of the cell of a correction on a noisy engine, synced every step."""
    return f"{name}, {strength}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs of one kind in one world; they differ in their seed alone."""

    name: str
    experiments: tuple[Experiment, ...]
    seeds: int = 1
    """Training seeds per experiment, where the engine runs an ensemble in one call"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """Cells that are compared with each other."""

    label: str
    group: str
    """Worlds of one group share their environment, so they are not independent of each other"""
    lr: float
    main: bool
    """Whether the readings at one learning rate are taken here"""
    cells: tuple[Cell, ...]
    """The first is the on-policy reference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs of one `check`."""

    engine: Engine
    seed: int
    worlds: tuple[WorldPlan, ...]
    environments: tuple[int, ...] = ()
    """Of the toy: seeds of the environments, one repetition each"""
    probes: tuple[str, ...] = ()
    """Analyses with runs of their own: keys of `Evidence.probes`"""

    def runs(self) -> Iterator[tuple[Experiment, int]]:
        """Each experiment once, with its number of training seeds."""
        seen = set()
        for world in self.worlds:
            for cell in world.cells:
                for experiment in cell.experiments:
                    key = (experiment.fingerprint(), cell.seeds)
                    if key not in seen:
                        seen.add(key)
                        yield experiment, cell.seeds


TUNED = frozenset([0, 1, 2, *range(20, 25), *range(100, 106), *range(110, 115), 120, 121, *range(200, 220)])
"""Environments that served to find settings, defaults, grids and margins, or were looked at in a trial: never
read here"""
ENVIRONMENTS = 8
"""Independent repetitions: with eight the Student factor is 2.4, with three it would be 4.3"""
LAST_SEED = 10**6
"""Largest block of environments: they are counted up to"""
RUNS = 3
"""Training seeds of each cell and of each half of the reference"""
QUANTILE = 0.93
MAIN_LR = 4.0
"""At lr 2 a stale IS was still within about 2 floors at step 40 in environment 0, so a resync would have
nothing to do there; at lr 4 it was not. Both on tuning environments."""
LRS = (2.0, 4.0, 6.0, 8.0)
"""At 6 and 8 nearly every stale run crosses in its first half; at 2 few do"""
PROBES = ("centering", "feedback", "excess", "monitor", "infra", "invisible")
"""By the claim they serve; ``infra`` all four of that name"""


def environments(seed: int, /) -> tuple[int, ...]:
    """Return a block of environments never used for tuning; another seed, another block.

    Raises
    ------
    ValueError
        For a negative seed, or one beyond `LAST_SEED`.
    """
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}; lower ones reach environments used for tuning")
    if seed > LAST_SEED:
        raise ValueError(f"seed must be at most {LAST_SEED}, got {seed}; environments are counted one by one")
    fresh = (e for e in itertools.count() if e not in TUNED)
    return tuple(itertools.islice(fresh, seed * ENVIRONMENTS, (seed + 1) * ENVIRONMENTS))


def toy_plan(seed: int = 0) -> Plan:
    """Plan setting S in environments never used for tuning; `seed` moves to the next block of them."""
    chosen = environments(seed)
    worlds = [toy_world(env, lr) for env in chosen for lr in LRS]
    return Plan(engine="toy", seed=seed, worlds=tuple(worlds), environments=chosen, probes=PROBES)


def toy_world(env: int, lr: float) -> WorldPlan:
    """Cells of one environment at one learning rate."""
    main = lr == MAIN_LR

    def at(run: int, rule: str | Correction = "pg", **changes: Any) -> Experiment:
        # runs that are compared must share no draws: the seeds differ by reference, batch and method
        return setting_s(env, quantile=QUANTILE, lr=lr, correction=rule, seed=run, **changes)

    cells = [Cell(name=ON_POLICY, experiments=(at(1), at(2)), seeds=RUNS)]
    if main:
        half = setting_s().samples // 2
        cells.append(
            Cell(name=HALF_BATCH, experiments=(at(3, samples=half), at(4, samples=half)), seeds=RUNS)
        )
        noise = Numerics(kind="gaussian", scale=LOGIT_NOISE)
        for name, period in ((NOISY, 1), (NOISY_STALE, STALE)):
            run = at(7, CORRECTIONS[IS], sync_every=period, numerics=noise)
            cells.append(Cell(name=name, experiments=(run,), seeds=RUNS))
    names = list(CORRECTIONS) if main else [PG, IS, IS_RESYNC, SEQ_IS, SEQ_IS_RESYNC]
    cells += [
        Cell(name=name, experiments=(at(5, CORRECTIONS[name], sync_every=STALE),), seeds=RUNS)
        for name in names
    ]
    pairs = [(name, period) for name in SCHEDULED for period in PERIODS] if main else []
    if not main and lr in EQUAL_PRODUCT:
        pairs = [(name, EQUAL_PRODUCT[lr]) for name in (PG, SC)]
    cells += [
        Cell(
            name=scheduled(name, period),
            experiments=(at(5, CORRECTIONS[name], sync_every=period),),
            seeds=RUNS,
        )
        for name, period in pairs
    ]
    if lr == MILD_LR:
        cells += _ppo(env)
        cells += [
            Cell(
                name=quantised(name, strength),
                experiments=(at(9, rule, numerics=numerics),),
                seeds=RUNS,
            )
            for strength, numerics in STRENGTHS.items()
            for name, rule in QUANTISED.items()
        ]
    group = f"environment {env}"
    return WorldPlan(label=f"{group}, lr {lr:g}", group=group, lr=lr, main=main, cells=tuple(cells))


def _ppo(env: int) -> list[Cell]:
    """Cells of PPO by what its ratio refers to, several updates a batch."""

    def at(reference: PpoRef, **changes: Any) -> tuple[Experiment, ...]:
        rule = correction("ppo", ppo_ref=reference)
        lr = MILD_LR / MINIBATCHES
        return (
            setting_s(
                env, quantile=QUANTILE, lr=lr, correction=rule, minibatches=MINIBATCHES, seed=8, **changes
            ),
        )

    cells = [
        Cell(
            name=referring(reference, f"every {period}"),
            experiments=at(reference, sync_every=period),
            seeds=RUNS,
        )
        for reference, periods in PPO_PERIODS.items()
        for period in periods
    ]
    return cells + [
        Cell(
            name=referring("engine", strength),
            experiments=at("engine", numerics=STRENGTHS[strength]),
            seeds=RUNS,
        )
        for strength in BREAKING
    ]
