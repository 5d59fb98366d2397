"""Settings: every field of every class refuses every wrong value it could be given, in one line.

The table is made of the fields themselves: a field added later is covered, or the test says that it is not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wrong_values import LESS_THAN_ANY, hints_of, refuses_every_wrong_value

from real.fp8.recipe import Recipe
from real.fullsize.settings import FullSize
from real.recipe import Recipe as WarmStart
from real.settings import Mini
from real.verl.gate import Gate
from theory import families as fam
from theory.corrections import Correction, correction
from theory.experiment import Experiment, Numerics
from theory.families import Family
from theory.finite_sample import ess_interval
from theory.forecast import forecast
from theory.limits import (
    LARGEST_COUNT,
    LARGEST_REAL,
    SHOWN,
    refuse_choice,
    refuse_count,
    refuse_flag,
    refuse_other,
    refuse_real,
    refuse_share,
    refuse_text,
    shown,
)
from theory.monitor import Monitor, read_batch
from theory.resync import should_resync
from theory.trigger import Trigger
from toy.settings import Bandit, Exit, Sequence, setting_s
from toy.simulate import ensemble
from toy.toggles import Infrastructure

CLASSES: dict[type, dict[str, Any]] = {
    Correction: {"cite": "-"},
    Numerics: {},
    Experiment: {"environment": Sequence(), "correction": correction("dlc"), "lr": 0.1},
    Trigger: {},
    Monitor: {},
    Infrastructure: {},
    Sequence: {},
    Exit: {},
    Bandit: {},
    Mini: {},
    FullSize: {},
    Recipe: {},
    WarmStart: {"steps": 3},
    Gate: {"resync_below": 0.5, "sync_every": 64},
    Family: {"name": "gaussian", "neg_log_ess": abs},
}
"""Settings a user writes, with what their required fields need"""

FIELDS = [
    pytest.param(kind, name, hint, id=f"{kind.__name__}.{name}")
    for kind in CLASSES
    for name, hint in hints_of(kind).items()
]


@pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)
def test_every_wrong_value_of_a_field_is_refused_in_one_line(kind: type, name: str, hint: Any) -> None:
    refuses_every_wrong_value(kind, name, hint, CLASSES[kind])


def test_numbers_of_numpy_are_numbers() -> None:
    """Sweeps write them: `for lr in np.linspace(...)`."""
    made = Experiment(
        environment=Sequence(prompts=np.int64(4), beta=np.float32(2)),  # pyright: ignore[reportArgumentType]
        correction=correction("dlc", high=np.float64(3), resync_below=np.float32(0.5)),
        lr=np.float64(0.1),
        steps=np.int32(3),  # pyright: ignore[reportArgumentType]
    )
    assert made.fingerprint() == made.fingerprint()
    assert Trigger(ess_below=np.float64(0.5)) == Trigger()


def test_an_environment_that_can_change_is_refused() -> None:
    @dataclasses.dataclass
    class Loose:
        arms: int = 2

    for wrong in (Loose(), Sequence):
        with pytest.raises(ValueError, match="must be a frozen dataclass of an engine, got"):
            Experiment(environment=wrong, correction=correction("pg"), lr=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ess": None}, "ess must be a number, got None"),
        ({"ess": "0.5"}, "ess must be a number, got '0.5'"),
        ({"below": "0.5"}, "below must be a number"),
        ({"below": math.nan}, r"below is an ESS share in \[0, 1\], got nan; 0 switches the rule off"),
        ({"below": np.bool_(True)}, "below must be a number"),
        ({"below": 1.5}, r"below is an ESS share in \[0, 1\], got 1.5"),
        ({"steps_since": 1.5}, "steps_since must be a whole number, got 1.5"),
        ({"sync_every": -1}, "sync_every must be >= 0, got -1"),
        ({"sync_every": True}, "sync_every must be a whole number, got True"),
    ],
)
def test_the_resync_rule_refuses_what_is_no_share_and_no_count(options: dict[str, Any], words: str) -> None:
    given_ = {"ess": 0.4, "below": 0.5} | options
    with pytest.raises(ValueError, match=words):
        should_resync(given_.pop("ess"), given_.pop("below"), **given_)


@pytest.mark.parametrize(
    "options", [{"trigger": 0.5}, {"resamples": 2.5}, {"resamples": True}, {"seed": "1"}, {"seed": -1}]
)
def test_reading_a_batch_refuses_what_the_monitor_refuses(options: dict[str, Any]) -> None:
    logs = np.log(np.full((2, 3), 0.5))
    with pytest.raises(ValueError, match=r"got .*; "):
        read_batch(None, logs, logs, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"level": "0.9"},
        {"level": True},
        {"threshold": None},
        {"horizon": math.nan},
        {"horizon": "20"},
        {"paths": 0},
        {"paths": 2.5},
        {"seed": -1},
    ],
)
def test_a_forecast_refuses_options_of_a_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"got .*; "):
        forecast([0.9, 0.8], **options)


@pytest.mark.parametrize("options", [{"level": None}, {"resamples": "9"}, {"resamples": True}, {"seed": 0.5}])
def test_an_interval_refuses_options_of_a_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"got .*; "):
        ess_interval(np.zeros(4), **options)


@pytest.mark.parametrize(
    "make",
    [
        fam.variance_gamma,
        fam.normal_inverse_gaussian,
        fam.cn_gamma,
        fam.cn_inverse_gaussian,
        fam.student_t,
        fam.gaussian().ess,
        lambda x: fam.cn_two_point(x, 3.0),
        lambda x: fam.cn_two_point(0.1, x),
        lambda x: fam.crossing_variance(fam.gaussian(), threshold=x),
        lambda x: fam.crossing_variance(x),
    ],
)
@pytest.mark.parametrize(
    "wrong", [-1.0, math.nan, "1", None, True, [1.0], np.ones(2), pytest.param(LESS_THAN_ANY, id="long")]
)
def test_a_family_of_tails_refuses_what_is_no_number_of_it(make: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"got .*; "):
        make(wrong)


@pytest.mark.parametrize("seeds", [0, -1, 2.0, "3", None, True, math.nan])
def test_an_ensemble_refuses_what_is_no_number_of_seeds(seeds: Any) -> None:
    with pytest.raises(ValueError, match=r"seeds must be .*, got .*; 1 is the smallest"):
        ensemble(setting_s(), seeds=seeds)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=3),
    st.sampled_from([np.bool_(False), np.float32("nan"), np.int8(3), np.zeros((40, 40)), 10**5000, object()]),
)


@given(got=ANYTHING)
def test_each_verb_passes_what_its_rule_allows_and_refuses_all_else_in_one_line(got: Any) -> None:
    whole = isinstance(got, (int, np.integer)) and not isinstance(got, bool)
    number = whole or isinstance(got, (float, np.floating))
    rules = (
        (lambda: refuse_count("n", got, least=1), whole and 1 <= got <= LARGEST_COUNT),
        (lambda: refuse_real("x", got), number and abs(got) <= LARGEST_REAL),
        (lambda: refuse_share("x", got, do="0: never"), number and 0 <= got <= 1),
        (lambda: refuse_flag("f", got), got is True or got is False),
        (lambda: refuse_choice("c", got, ("a", "b")), isinstance(got, str) and got in ("a", "b")),
        (lambda: refuse_text("t", got), isinstance(got, str)),
        (lambda: refuse_other("o", got, list, do="make one"), isinstance(got, list)),
    )
    for verb, allowed in rules:
        if allowed:
            verb()
            continue
        with pytest.raises(ValueError, match=r"got |unknown c") as caught:
            verb()
        assert "\n" not in str(caught.value)
        assert ";" in str(caught.value)
    assert len(shown(got)) <= SHOWN + 3
