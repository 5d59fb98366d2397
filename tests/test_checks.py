"""The checks of the claims, on evidence made up so that the right verdict is known."""

import dataclasses
import math

import numpy as np
import pytest

from theory.arrays import log_softmax
from theory.records import Trace
from validation import plan
from validation.check import Verdict, conclude
from validation.checks import CHECKS, needed, selected
from validation.evidence import Cell, Evidence, Rows, World
from validation.floor import at_end, deviation, estimate, left_out_deviations, run_deviations
from validation.results import curves

STEPS = np.arange(1, 41)
FLOOR = 1e-3 * STEPS / 40
SPREAD = 0.05
"""Relative scatter of made-up distances between runs"""


def made(floors, runs, references, rng):
    """KL (K, S, R) of runs that lie so many floors from the references."""
    noise = np.exp(SPREAD * rng.normal(size=(len(STEPS), runs, references)))
    return (np.broadcast_to(floors, STEPS.shape) * FLOOR)[:, None, None] * noise


def cell(rng, *, floors=1.0, crossing=None, accuracy=0.7, resyncs=0, runs=3, references=6):
    """Runs whose ESS falls below 1/2 right at `crossing`, or never."""
    ess = np.full(40, 0.9) if crossing is None else 0.5 ** ((STEPS + 0.5) / crossing)
    resynced = (np.arange(40) < resyncs).astype(float)
    steps = {"step": STEPS, "ess_token": ess, "ess_sequence": ess, "resynced": resynced}
    noise = 0.002 * rng.normal(size=(40, runs))
    return Cell(
        traces=tuple(Trace(steps=steps) for _ in range(runs)),
        distance=made(floors, runs, references, rng),
        accuracy=accuracy + noise,
    )


def leaving_at(step):
    """A deviation that is above two floors from a step on."""
    return np.where(step > STEPS, 1.0, 30.0)


GOOD = {
    plan.PG: {"floors": 400.0, "accuracy": 0.1},
    plan.SC: {"floors": 40.0, "accuracy": 0.15},
    plan.IS: {"floors": leaving_at(11), "crossing": 10},
    plan.IS_SC: {"floors": 1.5},
    plan.IS_RESYNC: {"floors": 1.2, "resyncs": 2},
    plan.SEQ_IS: {"floors": leaving_at(8), "crossing": 8},
    plan.SEQ_IS_RESYNC: {"floors": 1.2, "resyncs": 2},
    plan.DLC: {"floors": 1.1, "resyncs": 1},
    plan.DLC_RESPONSE: {"floors": 1.1, "resyncs": 3},
    plan.DLC_FREE: {"floors": 20.0},
}
"""What the articles describe"""
BAD = {
    plan.PG: {"floors": 3.0},
    plan.SC: {"floors": 2.0},
    plan.IS: {"floors": leaving_at(3), "crossing": 12},
    plan.IS_SC: {"floors": 9.0},
    plan.IS_RESYNC: {"floors": 9.0, "resyncs": 2},
    plan.SEQ_IS: {"floors": leaving_at(2), "crossing": 10},
    plan.SEQ_IS_RESYNC: {"floors": 9.0},
    plan.DLC: {"floors": 5.0, "resyncs": 12},
    plan.DLC_RESPONSE: {"floors": 5.0, "resyncs": 12},
    plan.DLC_FREE: {"floors": 20.0},
}
"""Every claim turned round"""


def rows(rng):
    mu, pi_s, pi = (log_softmax(rng.normal(size=(50, 8))) for _ in range(3))
    return Rows(logmu=mu, logpi_s=pi_s, logpi=pi, what="random rows")


def evidence(table, rng, *, environments=5, half=2.0):
    worlds = []
    for e in range(environments):
        cells = {name: cell(rng, **kind) for name, kind in table.items()}
        reference = cell(rng, runs=6)
        own = reference.distance * (1 - np.eye(6))
        cells[plan.ON_POLICY] = dataclasses.replace(reference, distance=own)
        halves = made(half, 6, 6, rng) * (1 - np.eye(6))
        worlds.append(
            World(
                label=f"environment {e}",
                group=f"environment {e}",
                lr=4.0,
                main=True,
                steps=STEPS,
                cells=cells,
                on_policy=plan.ON_POLICY,
                batch_floors={plan.HALF_BATCH: halves},
            )
        )
    return Evidence(engine="toy", seed=0, worlds=tuple(worlds), rows=rows(rng))


def verdicts(claim, found):
    return {check.reading: conclude(check) for check in CHECKS[claim].checks(found)}


@pytest.mark.parametrize("claim", list(CHECKS))
def test_every_reading_holds_on_what_the_articles_describe(claim, rng):
    for reading, outcome in verdicts(claim, evidence(GOOD, rng)).items():
        assert outcome.verdict is Verdict.HOLDS, (reading, outcome)
        assert outcome.control is Verdict.FAILS, (reading, outcome)


@pytest.mark.parametrize("claim", ["ess-half", "stale", "dlc", "resync-is"])
def test_no_reading_holds_when_the_claim_is_turned_round(claim, rng):
    outcomes = verdicts(claim, evidence(BAD, rng))
    assert not any(outcome.verdict is Verdict.HOLDS for outcome in outcomes.values()), outcomes
    assert any(outcome.verdict is Verdict.FAILS for outcome in outcomes.values()), outcomes


def test_the_batch_law_fails_where_the_floor_ignores_the_batch(rng):
    outcomes = verdicts("noise-floor", evidence(GOOD, rng, half=1.0))
    assert [o.verdict for r, o in outcomes.items() if "half the batch" in r] == [Verdict.FAILS]


def test_one_world_takes_its_runs_as_repetitions(rng):
    found = evidence(GOOD, rng, environments=1)
    measured = estimate(found.main, lambda w: at_end(w, plan.SC))
    assert 2 <= measured.dof <= 7
    assert 0 < measured.stderr < 1
    # PG over SC: both vary with the same runs, so they are left out together
    gap = estimate(found.main, lambda w: at_end(w, plan.PG) - at_end(w, plan.SC))
    assert gap.value == pytest.approx(math.log(10), abs=0.2)


def test_worlds_of_one_environment_are_one_repetition(rng):
    found = evidence(GOOD, rng, environments=4)
    paired = [dataclasses.replace(w, group=f"g{i // 2}") for i, w in enumerate(found.main)]
    assert estimate(paired, lambda w: at_end(w, plan.SC)).dof == 1
    assert estimate(found.main, lambda w: math.nan).measured is False


def test_a_cell_never_crossing_is_left_out_of_the_gap(rng):
    table = GOOD | {plan.IS: {"floors": leaving_at(11)}}
    outcomes = verdicts("ess-half", evidence(table, rng))
    gap = outcomes["token level: leaving step over crossing step"]
    assert gap.verdict is Verdict.NOT_RUN
    assert "none of 5 cells" in gap.reason


def test_deviation_is_one_for_on_policy_runs_judged_by_the_others(rng):
    world = evidence(GOOD, rng).main[0]
    assert left_out_deviations(world).shape == (40, 6)
    np.testing.assert_allclose(deviation(world, plan.ON_POLICY), 1, atol=0.1)
    np.testing.assert_allclose(
        run_deviations(world, plan.SC).mean(axis=-1), deviation(world, plan.SC), rtol=1e-12
    )


def test_a_missing_row_source_is_not_run_with_its_reason(rng):
    found = dataclasses.replace(evidence(GOOD, rng), rows=None)
    for outcome in verdicts("split", found).values():
        assert outcome.verdict is Verdict.NOT_RUN
        assert outcome.reason == "no run reported full rows"


def test_plans_keep_what_their_claims_read_and_nothing_else():
    whole = plan.toy_plan()
    small = needed(whole, ["resync-is"])
    names = {c.name for w in small.worlds for c in w.cells}
    assert names == {plan.ON_POLICY, plan.IS, plan.IS_RESYNC, plan.SEQ_IS, plan.SEQ_IS_RESYNC}
    assert all(w.main for w in small.worlds)
    assert len(needed(whole, ["ess-half"]).worlds) == len(whole.worlds)
    assert selected([]) == list(CHECKS)


def test_plans_use_no_seed_that_tuned_anything():
    toy = {e.environment.seed for s in range(12) for e, _ in plan.toy_plan(s).runs()}
    assert not toy & {0, 1, 2, *plan.TUNED}
    assert len(toy) == 12 * plan.ENVIRONMENTS
    real = {e.seed for s in range(3) for e, _ in plan.real_plan(s, sampler="torch").runs()}
    assert not real & {*range(10), 50, 51, 60, 61, 62}
    for world in (*plan.toy_plan().worlds, *plan.real_plan(sampler="torch").worlds):
        reference = {e.seed for e in world.cells[0].experiments}
        others = {e.seed for c in world.cells[1:] for e in c.experiments}
        assert not reference & others  # runs that share their draws are not independent


def test_curves_hold_every_run_and_every_cell(rng):
    table = curves(evidence(GOOD, rng)).to_pydict()
    assert {*table["cell"]} == {plan.ON_POLICY, *GOOD}
    assert {"floors", "accuracy", "ess_token", "resynced"} <= {*table["column"]}
    shown = zip(table["column"], table["run"], strict=True)
    assert {run for column, run in shown if column == "floors"} == {-1}
