"""`check theory`: laws hold beside controls that fail, and claims are chosen by name."""

from __future__ import annotations

import importlib

import pytest

from validation.check import Verdict, conclude
from validation.claims import CLAIMS
from validation.closed_forms import LAWS, checks_of, selected


@pytest.mark.parametrize("module", ["loops", "biases", "exits", "toggles", "excesses"])
def test_exact_laws_hold_and_their_controls_fail(module):
    checks = importlib.import_module(f"validation.laws.{module}").checks(0)
    assert {c.claim for c in checks} == LAWS[module]
    for check in checks:
        outcome = conclude(check)
        assert outcome.verdict is Verdict.HOLDS, check.reading
        assert outcome.control is Verdict.FAILS, check.reading


def test_another_seed_draws_other_numbers_and_comes_to_the_same_verdict():
    first, second = (checks_of(["centering"], seed=seed) for seed in (0, 1))
    assert any(a.measured != b.measured for a, b in zip(first, second, strict=True))
    assert all(conclude(c).verdict is Verdict.HOLDS for c in second)


def test_checks_come_in_the_order_of_the_claims_and_only_those_asked_for():
    found = [c.claim for c in checks_of(["invisible", "feedback"], seed=0)]
    assert set(found) == {"invisible", "feedback"}
    order = list(CLAIMS)
    assert found == sorted(found, key=order.index)


def test_claims_are_selected_by_name_and_wrong_names_say_what_there_is():
    everything = selected([])
    assert {"feedback", "infra-top-p", "monitor"} <= set(everything)
    assert selected(["monitor", "excess"]) == ["excess", "monitor"]
    with pytest.raises(ValueError, match="unknown claim 'exces'; known: split"):
        selected(["exces"])
    with pytest.raises(ValueError, match="'rank' has no closed form; those that have"):
        selected(["rank"])
