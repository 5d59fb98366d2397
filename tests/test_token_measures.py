"""Measures from a foreign trainer's three log-probs: the core's on every library, defined where unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tolerances

from theory.ess import ess_fraction, response_ess
from theory.records import STEP_COLUMNS
from theory.token_measures import token_measures


def draws(rng: np.random.Generator, shape: tuple[int, int] = (40, 7)) -> dict[str, np.ndarray]:
    pi_s = rng.normal(-5.0, 0.5, shape)
    mask = rng.random(shape) < 0.8
    return {
        "mu": pi_s + rng.normal(0, 0.05, shape),
        "pi_s": pi_s,
        "pi": pi_s + rng.normal(0, 0.7, shape),
        "mask": mask,
    }


def test_the_measures_are_those_of_the_core_and_have_defined_names(rng: np.random.Generator) -> None:
    d = draws(rng)
    got = token_measures(d["mu"], d["pi_s"], d["pi"], mask=d["mask"])
    log_w = (d["pi"] - d["pi_s"])[d["mask"]]
    assert set(got) <= set(STEP_COLUMNS)
    assert got["ess_token"] == float(ess_fraction(log_w))
    assert got["ess_sequence"] == float(response_ess(d["pi"] - d["pi_s"], mask=d["mask"]))
    assert got["k2"] == pytest.approx(np.var(log_w), rel=tolerances.library())
    assert got["discrepancy_rms"] == pytest.approx(np.std((d["mu"] - d["pi_s"])[d["mask"]]), rel=0.05)
    assert got["lag_rms"] > 10 * got["discrepancy_rms"], "the control: numerics and lag are not mixed up"


def test_every_library_gives_the_same_numbers(rng: np.random.Generator, xp: Any) -> None:
    d = draws(rng)
    arrays = {name: xp.asarray(value) for name, value in d.items()}
    got = token_measures(arrays["mu"], arrays["pi_s"], arrays["pi"], mask=arrays["mask"])
    wanted = token_measures(d["mu"], d["pi_s"], d["pi"], mask=d["mask"])
    assert got == pytest.approx(wanted, rel=tolerances.library())


def test_what_stands_at_masked_tokens_never_matters(rng: np.random.Generator) -> None:
    d = draws(rng)
    wanted = token_measures(d["mu"], d["pi_s"], d["pi"], mask=d["mask"])
    for name in ("mu", "pi_s", "pi"):
        d[name] = np.where(d["mask"], d[name], math.nan)
    assert token_measures(d["mu"], d["pi_s"], d["pi"], mask=d["mask"]) == wanted


def test_what_was_not_reported_is_absent_and_not_zero(rng: np.random.Generator) -> None:
    d = draws(rng)
    without = token_measures(None, d["pi_s"], d["pi"], mask=d["mask"])
    assert not {"discrepancy_rms", "ess_total"} & set(without)
    d["mu"][np.nonzero(d["mask"])[0][0], np.nonzero(d["mask"])[1][0]] = math.nan
    assert token_measures(d["mu"], d["pi_s"], d["pi"], mask=d["mask"]) == without
    assert token_measures(d["mu"], d["pi_s"], d["pi"], mask=np.zeros_like(d["mask"])) == {}
