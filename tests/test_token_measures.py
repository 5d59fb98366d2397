"""Measures from a foreign trainer's three log-probs: the core's on every library, defined where unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tolerances

from theory.batch import token_batch
from theory.ess import ess_fraction, response_ess
from theory.records import STEP_COLUMNS
from theory.tail import k_hat
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


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_measure_is_the_plain_formula_on_the_tokens_that_count(
    rng: np.random.Generator, runs: bool, dtype: Any
) -> None:
    """Masks of long runs and scattered ones are selected in two ways; a response without tokens is none."""
    d = draws(rng, (60, 64))
    shape = d["mask"].shape
    d["mask"] = np.arange(shape[1]) < rng.integers(0, 65, (60, 1)) if runs else rng.random(shape) < 0.3
    d["mask"][7] = False
    logs = {name: d[name].astype(dtype) for name in ("mu", "pi_s", "pi")}
    got = token_measures(*logs.values(), mask=d["mask"])
    mu, pi_s, pi = (x.astype(np.float64) for x in logs.values())
    lag, w = (pi - pi_s)[d["mask"]], np.exp((pi - pi_s)[d["mask"]])
    summed = np.where(d["mask"], pi - pi_s, 0.0).sum(-1)[d["mask"].any(-1)]
    dev = lag - lag.mean()
    wanted = {
        "ess_token": w.mean() ** 2 / (w**2).mean(),
        "ess_sequence": np.exp(summed).mean() ** 2 / np.exp(2 * summed).mean(),
        "ess_total": np.exp(pi - mu)[d["mask"]].mean() ** 2 / np.exp(2 * (pi - mu))[d["mask"]].mean(),
        "mean_w": w.mean(),
        "discrepancy_rms": np.sqrt(((mu - pi_s)[d["mask"]] ** 2).mean()),
        "lag_rms": np.sqrt((lag**2).mean()),
        "k1": lag.mean(),
        "k2": (dev**2).mean(),
        "k3": (dev**3).mean(),
        "k4": (dev**4).mean() - 3 * (dev**2).mean() ** 2,
        "kl_k3": (w - 1 - lag).mean(),
        "chi_square": ((w - 1) ** 2).mean(),
        "k_hat": float(k_hat(lag)),
    }
    assert got.keys() == wanted.keys()
    # every term of a cumulant or of k3 is below 8
    assert got == pytest.approx(
        wanted, rel=tolerances.library(dtype), abs=tolerances.algebra(8.0, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_keeps_single_precision_and_sums_responses_in_double(
    rng: np.random.Generator, dtype: Any
) -> None:
    pi_s = -1 - rng.random((3, 50_000)).astype(dtype)
    pi = pi_s + rng.normal(0.01, 1e-2, pi_s.shape).astype(dtype)
    batch = token_batch(None, pi_s, pi)
    assert (batch.lag.dtype, batch.response_lag.dtype) == (dtype, np.float64)
    wanted = (pi - pi_s).astype(np.float64).sum(-1)
    np.testing.assert_allclose(batch.response_lag, wanted, rtol=tolerances.library())


def test_an_infinite_ratio_has_an_infinite_lag_and_no_cumulants() -> None:
    logpi_s = np.full((3, 4), -1.0)
    found = {}
    for where in ("pi", "pi_s"):
        d = {"pi_s": logpi_s.copy(), "pi": logpi_s.copy()}
        d[where][1, 2] = -math.inf
        found[where] = token_measures(None, d["pi_s"], d["pi"])
        assert found[where]["lag_rms"] == math.inf
        assert not {"k2", "k3", "k4"} & set(found[where])
    assert found["pi"]["ess_token"] == pytest.approx(11 / 12)
    assert found["pi_s"]["ess_token"] == pytest.approx(1 / 12)
    assert found["pi_s"]["mean_w"] == math.inf
