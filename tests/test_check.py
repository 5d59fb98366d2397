"""The rule that turns a measurement into a verdict, its control included."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.estimate import Estimate, difference, mean_estimate
from validation.check import Check, Control, Verdict, conclude, decide
from validation.results import Results, bound, shown

NUMBERS = st.floats(-50, 50)
ERRORS = st.floats(0, 5)
FORMS = ("within", "at most", "at least")


def estimate(value, stderr=0.0, **rest):
    return Estimate(value=value, stderr=stderr, unit="nats", **rest)


def check(measured, control, predicted=0.0, margin=1.0):
    return Check(
        claim="dlc",
        reading="r",
        form="at most",
        predicted=estimate(predicted),
        margin=margin,
        measured=measured,
        control=Control(what="effect off", measured=control),
    )


@pytest.mark.parametrize(
    ("form", "value", "stderr", "verdict"),
    [
        ("within", 0.5, 0.0, "holds"),
        ("within", -1.0, 0.0, "holds"),
        ("within", 1.5, 0.0, "fails"),
        ("within", -1.5, 0.0, "fails"),
        ("within", 0.9, 0.1, "undecided"),
        ("within", -0.9, 0.1, "undecided"),
        ("within", 0.0, 9.0, "undecided"),
        ("at most", -40.0, 0.1, "holds"),
        ("at most", 1.5, 0.1, "fails"),
        ("at most", 1.0, 0.1, "undecided"),
        ("at least", 40.0, 0.1, "holds"),
        ("at least", -1.5, 0.1, "fails"),
        ("at least", -1.0, 0.1, "undecided"),
        ("at most", math.inf, 0.0, "fails"),
        ("at least", math.inf, 0.0, "holds"),
        ("within", math.nan, 0.0, "not run"),
        ("within", 0.0, math.nan, "undecided"),
    ],
)
def test_the_interval_of_the_difference_is_held_against_the_margin(form, value, stderr, verdict):
    assert decide(form, estimate(0.0), 1.0, estimate(value, stderr)) == verdict


def test_nothing_measured_is_not_run():
    assert decide("within", estimate(0.0), 1.0, None) is Verdict.NOT_RUN


@given(NUMBERS, ERRORS, NUMBERS, st.floats(0, 20), st.sampled_from(FORMS))
def test_a_wider_error_never_turns_a_verdict_into_its_opposite(value, stderr, predicted, margin, form):
    tight = decide(form, estimate(predicted), margin, estimate(value, stderr))
    loose = decide(form, estimate(predicted), margin, estimate(value, 2 * stderr + 0.1))
    assert loose in (tight, Verdict.UNDECIDED)


@given(NUMBERS, ERRORS, NUMBERS, st.floats(0, 20))
def test_within_is_both_one_sided_forms_at_once(value, stderr, predicted, margin):
    arguments = (estimate(predicted), margin, estimate(value, stderr))
    sides = {decide("at most", *arguments), decide("at least", *arguments)}
    both = decide("within", *arguments)
    assert (both is Verdict.HOLDS) == (sides == {Verdict.HOLDS})
    assert (both is Verdict.FAILS) == (Verdict.FAILS in sides)


def test_three_seeds_decide_later_than_a_known_error():
    seeds = mean_estimate([0.0, 0.5, 1.0], unit="nats")
    known = estimate(seeds.value, seeds.stderr)
    margin = seeds.value + 2.5 * seeds.stderr
    assert decide("at most", estimate(0.0), margin, known) is Verdict.HOLDS
    assert decide("at most", estimate(0.0), margin, seeds) is Verdict.UNDECIDED


def test_one_repetition_decides_nothing():
    alone = mean_estimate([0.0], unit="nats")
    assert decide("at most", estimate(0.0), 100.0, alone) is Verdict.UNDECIDED


def test_the_student_interval_covers_nineteen_times_in_twenty(rng):
    draws = rng.normal(size=(4000, 3))
    hits = [low <= 0 <= high for low, high in (mean_estimate(list(d)).interval() for d in draws)]
    error = math.sqrt(0.95 * 0.05 / len(hits))
    assert abs(np.mean(hits) - 0.95) < 4 * error


def test_differences_of_two_means_use_welchs_degrees_of_freedom():
    a, b = mean_estimate([0.0, 1.0, 2.0]), mean_estimate([0.0, 1.0, 2.0])
    assert difference(a, b).dof == pytest.approx(4)
    exact = Estimate(value=0.0)
    assert difference(a, exact).dof == pytest.approx(2)
    with pytest.raises(ValueError, match="one unit"):
        difference(a, Estimate(value=0.0, unit="steps"))


@pytest.mark.parametrize(
    ("measured", "control", "verdict", "reason"),
    [
        (estimate(0.0), estimate(9.0), "holds", ""),
        (estimate(9.0), estimate(9.0), "fails", ""),
        (
            estimate(0.0),
            estimate(0.0),
            "undecided",
            "unable to tell: the control holds too (holds by itself)",
        ),
        (
            estimate(9.0),
            estimate(0.0),
            "undecided",
            "unable to tell: the control holds too (fails by itself)",
        ),
        (estimate(0.0), estimate(1.0, 1.0), "undecided", "unable to tell: the control is too noisy to fail"),
        (estimate(0.0), None, "undecided", "unable to tell: the control was not measured"),
        (estimate(1.0, 1.0), estimate(9.0), "undecided", "the 95% interval reaches across the margin"),
        (None, estimate(9.0), "not run", "not measured"),
    ],
)
def test_a_verdict_stands_only_beside_a_control_that_fails(measured, control, verdict, reason):
    outcome = conclude(check(measured, control))
    assert (outcome.verdict, outcome.reason) == (verdict, reason)


def test_a_margin_that_decides_nothing_and_units_that_differ_are_refused():
    with pytest.raises(ValueError, match="margin must be finite"):
        check(estimate(0.0), None, margin=math.inf)
    with pytest.raises(ValueError, match="compares 'steps' with 'nats'"):
        check(Estimate(value=0.0, unit="steps"), None)


def test_the_document_has_the_published_keys_and_null_for_what_was_not_measured():
    results = Results(
        engine="toy",
        seed=3,
        seconds=1.23456,
        command="c",
        checks=(check(estimate(math.nan), None), check(estimate(0.5, 0.1), estimate(9.0))),
    )
    document = results.document()
    assert list(document) == ["engine", "seed", "seconds", "checks"]
    first, second = document["checks"]
    wanted = ["claim", "reading", "predicted", "measured", "margin", "verdict", "control", "source"]
    assert list(first) == list(second) == wanted
    assert list(second["control"]) == ["what", "measured", "verdict"]
    assert second["measured"] == {"value": 0.5, "stderr": 0.1, "unit": "nats"}
    assert first["control"]["measured"] == {"value": None, "stderr": None, "unit": ""}
    assert first["verdict"] == "not run"
    assert not results.complete


def test_log_units_are_shown_as_factors():
    floors = Estimate(value=math.log(2), stderr=0.0, unit="ln floors")
    assert shown(floors) == "2 floors"
    two = Check(
        claim="dlc",
        reading="r",
        form="at most",
        predicted=floors,
        margin=math.log(1.5),
        measured=None,
        control=Control(what="w", measured=None),
    )
    assert bound(two) == "at most 3 floors"
    assert shown(Estimate(value=math.nan)) == "not measured"
    assert "no interval" in shown(mean_estimate([1.0], unit="nats"))
