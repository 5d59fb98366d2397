"""Checks of the pipeline, PPO's reference, quantisation and the exit: verdicts on made-up evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_evidence import made

from theory.records import Trace
from validation import plan
from validation.check import Verdict, conclude
from validation.checks import CHECKS, ppo_reference
from validation.checks.infrastructure import CORRECTIONS
from validation.evidence import Cell, Evidence, Probe, World
from validation.gather import infrastructure, invisible

STEPS = np.arange(1, 41)
ENVIRONMENTS = 5
FAULTS = ("top-p", "retokenisation", "reward-filter", "deferred")


def runs(rng, *, floors=1.0, accuracy=0.7, ess=1.0, count=3) -> Cell:
    learnt = 0.2 + (accuracy - 0.2) * STEPS / 40
    share = learnt[:, None] + 0.002 * rng.normal(size=(40, count))
    trace = Trace(steps={"step": STEPS, "ess_token": np.linspace(1.0, ess, 40)})
    return Cell(traces=(trace,) * count, distance=made(floors, count, 6, rng), accuracy=share)


def worlds(cells, rng) -> Evidence:
    """Worlds at the learning rate of these claims; `cells` holds what makes each."""
    made_worlds = []
    for env in range(ENVIRONMENTS):
        found = {name: runs(rng, **kind) for name, kind in cells.items()}
        reference = runs(rng, count=6)
        distance = reference.distance.copy()
        distance[:, np.arange(6), np.arange(6)] = 0.0
        found[plan.ON_POLICY] = dataclasses.replace(reference, distance=distance)
        world = World(
            label=f"environment {env}",
            group=f"environment {env}",
            lr=plan.MILD_LR,
            main=False,
            steps=STEPS,
            cells=found,
            on_policy=plan.ON_POLICY,
        )
        made_worlds.append(world)
    return Evidence(engine="toy", seed=0, worlds=tuple(made_worlds), rows=None)


def numbers(name: str, values, rng) -> Evidence:
    def scattered():
        return {key: value * (1 + 0.01 * rng.normal()) for key, value in values.items()}

    probes = tuple(Probe(group=f"environment {e}", numbers=scattered()) for e in range(ENVIRONMENTS))
    return Evidence(engine="toy", seed=0, worlds=(), rows=None, probes={name: probes})


def outcomes(claim: str, found: Evidence) -> dict:
    return {check.reading: conclude(check) for check in CHECKS[claim].checks(found)}


def ppo(**changes):
    cells = {name: {"floors": 1.3} for name in ppo_reference.CELLS}
    never = f"every {plan.STALE}"
    cells[plan.referring("before-batch", never)] = {"floors": 300.0, "ess": 0.1}
    cells[plan.referring("before-batch", "every 16")] = {"floors": 30.0}
    cells[plan.referring("engine", never)] = {"floors": 60.0, "accuracy": 0.6, "ess": 0.99}
    cells |= {plan.referring("engine", how): {"floors": 20.0} for how in plan.BREAKING}
    return cells | changes


def quantised(**changes):
    cells = {plan.quantised(name, how): {} for name in plan.QUANTISED for how in plan.STRENGTHS}
    cells |= {plan.quantised("pg", how): {"floors": 13.0} for how in plan.STRENGTHS}
    return cells | changes


def faulty(coefficient=1.0, left=1.0):
    found = {f"{fault}: coefficient": coefficient for fault in (*FAULTS, "top-p processed")}
    found |= {f"{name}, off": 0.01 for name in found}
    found |= {f"{fault}: left by {rule}": left for fault in FAULTS for rule in CORRECTIONS}
    found |= {f"{fault}: left, off": 0.001 for fault in FAULTS}
    later = {"pg": coefficient, "is": 0.0, "off": 0.01}
    return found | {f"deferred later: coefficient, {name}": value for name, value in later.items()}


def gone(seen=0.6, off=0.9, resynced=0.01, accuracy=0.02):
    found = {
        "kl seen, healthy": 0.8,
        "kl own, healthy": 0.5,
        "least ess, healthy": 0.44,
        "healthy cells": 3.0,
    }
    for cell in invisible.CELLS:
        collapsed = cell in invisible.COLLAPSING
        found |= {
            f"off-support at the end, {cell}": off if collapsed else 0.01,
            f"largest off-support, {cell}": off if collapsed else resynced,
            f"accuracy, {cell}": accuracy if collapsed else 0.97,
        }
        if collapsed:
            found |= {
                f"runs, {cell}": 3.0,
                f"runs at half, {cell}": 3.0,
                f"step of collapse, {cell}": 26.0,
                f"kl seen, {cell}": seen,
                f"kl own, {cell}": 4.0,
                f"ess, {cell}": 0.5,
            }
    return found


INFRA = tuple(f"infra-{fault}" for fault in FAULTS)


@pytest.mark.parametrize("claim", ["ppo-reference", "quantised", "invisible", *INFRA])
def test_every_reading_holds_on_what_the_claims_describe(claim, rng):
    found = {
        "ppo-reference": lambda: worlds(ppo(), rng),
        "quantised": lambda: worlds(quantised(), rng),
        "invisible": lambda: numbers("invisible", gone(), rng),
    }.get(claim, lambda: numbers("infra", faulty(), rng))()
    for reading, outcome in outcomes(claim, found).items():
        assert outcome.verdict is Verdict.HOLDS, (reading, outcome)
        assert outcome.control is Verdict.FAILS, (reading, outcome)


def test_ppo_fails_where_mild_staleness_already_breaks_it_and_noise_does_not(rng):
    calm = {plan.referring("engine", how): {"floors": 1.2} for how in plan.BREAKING}
    mild = {
        plan.referring("before-batch", "every 4"): {"floors": 20.0},
        plan.referring("engine", "every 2"): {"floors": 20.0},
    }
    frozen = {plan.referring("engine", f"every {plan.STALE}"): {"floors": 60.0, "accuracy": 0.25, "ess": 0.5}}
    found = outcomes("ppo-reference", worlds(ppo(**calm, **mild, **frozen), rng))
    held = [reading for reading, outcome in found.items() if outcome.verdict is Verdict.HOLDS]
    assert held == ["trainer before the batch, never synced"]


def test_quantised_fails_where_the_correction_leaves_the_floor_or_pg_does_not(rng):
    cells = quantised()
    cells |= {name: {"floors": 9.0, "accuracy": 0.4} for name in cells if not name.startswith("pg")}
    found = outcomes("quantised", worlds(cells, rng))
    assert {o.verdict for r, o in found.items() if not r.startswith("PG")} <= {
        Verdict.FAILS,
        Verdict.UNDECIDED,
    }
    assert Verdict.FAILS in {o.verdict for o in found.values()}
    near = quantised(**{plan.quantised("pg", how): {"floors": 1.2} for how in plan.STRENGTHS})
    found = outcomes("quantised", worlds(near, rng))
    assert not any(o.verdict is Verdict.HOLDS for r, o in found.items() if r.startswith("PG"))


@pytest.mark.parametrize("claim", INFRA)
def test_a_fault_fails_that_is_not_the_exact_one_or_that_a_correction_removes(claim, rng):
    found = outcomes(claim, numbers("infra", faulty(coefficient=0.7, left=0.05), rng))
    assert {o.verdict for o in found.values()} == {Verdict.FAILS}


def test_one_correction_that_removes_a_fault_is_enough_to_fail(rng):
    removed = faulty() | {"top-p: left by dlc": 0.02}
    found = outcomes("infra-top-p", numbers("infra", removed, rng))
    failed = [reading for reading, o in found.items() if o.verdict is Verdict.FAILS]
    assert failed == ["bias left by the best of 6 corrections"]


def test_a_collapse_in_full_view_fails(rng):
    found = outcomes("invisible", numbers("invisible", gone(seen=1.6), rng))
    assert [o.verdict for r, o in found.items() if "KL on" in r] == [Verdict.FAILS] * 2
    found = outcomes("invisible", numbers("invisible", gone(off=0.2, resynced=0.2, accuracy=0.9), rng))
    assert not any(o.verdict is Verdict.HOLDS for r, o in found.items() if "KL on" not in r)


def test_an_engine_without_these_runs_fails_nothing():
    nothing = Evidence(engine="real", seed=0, worlds=(), rows=None)
    for claim in ("invisible", *INFRA):
        assert {o.verdict for o in outcomes(claim, nothing).values()} == {Verdict.NOT_RUN}


def test_the_probes_hand_over_what_the_checks_read():
    assert infrastructure.CORRECTED == CORRECTIONS
    env = 0
    for name, chosen in infrastructure.faults(env).items():
        assert name in FAULTS
        assert chosen.retokenise is None or max(chosen.retokenise) < infrastructure.ENVIRONMENT.vocabulary


@pytest.mark.slow
def test_measured_faults_of_one_environment_are_the_exact_ones():
    found = infrastructure.infrastructure(1)
    assert set(found) == set(faulty())
    assert all(abs(x - 1) < 0.15 for name, x in found.items() if name.endswith("coefficient"))
    assert all(abs(x) < 0.15 for name, x in found.items() if name.endswith("off"))


@pytest.mark.slow
def test_the_exit_of_one_environment_hides_its_collapse():
    found = invisible.invisible(1)
    assert set(gone()) == set(found)
    assert found["off-support at the end, stale pg"] > 0.5
    assert found["kl seen, stale pg"] < found["kl seen, healthy"]
    assert found["kl own, stale pg"] > 3 * found["kl own, healthy"]
    assert found["largest off-support, pg, synced every 8"] < 0.05
