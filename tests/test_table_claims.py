"""Verdicts of the table on a made-up one where the articles are right: each reading, and from which cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from made_table import (
    COMPARED,
    GOOD,
    LEARNT,
    ON_POLICY,
    RUN,
    Kind,
    grown,
    judged,
    keep_references,
    plan_of,
    rows,
    table_of,
)
from tolerances import library

from theory.estimate import Estimate
from validation.check import Check, Verdict, conclude
from validation.table.gather import Table
from validation.table.rows import CORRECTIONS, SAMPLERS

LAGGING = ("stale-64", "fp8+stale")
"""For a whole run"""
SYNCING = ("is+resync", "seq-is+resync", "dlc")
"""Corrections that ask for a sync by their ESS"""
ROUNDING = ("fp8", "e2m1", "int4", "weight-noise")
CORRECTED = ("tis", "is", "seq-is", "sc", "mis", "icepop", "dlc")
LOST = [name for name in CORRECTIONS if GOOD["stale-64", name].accuracy < LEARNT / 2]
"""What collapses under a sampler that lags"""
ASSERTED = ("infra-retokenisation", "infra-reward-filter")

Expected = dict[str, tuple[float, float]]
"""Measured value and that of the control, by reading"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Table:
    root = tmp_path_factory.mktemp("runs")
    plan = plan_of()
    keep_references(root, plan)
    return table_of(root, plan=plan)


@pytest.fixture(scope="module")
def checks(good: Table) -> list[Check]:
    return judged(good)


def value(estimate: Estimate | None) -> float:
    return math.nan if estimate is None else estimate.value


def same(checks: Iterable[Check], claim: str, expected: Expected) -> None:
    """Every reading of a claim is there, no other, and its two numbers are those."""
    found = {c.reading: (value(c.measured), value(c.control.measured)) for c in checks if c.claim == claim}
    assert set(found) == set(expected)
    for reading, numbers in expected.items():
        assert found[reading] == pytest.approx(numbers, rel=library(np.float64)), reading


def end(sampler: str, correction: str) -> float:
    return math.log(GOOD[sampler, correction].floors[-1])


def accuracy(sampler: str, correction: str) -> float:
    return float(GOOD[sampler, correction].accuracies[-1])


def over_runs(of: Callable[[int], float]) -> float:
    return float(np.mean([of(run) for run in range(len(RUN))]))


def apart() -> np.ndarray:
    """Floors of each on-policy run by the others: distances are 1 + b_i + b_j, and all b sum to 0."""
    others = -ON_POLICY / (len(ON_POLICY) - 1)
    return (1 + ON_POLICY + others) / (1 + 2 * others)


def test_every_verdict_holds_and_every_control_fails(checks: list[Check]) -> None:
    skipped = {c.claim for c in checks if conclude(c).verdict is Verdict.NOT_RUN}
    assert skipped == {*ASSERTED, "rank"}  # rank has its own test
    for check in checks:
        if check.claim not in skipped:
            outcome = conclude(check)
            assert outcome[::2] == (Verdict.HOLDS, Verdict.FAILS), (check.claim, check.reading, outcome)


def test_verdicts_come_in_the_order_of_the_claims(checks: list[Check]) -> None:
    from validation.claims import CLAIMS

    places = [list(CLAIMS).index(c.claim) for c in checks]
    assert places == sorted(places)
    assert {c.claim for c in checks} == {
        "split", "floor-constant", "noise-floor", "ess-half", "heavy-tail", "stale", "dlc", "resync-is",
        "quantised", "ppo-reference", "off-support", "invisible", "rank", "infra-top-p", "infra-deferred",
        *ASSERTED,
    }  # fmt: skip


def test_split_reads_the_rows_of_the_table(checks: list[Check]) -> None:
    found = [c for c in checks if c.claim == "split"]
    assert [c.note for c in found] == ["made-up rows"] * 3


def test_the_discrepancy_is_that_of_rounding_engines_and_the_lag_that_of_stale_ones(
    checks: list[Check],
) -> None:
    def growth(factor: float) -> float:
        course = grown(factor)
        return math.log(course[-10:].mean() / course[:10].mean())

    def kinds(samplers: Iterable[str], names: Iterable[str]) -> list[Kind]:
        return [GOOD[s, c] for s in samplers for c in names]

    free = [c for c in CORRECTIONS if c not in SYNCING]
    lag = float(np.mean([growth(k.lag * k.tag) for k in kinds(LAGGING, free)]))
    healthy = {"fp8": list(CORRECTIONS), "fp8+stale": [c for c in CORRECTIONS if c not in LOST]}
    same(
        checks,
        "floor-constant",
        {
            f"{sampler}: rms discrepancy, last quarter over first": (
                float(np.mean([growth(k.engine * k.tag) for k in kinds([sampler], names)])),
                lag,
            )
            for sampler, names in healthy.items()
        },
    )
    notes = [c.note for c in checks if c.claim == "floor-constant"]
    assert notes[0] == f"{3 * len(CORRECTIONS)} runs that kept their accuracy"
    assert f"in the {3 * len(LOST)} that collapsed up to 2.9x" in notes[1]


def test_the_floor_is_that_of_the_on_policy_runs_and_its_control_stale_pg(checks: list[Check]) -> None:
    spread = math.sqrt(np.mean(np.log(apart()) ** 2))
    expected = {
        f"{s}: rms deviation of on-policy runs from each other, end": (spread, end(s, "pg")) for s in LAGGING
    }
    same(checks, "noise-floor", expected)


def test_a_correction_leaves_the_floor_when_the_ess_of_its_level_crosses(checks: list[Check]) -> None:
    expected: Expected = {}
    for s in LAGGING:
        for level, name in (("token", "is"), ("response", "seq-is")):
            kind = GOOD[s, name]
            cross = (kind.token if name == "is" else kind.sequence)[0]
            leaves = int(COMPARED[np.argmax(kind.floors > 2)])
            assert leaves == 10
            expected[f"{s}: {level} level: leaving step over crossing step"] = (
                over_runs(lambda i, c=cross: math.log(10 / (c + i))),
                over_runs(lambda i, c=cross: math.log(41 / (c + i))),
            )
            # only the first compared step, 5, is before every crossing
            expected[f"{s}: {level} level: worst deviation while ESS >= 1/2"] = (
                over_runs(lambda i, k=kind: math.log(k.floors[0] * (1 + RUN[i]))),
                over_runs(lambda i, s=s: math.log(GOOD[s, "pg"].floors[0] * (1 + RUN[i]))),
            )
    same(checks, "ess-half", expected)


def test_crossings_are_those_of_stale_is_and_the_controls_those_of_sc(checks: list[Check]) -> None:
    def gap(name: str, place: int) -> float:
        kinds = [GOOD[s, name] for s in LAGGING]
        return float(
            np.mean(
                [
                    over_runs(lambda i, k=k: math.log((k.token[place] + i) / (k.gaussian[place] + i)))
                    for k in kinds
                ]
            )
        )

    expected = {
        f"stale IS: {word} crossing over the Gaussian's": (gap("is", place), gap("sc", place))
        for place, word in enumerate(("first", "sustained"))
    }
    same(checks, "heavy-tail", expected)
    notes = {c.note for c in checks if c.claim == "heavy-tail"}
    assert notes == {"earlier in 6, equal in 0 of 6 runs that cross either way"}


def test_each_claim_of_one_stale_sampler_reads_its_own_cells(checks: list[Check]) -> None:
    judged_by_others = float(np.log(apart()).mean())
    halves = 1 - (1 + ON_POLICY[:3].mean() / 5) / (1 + ON_POLICY[3:].mean() / 5)
    stale: Expected = {}
    dlc: Expected = {}
    rescued: Expected = {}
    for s in LAGGING:
        stale[f"{s}: SC at the end"] = (end(s, "sc"), judged_by_others)
        stale[f"{s}: on-policy accuracy that SC loses by the end"] = (1 - accuracy(s, "sc") / LEARNT, halves)
        stale[f"{s}: IS with SC at the end"] = (end(s, "is-sc"), end(s, "pg"))
        stale[f"{s}: PG (PPO on the trainer before each batch) over SC, end"] = (
            end(s, "pg") - end(s, "sc"),
            judged_by_others,
        )
        worst, free = (math.log(GOOD[s, c].floors.max()) for c in ("dlc", "dlc-free"))
        dlc[f"{s}: dlc: deviation, end"] = (end(s, "dlc"), end(s, "dlc-free"))
        dlc[f"{s}: dlc: deviation, worst step"] = (worst, free)
        dlc[f"{s}: dlc: resyncs per run"] = (GOOD[s, "dlc"].resyncs, 39)
        rescued[f"{s}: IS with resync, end"] = (end(s, "is+resync"), end(s, "is"))
        rescued[f"{s}: response-level IS with resync, end"] = (end(s, "seq-is+resync"), end(s, "seq-is"))
    same(checks, "stale", stale)
    same(checks, "dlc", dlc)
    same(checks, "resync-is", rescued)


def test_rounding_engines_are_read_beside_the_exact_one_and_the_stale_one(checks: list[Check]) -> None:
    expected: Expected = {}
    for s in ROUNDING:
        expected[f"{s}: the worst of {', '.join(CORRECTED)}, end"] = (
            max(end(s, c) for c in CORRECTED),
            max(end("stale-64", c) for c in CORRECTED),
        )
        expected[f"{s}: PG at the end"] = (end(s, "pg"), end("reference", "pg"))
        expected[f"{s}: accuracy with SC minus on-policy, end"] = (
            accuracy(s, "sc") - LEARNT,
            accuracy("stale-64", "pg") - LEARNT,
        )
    same(checks, "quantised", expected)


def test_ppo_is_read_by_what_its_ratio_refers_to(checks: list[Check]) -> None:
    clipped = "PPO clipped against the engine, end"
    expected = {
        f"{s}: {clipped}": (end(s, "ppo-engine"), end(s, "ppo")) for s in SAMPLERS if s.startswith("stale")
    }
    expected |= {f"{s}: {clipped}": (end(s, "ppo-engine"), end("reference", "ppo-engine")) for s in ROUNDING}
    same(checks, "ppo-reference", expected)


def test_shares_are_the_largest_of_each_run_and_distances_the_last(checks: list[Check]) -> None:
    def most(names: Iterable[str]) -> float:
        return float(np.mean([GOOD[s, c].shares.max() for s in LAGGING for c in names]))

    def distance(of: Callable[[Kind], float]) -> float:
        kinds = [GOOD[s, c] for s in LAGGING for c in LOST]
        return float(np.mean([over_runs(lambda i, k=k: math.log(of(k) * (1 + RUN[i]))) for k in kinds]))

    same(
        checks,
        "off-support",
        {
            "largest share in runs that collapsed": (most(LOST), float(Kind(accuracy=LEARNT).shares.max())),
            "largest share in stale runs with a resync": (most(SYNCING), most(LOST)),
        },
    )
    reading = "collapsed runs: distance on the sampler's prefixes, end"
    own = distance(lambda k: float(k.floors[-1]))
    same(checks, "invisible", {reading: (distance(lambda k: k.prefixes * k.tag), own)})
    notes = [c.note for c in checks if c.claim == "off-support"]
    assert notes[0].startswith(f"{6 * len(LOST)} runs of stale samplers ended below half")
    assert notes[1].startswith("18 runs; most in one: 0.0")


def test_the_pipeline_is_read_off_the_tokens_of_the_on_policy_runs(checks: list[Check]) -> None:
    made = rows()
    biases = []
    for logmu in made.logmu:
        p = np.exp(logmu)
        order = np.argsort(-p)
        kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.9)) + 1]
        biases.append(-(p[kept] / p[kept].sum()) @ logmu[kept] + p @ logmu)
    surplus = 0.001 + 5e-4 * np.arange(6).mean()
    reading = "surprisal of the drawn tokens less the entropy of their rows, on-policy runs"
    same(checks, "infra-top-p", {reading: (surplus, float(np.mean(biases)))})
    # the largest of the sixth run, whose step 22 stands out; the least of the first, whose step 23 does
    reading = "largest rms log(mu/pi_s) of a batch, float32 engine synced every step"
    same(checks, "infra-deferred", {reading: (6 * 1.1e-6, 0.02 * 0.9)})
    assert {c.note for c in checks if c.claim == "infra-deferred"} == {"240 batches"}


def test_what_no_run_can_show_says_which_tests_stand_for_it(checks: list[Check]) -> None:
    for claim in ASSERTED:
        (found,) = [c for c in checks if c.claim == claim]
        assert conclude(found).verdict is Verdict.NOT_RUN
        named = [word.strip(",") for word in found.note.split() if word.startswith("tests/")]
        assert len(named) == 2
        assert all((Path(__file__).parent.parent / name).is_file() for name in named)
