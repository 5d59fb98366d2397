"""From which cells each check of the toy reads: no two cells, steps or numbers of the evidence are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from made_cells import FLOOR, RUNS, STEPS, Numbers, cell, evidence, on_policy, same_numbers, value, world
from made_table import ON_POLICY, among
from tolerances import library

from theory.estimate import Estimate
from validation import plan
from validation.checks import CHECKS, ppo_reference
from validation.checks.cheapest import RARELY
from validation.checks.infrastructure import CORRECTIONS
from validation.evidence import Evidence, Probe, World
from validation.results import shown

# ---- cheapest


def environments(worst: Mapping[str, Sequence[float]], syncs: Mapping[str, int]) -> Evidence:
    """One environment a place of the sequences: the worst deviation of each pair there."""
    found = []
    for e in range(len(next(iter(worst.values())))):
        cells = {
            name: cell(np.where(STEPS == 20, floors[e], 1.0), synced=(1 + syncs[name] >= STEPS).astype(float))
            for name, floors in worst.items()
        }
        always = ({"synced": 1.0},) * 6
        found.append(world(cells | {plan.ON_POLICY: on_policy(always)}, environment=e))
    return evidence(*found)


def cheapest(found: Evidence) -> tuple[Numbers, str]:
    checks = CHECKS["cheapest"].checks(found)
    return {c.reading: (value(c.measured), value(c.control.measured)) for c in checks}, checks[0].note


WORST, SYNCS = "worst deviation of the pair that was cheapest in the other environments", "its syncs per run"


def test_the_cheapest_pair_is_not_chosen_where_it_is_judged() -> None:
    # each of three pairs is free and good in one environment alone; the fourth is good everywhere
    found = environments(
        {
            plan.PG: (50.0, 60.0, 70.0),
            plan.SC: (1.2, 30.0, 30.0),
            plan.IS: (30.0, 1.2, 30.0),
            plan.IS_SC: (30.0, 30.0, 1.2),
            plan.DLC: (1.5, 1.6, 1.7),
        },
        {plan.PG: 0, plan.SC: 0, plan.IS: 0, plan.IS_SC: 0, plan.DLC: 2},
    )
    numbers, note = cheapest(found)
    mean, uncorrected = (np.log(x).mean() for x in ([1.5, 1.6, 1.7], [50.0, 60.0, 70.0]))
    assert numbers[WORST] == pytest.approx((mean, uncorrected), rel=library())
    assert numbers[SYNCS] == (2, 39)
    assert note.startswith("chosen: dlc; left out, 0 of 3 environments")


def test_an_environment_has_no_say_in_its_own_choice() -> None:
    # with the first environment's own 1.0 the free pair would be within two floors everywhere
    found = environments(
        {plan.PG: (50.0,) * 5, plan.SC: (1.0, 2.1, 2.1, 2.1, 2.1), plan.DLC: (1.5,) * 5},
        {plan.PG: 0, plan.SC: 0, plan.DLC: 3},
    )
    numbers, note = cheapest(found)
    assert numbers[SYNCS][0] == pytest.approx(3 / 5)
    assert numbers[WORST][0] == pytest.approx((math.log(1.5) + 4 * math.log(2.1)) / 5, rel=library())
    assert note.startswith("chosen: dlc, sc; ")
    assert numbers[SYNCS][0] < RARELY < numbers[SYNCS][1]


# ---- floor-constant


def test_the_discrepancy_is_read_off_the_noisy_runs_synced_and_stale() -> None:
    def series(start: float, slope: float) -> np.ndarray:
        return start + slope * STEPS

    def change(start: float, slope: float) -> float:
        return math.log(series(start, slope)[-5:].mean() / series(start, slope)[:5].mean())

    def scaled(factor: float) -> dict[str, np.ndarray]:
        course = np.where(STEPS > 20, factor, 1.0)
        return {"discrepancy if noise scaled with entropy": np.repeat(course[:, None], RUNS, axis=1)}

    cells = {
        plan.NOISY: cell(
            1.0, discrepancy_rms=series(0.2, 3e-4), lag_rms=series(0.01, 0.02), exact=scaled(0.5)
        ),
        plan.NOISY_STALE: cell(
            1.0, discrepancy_rms=series(0.3, 5e-4), lag_rms=series(0.04, 0.05), exact=scaled(0.7)
        ),
        plan.IS: cell(1.0, discrepancy_rms=series(0.1, 7e-4), lag_rms=series(0.03, 0.11)),
    }
    expected = {
        "slope of rms discrepancy over slope of rms lag, stale sampler": (5e-4 / 0.05, 0.11 / 0.05),
        "slope of rms discrepancy, synced every step, over slope of the stale lag": (
            3e-4 / 0.05,
            0.11 / 0.05,
        ),
        "rms discrepancy at the end over the start, synced every step": (
            change(0.2, 3e-4),
            change(0.04, 0.05),
        ),
    }
    found = evidence(*(world(cells, environment=e) for e in range(2)))
    same_numbers("floor-constant", found, expected)
    note = CHECKS["floor-constant"].checks(found)[2].note
    assert note.endswith(shown(Estimate(value=math.log(0.5), unit="ln x", dof=1)))


# ---- off-support


def test_shares_are_of_the_last_step_and_halves_of_the_on_policy_runs_in_their_order() -> None:
    names = (plan.PG, plan.SC, plan.PG_RESYNC, plan.SC_RESYNC, plan.IS_RESYNC, plan.DLC)

    def at(lr: float, environment: int) -> World:
        last = {name: 0.01 * lr + 0.003 * n for n, name in enumerate(names)}
        cells = {name: cell(1.0, off_support=share * STEPS / 40) for name, share in last.items()}
        own = [{"off_support": 1e-3 * lr * (1 + i) * STEPS / 40} for i in range(6)]
        return world(cells | {plan.ON_POLICY: on_policy(own)}, environment=environment, lr=lr)

    found = evidence(*(at(lr, e) for lr in (2.0, 4.0, 8.0) for e in range(2)))

    def share(name: str, lr: float) -> float:
        return 0.01 * lr + 0.003 * names.index(name)

    reference = {lr: 3.5e-3 * lr for lr in (4.0, 8.0)}  # 1 to 6, in thousandths of lr
    rises = {name: math.log(share(name, 4.0) / reference[4.0]) for name in names}
    halves = math.log((1 + 2 + 3) / (4 + 5 + 6))
    same_numbers(
        "off-support",
        found,
        {
            "share at the end, stale PG at the highest learning rate, 8": (
                share(plan.PG, 8.0),
                reference[8.0],
            ),
            **{
                f"share over that of on-policy runs, end, stale {name}": (rises[name], halves)
                for name in names[:2]
            },
            **{
                f"share over that of on-policy runs, end, {name}": (rises[name], rises[plan.PG])
                for name in names[2:]
            },
        },
    )


# ---- noise-floor


def test_the_batch_law_is_half_the_batch_over_the_whole_early_and_its_control_halves_of_the_runs() -> None:
    early = STEPS <= 10
    # twice the floor early and five times later; the halves of the references 1.03 apart early
    half = among(ON_POLICY, FLOOR * np.where(early, 2.0, 5.0))
    floors = np.where(STEPS == 40, 60.0, 7.0)
    found = evidence(
        *(
            world({plan.PG: cell(floors)}, environment=e, batch_floors={plan.HALF_BATCH: half})
            for e in range(2)
        )
    )
    first, second = ON_POLICY[:3].sum(), ON_POLICY[3:].sum()
    same_batch = math.log((1 + 2 * first / 3) / (1 + 2 * second / 3))
    others = -ON_POLICY / 5
    apart = np.log((1 + ON_POLICY + others) / (1 + 2 * others))
    same_numbers(
        "noise-floor",
        found,
        {
            "rms deviation of on-policy runs from each other, end": (
                math.sqrt(np.mean(apart**2)),
                math.log(60.0),
            ),
            "floor at half the batch, in floors, steps 1-10": (math.log(2.0), same_batch),
        },
    )


# ---- ppo-reference


def test_each_reading_of_ppo_is_of_its_own_reference_and_period() -> None:
    numbers = {name: 1.5 + 0.25 * n for n, name in enumerate(ppo_reference.CELLS)}
    cells = {
        name: cell(
            np.where(STEPS == 40, x, 99.0),
            accuracy=0.1 + x / 20,
            ess_token=np.where(STEPS == 33, x / 20, 0.95),
        )
        for name, x in numbers.items()
    }
    never = f"every {plan.STALE}"
    before = {period: plan.referring("before-batch", period) for period in ("every 1", "every 4", never)}
    engine = {how: plan.referring("engine", how) for how in ("every 2", never, *plan.BREAKING)}

    def floors(name: str, control: str) -> tuple[float, float]:
        return math.log(numbers[name]), math.log(numbers[control])

    worlds = [world(cells, environment=e, lr=plan.MILD_LR) for e in range(2)]
    other = world({name: cell(3.3) for name in cells}, environment=2, lr=2 * plan.MILD_LR)
    same_numbers(
        "ppo-reference",
        evidence(*worlds, other),
        {
            "trainer before the batch, sync every 4 steps": floors(before["every 4"], before[never]),
            "trainer before the batch, never synced": floors(before[never], before["every 1"]),
            "engine, sync every 2 steps": floors(engine["every 2"], engine[never]),
            "engine, never synced: least ESS of the lag ratio": (
                numbers[engine[never]] / 20,
                numbers[before[never]] / 20,
            ),
            "engine, never synced: on-policy accuracy lost by the end": (
                1 - (0.1 + numbers[engine[never]] / 20) / 0.8,
                1 - (0.3 + 0.5 / 40) / 0.8,
            ),
            **{
                f"engine, sync every step, {how}": floors(engine[how], before["every 1"])
                for how in plan.BREAKING
            },
        },
    )


# ---- infra-*

FIRST = "bias of PG's first batch along the exact one"
BEST = f"bias left by the best of {len(CORRECTIONS)} corrections"
MORE = {
    "top-p": (
        "what the ratio to the distribution really drawn leaves, along the missing support",
        "top-p processed: coefficient",
        "top-p processed: coefficient, off",
    ),
    "deferred": (
        "bias of PG's later batches along the exact one",
        "deferred later: coefficient, pg",
        "deferred later: coefficient, off",
    ),
}
FAULTS = ("top-p", "retokenisation", "reward-filter", "deferred")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("best", CORRECTIONS)
def test_each_fault_is_read_by_its_own_numbers_and_the_correction_that_leaves_least(
    fault: str, best: str
) -> None:
    names = [f"{f}: {what}" for f in FAULTS for what in ("coefficient", "coefficient, off", "left, off")]
    names += ["top-p processed: coefficient", "top-p processed: coefficient, off"]
    names += [f"deferred later: coefficient, {what}" for what in ("pg", "is", "off")]
    names += [f"{f}: left by {rule}" for f in FAULTS for rule in CORRECTIONS]
    numbers = {name: 0.5 + 0.01 * n for n, name in enumerate(names)}
    numbers[f"{fault}: left by {best}"] = 0.3
    probes = tuple(Probe(group=f"environment {e}", numbers=numbers) for e in range(2))
    expected = {
        FIRST: (numbers[f"{fault}: coefficient"], numbers[f"{fault}: coefficient, off"]),
        BEST: (0.3, numbers[f"{fault}: left, off"]),
    }
    if fault in MORE:
        reading, name, off = MORE[fault]
        expected[reading] = numbers[name], numbers[off]
    found = evidence(probes={"infra": probes})
    same_numbers(f"infra-{fault}", found, expected)
    if fault == "deferred":
        note = CHECKS["infra-deferred"].checks(found)[2].note
        assert f"was drawn: {numbers['deferred later: coefficient, is']:.2f} of it" in note
