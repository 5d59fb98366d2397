"""The split of the mismatch is an identity: per token, in KL and in variance; cumulants are its series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libraries import as_numpy, carry, compiled
from scipy.special import log_softmax, rel_entr
from strategies import Rows, floats, rows
from tolerances import ORDER_MARGIN, algebra, library, order_of

from theory.decomposition import kl, kl_from_cumulants, kl_split, split, variance_split

DTYPES = (np.float64, np.float32)


def mean_under(logp: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Expectation over the last axis, written with probabilities and nothing from theory/."""
    return np.sum(np.exp(logp) * x, axis=-1)


def assert_zero(residual: Any, *magnitudes: Any, dtype: Any) -> None:
    """A sum of K terms, each rounded once or twice, is off by a few eps of its largest terms."""
    np.testing.assert_array_less(np.abs(as_numpy(residual)), algebra(1.0, *magnitudes, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@given(row=rows())
def test_the_two_terms_add_up_to_the_mismatch_of_each_token(xp, dtype, row: Rows):
    logs = [carry(xp, x, dtype) for x in row.logs]
    discrepancy, lag = split(*logs)
    mismatch = logs[0] - logs[2]
    assert_zero(discrepancy + lag - mismatch, *row.logs, dtype=dtype)
    # and of each response: sums over the tokens
    whole = xp.sum(discrepancy, axis=-1) + xp.sum(lag, axis=-1) - xp.sum(mismatch, axis=-1)
    assert_zero(whole, *(np.sum(np.abs(x), axis=-1) for x in row.logs), dtype=dtype)


@given(row=rows())
def test_the_terms_are_the_engine_at_equal_weights_and_the_trainer_since(row: Rows):
    discrepancy, lag = split(*row.logs)
    np.testing.assert_array_equal(discrepancy, row.logmu - row.logpi_s)
    np.testing.assert_array_equal(lag, row.logpi_s - row.logpi)


@given(z=floats((3, 5), 30.0), other=floats((3, 5), 30.0))
def test_no_engine_error_means_no_discrepancy_and_no_movement_means_no_lag(xp, z, other):
    same, moved = (carry(xp, log_softmax(x, axis=-1)) for x in (z, other))
    assert not np.any(as_numpy(split(same, same, moved).discrepancy))
    assert not np.any(as_numpy(split(moved, same, same).lag))
    parts = kl_split(same, same, moved)
    assert not np.any(as_numpy(parts.discrepancy))
    assert not np.any(as_numpy(parts.cross))
    assert not np.any(as_numpy(kl_split(moved, same, same).lag))


@pytest.mark.parametrize("dtype", DTYPES)
@given(row=rows())
def test_means_under_the_engine_are_kl_divergences(xp, dtype, row: Rows):
    """E_mu e = KL(mu||pi), E_mu d = KL(mu||pi_s), E_mu l = their difference; SciPy's rel_entr as oracle."""
    parts = compiled(xp, kl_split)(*(carry(xp, x, dtype) for x in row.logs))
    mu, pi_s, pi = (np.exp(x) for x in row.logs)
    discrepancy, lag = split(*row.logs)
    # inputs are rounded to the dtype: each log moves by eps * |log|
    off: dict[str, Any] = {"rtol": library(dtype), "atol": algebra(*row.logs, dtype=dtype)}
    np.testing.assert_allclose(as_numpy(parts.total), rel_entr(mu, pi).sum(-1), **off)
    np.testing.assert_allclose(as_numpy(parts.discrepancy), rel_entr(mu, pi_s).sum(-1), **off)
    np.testing.assert_allclose(as_numpy(parts.lag), rel_entr(pi_s, pi).sum(-1), **off)
    np.testing.assert_allclose(as_numpy(parts.discrepancy), mean_under(row.logmu, discrepancy), **off)
    moved = as_numpy(parts.total - parts.discrepancy)
    np.testing.assert_allclose(moved, mean_under(row.logmu, lag), rtol=0, atol=off["atol"])


@pytest.mark.parametrize("dtype", DTYPES)
@given(row=rows())
def test_kl_splits_into_three_points_and_a_cross_term(xp, dtype, row: Rows):
    total, discrepancy, lag, cross = compiled(xp, kl_split)(*(carry(xp, x, dtype) for x in row.logs))
    # the identity is algebra on whatever numbers stand for the logs: no normalisation is used
    assert_zero(total - (discrepancy + lag + cross), *row.logs, dtype=dtype)
    mu, pi_s = np.exp(row.logmu), np.exp(row.logpi_s)
    expected = np.sum((mu - pi_s) * (row.logpi_s - row.logpi), axis=-1)
    np.testing.assert_allclose(
        as_numpy(cross), expected, rtol=library(dtype), atol=algebra(*row.logs, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@given(row=rows())
def test_variance_splits_with_twice_the_covariance(xp, dtype, row: Rows):
    total, discrepancy, lag, covariance = compiled(xp, variance_split)(
        *(carry(xp, x, dtype) for x in row.logs)
    )
    largest = [np.max(np.abs(x)) ** 2 for x in row.logs]
    assert_zero(total - (discrepancy + lag + covariance), *largest, dtype=dtype)
    d, moved = split(*row.logs)
    off: dict[str, Any] = {"rtol": library(dtype), "atol": algebra(*largest, dtype=dtype)}
    for got, x in ((total, d + moved), (discrepancy, d), (lag, moved)):
        centered = x - mean_under(row.logmu, x)[..., None]
        np.testing.assert_allclose(as_numpy(got), mean_under(row.logmu, centered**2), **off)


@given(row=rows(), shift=st.floats(-30, 30, allow_subnormal=False))
def test_adding_a_constant_to_logits_changes_nothing(row: Rows, shift: float):
    moved = Rows(row.z_mu + shift, row.z_s - shift, row.z + 2 * shift)
    # a logit of 30 + 60 is rounded to eps * 90 before the softmax removes the shift
    off = algebra(row.z_mu, row.z_s, row.z, 4 * shift)
    for before, after in zip(kl_split(*row.logs), kl_split(*moved.logs), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=off)


@given(row=rows(), order=st.permutations(range(5)))
def test_renaming_the_actions_changes_nothing(row: Rows, order: list[int]):
    chosen = [i for i in order if i < row.z.shape[-1]]
    chosen += [i for i in range(row.z.shape[-1]) if i not in chosen]
    renamed = Rows(*(z[..., chosen] for z in row))
    for whole in (kl_split, variance_split):
        for before, after in zip(whole(*row.logs), whole(*renamed.logs), strict=True):
            np.testing.assert_allclose(
                after, before, rtol=0, atol=algebra(*(np.abs(x).max() ** 2 for x in row.logs))
            )
    for before, after in zip(split(*row.logs), split(*renamed.logs), strict=True):
        np.testing.assert_allclose(after, before[..., chosen], rtol=0, atol=algebra(*row.logs))


def test_an_action_the_engine_cannot_sample_adds_nothing(xp):
    """Top-p gives mu = 0 there, log -inf: the divergences stay finite and no warning is raised."""
    logmu = carry(xp, np.log([0.5, 0.5, 1.0]) + np.array([0.0, 0.0, -np.inf]))
    logpi_s = carry(xp, np.log([0.25, 0.25, 0.5]))
    logpi = carry(xp, np.log([0.25, 0.5, 0.25]))
    parts = kl_split(logmu, logpi_s, logpi)
    assert float(parts.discrepancy) == pytest.approx(np.log(2), rel=library())
    assert float(parts.total) == pytest.approx(0.5 * np.log(2), rel=library())
    assert float(parts.total - parts.discrepancy - parts.lag - parts.cross) == pytest.approx(
        0, abs=algebra(2)
    )
    variance = variance_split(logmu, logpi_s, logpi)
    assert float(variance.total) == pytest.approx((np.log(2) / 2) ** 2, rel=library())
    assert float(variance.discrepancy) == pytest.approx(0, abs=algebra(1))
    # an action none can sample adds nothing; one that only pi cannot sample costs infinity
    assert float(kl(logmu, logmu)) == 0
    for nothing in (*kl_split(logmu, logmu, logmu), *variance_split(logmu, logmu, logmu)):
        assert float(nothing) == 0
    assert float(kl(logpi, logmu)) == float("inf")


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"one shape, got mu \(3,\), pi_s \(1,\), pi \(3,\)"):
        split(np.zeros(3), np.zeros(1), np.zeros(3))


def _small(rng: np.random.Generator, step: float) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Rows whose engine error and lag are `step` times fixed directions."""
    z_s, delta, moved = rng.normal(size=(3, 6))
    return Rows(z_s + step * delta, z_s, z_s + step * moved), delta * step, moved * step


STEPS = 2.0 ** -np.arange(3, 7)


def test_the_cross_term_is_minus_the_fisher_product_to_third_order():
    errors = []
    for step in STEPS:
        row, delta, moved = _small(np.random.default_rng(3), step)
        p = np.exp(row.logpi_s)
        fisher = np.diag(p) - np.outer(p, p)
        errors.append(abs(kl_split(*row.logs).cross + delta @ fisher @ moved))
    assert order_of(errors, STEPS) == pytest.approx(3, abs=ORDER_MARGIN)


def test_the_cumulants_give_the_kl_to_fifth_order():
    errors = []
    for step in STEPS:
        row, _, _ = _small(np.random.default_rng(3), step)
        e = row.logmu - row.logpi
        dev = e - mean_under(row.logmu, e)
        m2, m3, m4 = (mean_under(row.logmu, dev**k) for k in (2, 3, 4))
        errors.append(abs(kl(row.logmu, row.logpi) - kl_from_cumulants(m2, m3, m4 - 3 * m2**2)))
    assert order_of(errors, STEPS) == pytest.approx(5, abs=ORDER_MARGIN)
