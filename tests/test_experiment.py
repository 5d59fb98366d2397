"""An experiment's name is its settings; what no engine could run is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.corrections import CORRECTIONS, Correction, correction
from theory.experiment import Experiment, Numerics


@dataclasses.dataclass(frozen=True)
class Bandit:
    """A stand-in for an engine's environment."""

    arms: int = 4
    beta: float = 1.0
    shape: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Another, with the same fields."""

    arms: int = 4
    beta: float = 1.0
    shape: tuple[int, ...] = (1, 2)


def experiment(**changes: Any) -> Experiment:
    """The smallest valid experiment, changed."""
    base: dict[str, Any] = {"environment": Bandit(), "correction": CORRECTIONS["pg"], "lr": 0.1}
    return Experiment(**(base | changes))


CHOICES: dict[str, list[Any]] = {
    "environment": [Bandit(), Bandit(arms=5), Bandit(beta=2.0), Bandit(shape=(2, 1)), Chain()],
    "correction": [CORRECTIONS["dlc"], CORRECTIONS["is"], correction("dlc", high=2.0), correction("tis")],
    "lr": [0.1, 0.2, 1, 0],
    "steps": [40, 41],
    "prompts": [64, 8],
    "samples": [8, 64],
    "baseline": ["group", "none", "global", "group-std"],
    "sync_every": [1, 64],
    "numerics": [
        Numerics(),
        Numerics(kind="gaussian", scale=0.5),
        Numerics(kind="gaussian", scale=0.5, fresh=True),
        Numerics(kind="laplace", scale=0.5),
        Numerics(mantissa_bits=2),
    ],
    "minibatches": [1, 2],
    "seed": [0, 1],
}


@given(a=st.fixed_dictionaries({k: st.sampled_from(v) for k, v in CHOICES.items()}), data=st.data())
def test_fingerprints_are_equal_if_and_only_if_the_settings_are(a, data):
    changed = data.draw(st.sampled_from([*CHOICES, None]))
    b = dict(a) if changed is None else a | {changed: data.draw(st.sampled_from(CHOICES[changed]))}
    one, other = Experiment(**a), Experiment(**b)
    assert (one.fingerprint() == other.fingerprint()) is (one == other)
    assert len({one, other}) == (1 if one == other else 2)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Correction) if f.name != "cite"])
def test_every_field_of_a_correction_is_part_of_the_name(field):
    changes: dict[str, Any] = {
        "ratio": "lag", "level": "sequence", "clip": "mask", "clip_on": "batch", "low": 0.5, "high": 7.0,
        "dual": 3.0, "center": "matched", "lr_power": 0.5, "resync_below": 0.4, "resync_level": "sequence",
    }  # fmt: skip
    before: dict[str, Any] = {"high": 2.0}
    after = before | {field: changes[field]}
    plain, changed = (experiment(correction=correction("pg", **c)) for c in (before, after))
    assert changed.fingerprint() != plain.fingerprint()


def test_equal_numbers_are_one_setting_however_they_are_written():
    plain = experiment(lr=1, environment=Bandit(beta=2))
    spellings: list[Any] = [(1.0, 2.0), (np.float64(1), np.float32(2)), (np.int64(1), 2)]
    for lr, beta in spellings:
        assert experiment(lr=lr, environment=Bandit(beta=beta)) == plain
        assert experiment(lr=lr, environment=Bandit(beta=beta)).fingerprint() == plain.fingerprint()
    assert experiment(lr=1.5).fingerprint() != plain.fingerprint()


def test_the_name_is_the_same_in_another_process():
    code = (
        "from theory.experiment import Experiment, Numerics; from theory.corrections import CORRECTIONS;"
        "print(Experiment(environment=Numerics(), correction=CORRECTIONS['dlc'], lr=.1).fingerprint())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    mine = experiment(environment=Numerics(), correction=CORRECTIONS["dlc"]).fingerprint()
    assert shown.strip() == mine
    assert len(mine) == 12
    assert set(mine) <= set("0123456789abcdef")


def test_settings_become_plain_json_with_the_names_of_their_classes():
    plain = experiment(correction=CORRECTIONS["is"], numerics=Numerics(kind="laplace", scale=0.25)).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["environment"] == {"kind_of": "Bandit", "arms": 4, "beta": 1, "shape": [1, 2]}
    assert plain["numerics"]["kind_of"] == "Numerics"
    assert plain["numerics"]["kind"] == "laplace"
    assert plain["correction"]["high"] == "inf"  # JSON has no infinity
    assert set(plain) == {f.name for f in dataclasses.fields(Experiment)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: experiment(sync_every=0), "sync_every must be >= 1, got 0; 1 is the smallest setting"),
        (lambda: experiment(steps=0), "steps must be >= 1, got 0"),
        (lambda: experiment(prompts=-3), "prompts must be >= 1, got -3"),
        (lambda: experiment(samples=0), "samples must be >= 1, got 0"),
        (lambda: experiment(minibatches=0), "minibatches must be >= 1, got 0"),
        (lambda: experiment(lr=-0.1), "lr must be finite and >= 0, got -0.1"),
        (lambda: experiment(lr=math.inf), "lr must be finite and >= 0, got inf"),
        (lambda: experiment(lr=math.nan), "lr must be finite and >= 0, got nan"),
        (
            lambda: experiment(baseline="rloo"),
            "unknown baseline 'rloo'; known: none, global, group, group-std, off-policy-optimal",
        ),
        (lambda: Numerics(kind="fp4"), "unknown numerics 'fp4'; known: exact, gaussian, laplace, student-t"),  # pyright: ignore[reportArgumentType]
        (lambda: Numerics(scale=-1.0), "scale of the numerics must be finite and >= 0, got -1.0"),
        (lambda: Numerics(scale=math.nan), "scale of the numerics must be finite and >= 0, got nan"),
    ],
)
def test_what_no_engine_could_run_is_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_an_experiment_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment().lr = 1.0  # pyright: ignore[reportAttributeAccessIssue]
