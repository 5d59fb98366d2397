"""The checks of the claims, on evidence made up so that the right verdict is known."""

import dataclasses
import math

import numpy as np
import pytest
from made_evidence import (
    BAD,
    BAD_NUMBERS,
    BAD_SCHEDULES,
    GOOD,
    evidence,
    leaving_at,
    with_forecastable_runs,
)

from validation import plan
from validation.check import Verdict, conclude
from validation.checks import CHECKS, needed, selected
from validation.floor import at_end, deviation, estimate, left_out_deviations, run_deviations
from validation.real_plan import real_plan
from validation.results import curves

RATES = (2.0, 4.0, 8.0)


def verdicts(claim, found):
    return {check.reading: conclude(check) for check in CHECKS[claim].checks(found)}


@pytest.fixture(scope="module")
def good():
    found = evidence(GOOD, np.random.default_rng(1), lrs=RATES)
    return with_forecastable_runs(found, missed=2)


@pytest.fixture(scope="module")
def bad():
    found = evidence(
        BAD,
        np.random.default_rng(2),
        lrs=RATES,
        schedules=BAD_SCHEDULES,
        numbers=BAD_NUMBERS,
        informative=False,
    )
    return with_forecastable_runs(found, missed=12)


OWN_TESTS = ("quantised", "ppo-reference", "invisible")
"""Claims with tests and made-up evidence of their own, as have those about the infrastructure"""
HERE = [claim for claim in CHECKS if claim not in OWN_TESTS and not claim.startswith("infra-")]


@pytest.mark.parametrize("claim", HERE)
def test_every_reading_holds_on_what_the_articles_describe(claim, good):
    for reading, outcome in verdicts(claim, good).items():
        assert outcome.verdict is Verdict.HOLDS, (reading, outcome)
        assert outcome.control is Verdict.FAILS, (reading, outcome)


ELSEWHERE = ("split", "noise-floor")
"""Claims whose reverse needs other evidence than runs that behave badly"""
STILL_TRUE = (
    "deviation in floors against accuracy drop",
    "worst deviation of the pair that was cheapest in the other environments",
    "the same, crossings at most 2 steps ahead",
)
"""Readings that the reverse of their claim leaves as they are"""


@pytest.mark.parametrize("claim", [c for c in HERE if c not in ELSEWHERE])
def test_no_reading_holds_when_the_claim_is_turned_round(claim, bad):
    outcomes = {r: o for r, o in verdicts(claim, bad).items() if r not in STILL_TRUE}
    assert not any(outcome.verdict is Verdict.HOLDS for outcome in outcomes.values()), outcomes
    assert any(outcome.verdict is Verdict.FAILS for outcome in outcomes.values()), outcomes


@pytest.mark.parametrize("claim", HERE)
def test_a_claim_reads_no_cell_and_no_analysis_that_it_does_not_ask_for(claim, good):
    row = CHECKS[claim]
    cells = {plan.ON_POLICY, *row.cells}
    narrowed = dataclasses.replace(
        good,
        worlds=tuple(
            dataclasses.replace(w, cells={name: cell for name, cell in w.cells.items() if name in cells})
            for w in good.worlds
            if w.main or row.every_rate
        ),
        probes={name: found for name, found in good.probes.items() if name in row.probes},
    )
    whole = verdicts(claim, good)
    assert {r: o.verdict for r, o in verdicts(claim, narrowed).items()} == {
        r: o.verdict for r, o in whole.items()
    }


def test_the_batch_law_fails_where_the_floor_ignores_the_batch(rng):
    outcomes = verdicts("noise-floor", evidence(GOOD, rng, half=1.0))
    assert [o.verdict for r, o in outcomes.items() if "half the batch" in r] == [Verdict.FAILS]


def test_an_engine_without_an_analysis_is_not_run_and_fails_nothing(rng):
    found = dataclasses.replace(evidence(GOOD, rng), probes={})
    for claim in ("centering", "feedback", "excess", "monitor"):
        assert {o.verdict for o in verdicts(claim, found).values()} == {Verdict.NOT_RUN}


def test_readings_of_an_analysis_average_over_environments(rng):
    found = evidence(GOOD, rng, environments=4)
    check = CHECKS["excess"].checks(found)[0]
    values = [p.numbers["ratio"] for p in found.probes["excess"]]
    assert check.measured is not None
    assert check.measured.value == pytest.approx(np.mean(values))
    assert check.measured.dof == 3


def test_a_tail_only_counts_as_earlier_by_more_than_a_tie(rng):
    table = GOOD | {plan.IS: {"floors": leaving_at(11), "crossing": 10, "tail": 0.0}}
    outcomes = verdicts("heavy-tail", evidence(table, rng))
    assert outcomes["crossing over the Gaussian prediction: var"].verdict is Verdict.FAILS


def test_no_pair_within_two_floors_is_not_run_and_says_so(rng):
    table = {name: {"floors": 9.0} for name in GOOD}
    outcomes = verdicts("cheapest", evidence(table, rng, schedules={}))
    assert {o.verdict for o in outcomes.values()} == {Verdict.NOT_RUN}


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
    assert set(selected([], engine="real")) < set(CHECKS)
    with pytest.raises(ValueError, match="no check here yet"):
        selected(["excess"], engine="real")
    assert needed(whole, ["excess"]).probes == ("excess",)
    assert not needed(whole, ["stale"]).probes


def test_plans_use_no_seed_that_tuned_anything():
    toy = {e.environment.seed for s in range(12) for e, _ in plan.toy_plan(s).runs()}
    assert not toy & plan.TUNED
    assert len(toy) == 12 * plan.ENVIRONMENTS
    real = {e.seed for s in range(3) for e, _ in real_plan(s, sampler="torch").runs()}
    assert not real & {*range(10), 50, 51, 60, 61, 62}
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        plan.environments(-1)
    for world in (*plan.toy_plan().worlds, *real_plan(sampler="torch").worlds):
        reference = {e.seed for e in world.cells[0].experiments}
        others = {e.seed for c in world.cells[1:] for e in c.experiments}
        assert not reference & others  # runs that share their draws are not independent


def test_curves_hold_every_run_and_every_cell(rng):
    table = curves(evidence(GOOD, rng, schedules={})).to_pydict()
    assert {*table["cell"]} == {plan.ON_POLICY, *GOOD}
    assert {"floors", "accuracy", "ess_token", "resynced"} <= {*table["column"]}
    shown = zip(table["column"], table["run"], strict=True)
    assert {run for column, run in shown if column == "floors"} == {-1}
