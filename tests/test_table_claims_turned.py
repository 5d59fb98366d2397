"""Verdicts of the table where a claim is turned round, and where something was not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import COMPARED, GOOD, RUN, changed, judged, keep_references, plan_of, table_of
from tolerances import library

from validation.check import Check, Outcome, Verdict, conclude
from validation.table.plan import REFERENCES
from validation.table.rows import CORRECTIONS
from validation.table.same import Same
from validation.table.summary import checkpoints
from validation.table.worlds import worlds

Changes = Mapping[tuple[str, str], Mapping[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the on-policy runs are kept."""
    found = tmp_path_factory.mktemp("runs")
    keep_references(found, plan_of(samplers=("reference",), corrections=("pg",)))
    return found


def named(checks: list[Check]) -> dict[str, Check]:
    return {f"{c.claim}: {c.reading}": c for c in checks}


def outcomes(checks: list[Check]) -> dict[str, Outcome]:
    return {name: conclude(check) for name, check in named(checks).items()}


def of(samplers: Iterable[str], corrections: Iterable[str], **change: Any) -> Changes:
    """The same change of several cells."""
    return {(s, c): change for s in samplers for c in corrections}


LEAVING_LATE = {"at": dict.fromkeys(range(5, 40, 5), 1.2)}
WORST = "the worst of tis, is, seq-is, sc, mis, icepop, dlc, end"
GROWTH = "rms discrepancy, last quarter over first"
CLIPPED = "PPO clipped against the engine, end"
LAGGING = ("stale-64", "fp8+stale")
EVERY = tuple(CORRECTIONS)
FREE = tuple(c for c in CORRECTIONS if c not in ("is+resync", "seq-is+resync", "dlc"))

TURNED: dict[str, Changes] = {
    f"floor-constant: fp8: {GROWTH}": of(["fp8"], EVERY, engine=3.0),
    f"floor-constant: fp8+stale: {GROWTH}": of(["fp8+stale"], EVERY, engine=3.0),
    "ess-half: stale-64: token level: leaving step over crossing step": of(
        ["stale-64"], ["is"], **LEAVING_LATE
    ),
    "ess-half: stale-64: token level: worst deviation while ESS >= 1/2": of(
        ["stale-64"], ["is"], at={5: 3.0}
    ),
    "ess-half: fp8+stale: response level: leaving step over crossing step": of(
        ["fp8+stale"], ["seq-is"], **LEAVING_LATE
    ),
    "ess-half: fp8+stale: response level: worst deviation while ESS >= 1/2": of(
        ["fp8+stale"], ["seq-is"], at={5: 3.0}
    ),
    "heavy-tail: stale IS: first crossing over the Gaussian's": of(
        LAGGING, ["is"], token=(14, 20), gaussian=(9, 25)
    ),
    "heavy-tail: stale IS: sustained crossing over the Gaussian's": of(
        LAGGING, ["is"], token=(5, 20), gaussian=(9, 13)
    ),
    "stale: stale-64: SC at the end": of(["stale-64"], ["sc"], end=5.0),
    "stale: fp8+stale: on-policy accuracy that SC loses by the end": of(["fp8+stale"], ["sc"], accuracy=0.6),
    "stale: stale-64: IS with SC at the end": of(["stale-64"], ["is-sc"], end=5.0),
    "stale: fp8+stale: PG (PPO on the trainer before each batch) over SC, end": of(
        ["fp8+stale"], ["pg"], end=33.0
    ),
    "dlc: stale-64: dlc: deviation, end": of(["stale-64"], ["dlc"], end=3.0),
    "dlc: fp8+stale: dlc: deviation, worst step": of(["fp8+stale"], ["dlc"], at={25: 3.0}),
    "dlc: stale-64: dlc: resyncs per run": of(["stale-64"], ["dlc"], resyncs=9),
    "resync-is: stale-64: IS with resync, end": of(["stale-64"], ["is+resync"], end=9.0),
    "resync-is: fp8+stale: response-level IS with resync, end": of(["fp8+stale"], ["seq-is+resync"], end=9.0),
    f"quantised: fp8: {WORST}": of(["fp8"], ["tis"], end=9.0),
    f"quantised: e2m1: {WORST}": of(["e2m1"], ["is"], end=9.0),
    f"quantised: int4: {WORST}": of(["int4"], ["seq-is"], end=9.0),
    f"quantised: weight-noise: {WORST}": of(["weight-noise"], ["sc"], end=9.0),
    "quantised: e2m1: PG at the end": of(["e2m1"], ["pg"], end=1.5),
    "quantised: int4: accuracy with SC minus on-policy, end": of(["int4"], ["sc"], accuracy=0.55),
    f"ppo-reference: stale-4: {CLIPPED}": of(["stale-4"], ["ppo-engine"], end=4.0),
    f"ppo-reference: weight-noise: {CLIPPED}": of(["weight-noise"], ["ppo-engine"], end=1.2),
    "off-support: largest share in runs that collapsed": of(LAGGING, FREE, share=0.2),
    "off-support: largest share in stale runs with a resync": of(LAGGING, ["is+resync", "dlc"], share=0.6),
    "invisible: collapsed runs: distance on the sampler's prefixes, end": of(LAGGING, EVERY, prefixes=9.0),
}


@pytest.mark.parametrize("reading", TURNED)
def test_a_claim_that_is_turned_round_fails_and_no_other_sampler_does(reading: str, root: Path) -> None:
    changes = TURNED[reading]
    claim, where, *_ = reading.split(": ")
    samplers = tuple(dict.fromkeys(("reference", "stale-64", *(s for s, _ in changes))))
    found = outcomes(judged(table_of(root, changed(changes), plan=plan_of(samplers=samplers))))
    assert found[reading].verdict is Verdict.FAILS, found[reading]
    others = {
        name: o
        for name, o in found.items()
        if name.startswith(f"{claim}: ") and f"{claim}: {where}:" not in name
    }
    if where in samplers:
        assert {o.verdict for o in others.values()} <= {Verdict.HOLDS, Verdict.UNDECIDED}


@pytest.mark.parametrize("name", ["mis", "icepop", "dlc"])
def test_every_correction_counts_under_a_rounding_engine(name: str, root: Path) -> None:
    table = table_of(root, changed(of(["fp8"], [name], end=9.0)), plan=plan_of(samplers=("fp8", "stale-64")))
    assert outcomes(judged(table))[f"quantised: fp8: {WORST}"].verdict is Verdict.FAILS


def test_on_policy_runs_that_lie_far_apart_are_no_unit(root: Path) -> None:
    plan = plan_of(samplers=("stale-64",))
    found = outcomes(judged(table_of(root, plan=plan, far_apart=True)))
    reading = "noise-floor: stale-64: rms deviation of on-policy runs from each other, end"
    assert found[reading].verdict is Verdict.FAILS


def test_truncated_draws_and_old_weights_fail_in_the_pipeline(tmp_path: Path) -> None:
    plan = plan_of(samplers=("fp8",), corrections=("pg",))
    keep_references(tmp_path, plan, surplus=0.03, rounding=1e3)
    found = outcomes(judged(table_of(tmp_path, plan=plan)))
    failed = {name.split(": ")[0] for name, outcome in found.items() if outcome.verdict is Verdict.FAILS}
    assert failed == {"infra-top-p", "infra-deferred"}


def test_a_resync_that_did_not_help_is_no_control_for_resyncs(root: Path) -> None:
    gone = {("stale-64", "dlc"): {"accuracy": 0.05, "share": 0.4}}
    checks = named(judged(table_of(root, changed(gone), plan=plan_of(samplers=("stale-64",)))))
    lost = [name for name in CORRECTIONS if GOOD["stale-64", name].accuracy < 0.35]
    shares = [GOOD["stale-64", name].shares.max() for name in lost]
    own = 0.4 * GOOD["stale-64", "dlc"].tag
    collapsed = checks["off-support: largest share in runs that collapsed"].measured
    free = checks["off-support: largest share in stale runs with a resync"].control.measured
    assert collapsed is not None
    assert free is not None
    assert collapsed.value == pytest.approx(np.mean([*shares, own]), rel=library(np.float64))
    assert free.value == pytest.approx(np.mean(shares), rel=library(np.float64))


def test_a_run_that_diverged_is_read_at_its_last_distance(root: Path) -> None:
    plan = plan_of(samplers=("stale-64",), corrections=("pg", "is+resync"))
    table = table_of(root, plan=plan)
    for experiment in plan.cells[0].experiments:
        table.runs[experiment.fingerprint()].compared["kl_prefixes"][6:] = np.nan
    check = named(judged(table))["invisible: collapsed runs: distance on the sampler's prefixes, end"]
    kind = GOOD["stale-64", "pg"]
    at = np.log(kind.tag * kind.prefixes ** (30 / 40) * (1 + RUN))
    assert check.measured is not None
    assert check.measured.value == pytest.approx(at.mean(), rel=library(np.float64))


# ---- not measured


def test_fewer_than_four_on_policy_runs_judge_nothing(root: Path) -> None:
    for count, judges in ((3, False), (4, True)):
        plan = plan_of(samplers=("stale-64",), corrections=("pg",), references=REFERENCES[:count])
        assert bool(judged(table_of(root, plan=plan))) is judges


def test_a_cell_that_lacks_a_run_is_not_judged_and_the_other_samplers_are(root: Path) -> None:
    plan = plan_of(samplers=("stale-64", "fp8+stale"))
    missing = [("stale-64", name) for name in ("is", "dlc", "sc")]
    found = named(judged(table_of(root, plan=plan, missing=missing)))
    within = {"ess-half", "stale", "dlc", "resync-is", "noise-floor"}
    claims = {s: {n.split(": ")[0] for n in found if f": {s}: " in n} for s in ("stale-64", "fp8+stale")}
    assert claims["stale-64"] & within == {"noise-floor", "ess-half", "resync-is"}
    assert claims["fp8+stale"] & within == within
    # of the two levels the one whose cells are whole
    assert not any("stale-64: token level" in name or "stale-64: IS with" in name for name in found)


def test_is_stands_for_is_with_sc_and_plain_is_for_dlc_without_resync_where_those_lack(root: Path) -> None:
    plan = plan_of(samplers=("stale-64",), corrections=("pg", "sc", "is", "dlc"))
    found = named(judged(table_of(root, plan=plan)))
    weighted = found["stale: stale-64: IS with SC at the end"]
    assert weighted.measured is not None
    assert weighted.measured.value == pytest.approx(np.log(GOOD["stale-64", "is"].floors[-1]))
    assert "cell shared" in weighted.note
    control = found["dlc: stale-64: dlc: deviation, end"].control
    assert control.measured is not None
    assert control.what.startswith("resync and clip off")
    assert control.measured.value == pytest.approx(np.log(GOOD["stale-64", "is"].floors[-1]))


def test_pg_stands_for_ppo_where_that_was_not_run(root: Path) -> None:
    plan = plan_of(samplers=("stale-64",), corrections=("pg", "ppo-engine"))
    (check,) = [c for c in judged(table_of(root, plan=plan)) if c.claim == "ppo-reference"]
    assert check.control.measured is not None
    assert check.control.measured.value == pytest.approx(np.log(GOOD["stale-64", "pg"].floors[-1]))


def test_controls_that_were_not_run_leave_a_verdict_undecided(root: Path) -> None:
    plan = plan_of(samplers=("fp8",))
    found = outcomes(judged(table_of(root, plan=plan, with_rows=False)))
    alone = [
        n for n in found if n.startswith(("quantised", "ppo-reference", "floor-constant", "infra-top-p"))
    ]
    assert len(alone) == 6
    for name in alone:
        assert found[name].reason == "unable to tell: the control was not measured", name
    assert not any(name.startswith("split") for name in found)
    # no sampler lags: nothing collapsed, nothing was rescued
    shown = [o.verdict for n, o in found.items() if n.startswith(("off-support", "invisible"))]
    assert shown == [Verdict.NOT_RUN] * 3


def test_distances_and_shares_that_were_not_measured_give_no_verdict_and_no_warning(root: Path) -> None:
    table = table_of(root, plan=plan_of(samplers=("fp8", "stale-64")))
    nothing = np.full((len(COMPARED), len(REFERENCES)), np.nan)
    runs = {}
    for fingerprint, run in table.runs.items():
        steps = {name: x for name, x in run.trace.steps.items() if name != "off_support"}
        runs[fingerprint] = dataclasses.replace(
            run,
            trace=dataclasses.replace(run.trace, steps=steps),
            compared={"kl": nothing, "kl_prefixes": nothing},
        )
    table = dataclasses.replace(table, runs=runs)
    points = checkpoints(table, worlds(table)["stale-64"])
    decided = {
        check.reading: check.predicted.unit
        for check in judged(table, points)
        if conclude(check).verdict in (Verdict.HOLDS, Verdict.FAILS) and check.claim != "split"
    }
    assert set(decided.values()) == {"ln ratio", "ln steps", "resyncs", "share", "nats"}
    assert all("accuracy" in reading for reading, unit in decided.items() if unit == "share")
    assert not any("leaving step" in reading for reading in decided)


def test_cells_that_share_their_runs_count_them_once(root: Path) -> None:
    plan = plan_of(samplers=("fp8",), corrections=("pg", "sc"))
    twice = dataclasses.replace(plan.cells[1], correction="dlc", same=Same("sc", "exact"))
    plan = dataclasses.replace(plan, cells=(*plan.cells, twice))
    kinds = {**GOOD, ("fp8", "dlc"): GOOD["fp8", "sc"]}
    found = named(judged(table_of(root, kinds, plan=plan)))
    assert found["floor-constant: fp8: rms discrepancy, last quarter over first"].note.startswith("6 runs")
    assert "quantised: fp8: the worst of sc, dlc, end" in found
