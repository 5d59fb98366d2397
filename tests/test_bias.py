"""What a correction recovers on average, what it leaves, and to which order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from enumeration import Prefix, expected_update, prefix, softmax, updates
from formulas import CLIPS, assert_same, policy_gradient, prefix_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import Rows, floats, rows
from tolerances import ORDER_MARGIN, algebra, order_of

from theory.corrections import CORRECTIONS, Correction


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_importance_sampling_recovers_the_gradient_at_pi(row: Rows, advantage):
    at = prefix_of(row, advantage)
    largest = float((at.pi / at.mu).max())
    assert_same(expected_update(CORRECTIONS["is"], at), policy_gradient(at.pi, advantage), largest * 3)


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_the_lag_ratio_recovers_it_when_the_engine_is_exact(row: Rows, advantage):
    at = prefix_of(Rows(row.z_s, row.z_s, row.z), advantage)
    largest = float((at.pi / at.mu).max())
    for center in ("none", "matched"):
        rule = Correction(cite="-", ratio="lag", center=center)
        assert_same(expected_update(rule, at), policy_gradient(at.pi, advantage), largest * 3)


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_score_centring_is_the_on_policy_gradient_at_the_engine(row: Rows, advantage):
    """Whatever pi is: with a stale sampler it keeps pushing where the sync point would have gone."""
    at = prefix_of(row, advantage)
    assert_same(expected_update(CORRECTIONS["sc"], at), policy_gradient(at.mu, advantage), 3.0)


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_centring_removes_exactly_the_drift_of_the_mean_advantage(row: Rows, advantage):
    at = prefix_of(row, advantage)
    removed = expected_update(CORRECTIONS["pg"], at) - expected_update(CORRECTIONS["sc"], at)
    assert_same(removed, (at.mu @ advantage) * (at.mu - at.pi), 3.0)


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_the_matched_centre_gives_z_times_the_gradient_at_qhat(row: Rows, advantage):
    """With mu = softmax(z_s + delta), qhat is softmax(z + delta): stale + noisy becomes synced + noisy."""
    at = prefix_of(row, advantage)
    q = at.mu * at.pi / at.pi_s
    qhat = softmax(row.z + (row.z_mu - row.z_s))
    np.testing.assert_allclose(q / q.sum(), qhat, rtol=0, atol=algebra(1.0, row.z, row.z_s, row.z_mu))
    largest = max(1.0, float((at.pi / at.pi_s).max()), float(q.sum())) * (1 + np.abs(row.z).max())
    assert_same(
        expected_update(CORRECTIONS["is-sc"], at), q.sum() * policy_gradient(qhat, advantage), largest * 3
    )


@given(row=rows(shapes=((6,),), furthest=4.0), advantage=floats((6,), 3.0), baseline=st.floats(-3, 3))
@pytest.mark.parametrize("clip", ["none", "trunc2", "mask"])
def test_a_matched_centre_does_not_care_about_the_baseline(clip, row: Rows, advantage, baseline):
    """With the clip's own row, that is: the drift a clip adds is centred away with the rest."""
    rule = Correction(cite="-", ratio="lag", center="matched", **CLIPS[clip])
    before = expected_update(rule, prefix_of(row, advantage))
    after = expected_update(rule, prefix_of(row, advantage + baseline))
    largest = max(1.0, float(np.exp(row.logpi - row.logpi_s).max()))
    assert_same(after, before, largest * 6)


def test_other_centres_do_care_about_the_baseline():
    """The control of the test above: not so for a clip without centre or with another row's centre."""
    at = prefix(np.random.default_rng(1))
    moved = at._replace(advantage=at.advantage + 1)
    for rule in (
        Correction(cite="-", ratio="lag", **CLIPS["trunc2"]),
        Correction(cite="-", ratio="lag", center="numerics", **CLIPS["trunc2"]),
        Correction(cite="-", ratio="lag", center="matched", **CLIPS["ppo"]),
    ):
        gap = np.abs(expected_update(rule, moved) - expected_update(rule, at)).max()
        assert gap > 1e3 * algebra(1.0)


@given(row=rows(shapes=((6,),), furthest=8.0), advantage=floats((6,), 3.0))
def test_the_numerics_centre_equals_form_i_where_nothing_is_clipped(row: Rows, advantage):
    """E_{pi_s}[w psi] = 0 for w = pi/pi_s, so subtracting it changes nothing."""
    at = prefix_of(row, advantage)
    got, expected = (
        expected_update(Correction(cite="-", ratio="lag", center=c), at) for c in ("numerics", "form-i")
    )
    assert_same(got, expected, 3.0 * max(1.0, float((at.pi / at.pi_s).max())))


def test_an_exact_engine_without_lag_makes_every_correction_the_policy_gradient():
    at = prefix(np.random.default_rng(0))
    same = Prefix(at.pi, at.pi, at.pi, at.pi, at.advantage)
    for rule in CORRECTIONS.values():
        got = expected_update(rule, same)
        assert_same(got, policy_gradient(at.pi, at.advantage))


@given(reward=floats((4,), 2.0), chosen=st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_on_a_shared_prefix_a_group_baseline_makes_pg_and_sc_one(reward, chosen):
    """Sample by sample, not only on average: sum_i A_i (mu - pi) is 0 (the lemma of claim centering)."""
    at = prefix(np.random.default_rng(0))
    advantage = reward - reward.mean()
    batch = {}
    for name in ("pg", "sc"):
        per_draw = updates(CORRECTIONS[name], at._replace(advantage=np.ones(6)))
        batch[name] = sum(a * per_draw[i] for a, i in zip(advantage, chosen, strict=True))
    assert_same(batch["pg"], np.asarray(batch["sc"]), 4 * np.abs(reward))


STEPS = 2.0 ** -np.arange(3, 7)


def _bias(rule: Correction, lag: float, leading: Callable[..., np.ndarray]) -> list[float]:
    """Largest remainder of the bias after its leading term, for shrinking engine errors."""
    z_s, direction, moved, advantage = np.random.default_rng(7).normal(size=(4, 5))
    advantage = advantage + 0.5
    p_s, p = softmax(z_s), softmax(z_s + lag * moved)
    out = []
    for step in STEPS:
        delta = step * direction
        at = Prefix(softmax(z_s + delta), p_s, p, p, advantage)
        bias = expected_update(rule, at) - policy_gradient(p, advantage)
        out.append(float(np.abs(bias - leading(p, p_s, advantage, delta)).max()))
    return out


def _hessian(p: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    v = p * (advantage - p @ advantage)
    return np.diag(v) - np.outer(p, v) - np.outer(v, p)


def _fisher(p: np.ndarray) -> np.ndarray:
    return np.diag(p) - np.outer(p, p)


def _nothing(p: np.ndarray, p_s: np.ndarray, advantage: np.ndarray, delta: np.ndarray) -> np.ndarray:
    return np.zeros_like(p)


def _left(p: np.ndarray, p_s: np.ndarray, advantage: np.ndarray, delta: np.ndarray) -> np.ndarray:
    return _hessian(p, advantage) @ delta


def _left_and_drift(p: np.ndarray, p_s: np.ndarray, advantage: np.ndarray, delta: np.ndarray) -> np.ndarray:
    return _left(p, p_s, advantage, delta) + (p @ advantage) * (_fisher(p) @ delta)


def _matched(p: np.ndarray, p_s: np.ndarray, advantage: np.ndarray, delta: np.ndarray) -> np.ndarray:
    scale = p @ (delta - p_s @ delta)
    return _left(p, p_s, advantage, delta) + scale * policy_gradient(p, advantage)


def _form_i(p: np.ndarray, p_s: np.ndarray, advantage: np.ndarray, delta: np.ndarray) -> np.ndarray:
    grown = (p @ advantage) - (p_s @ advantage)
    return _matched(p, p_s, advantage, delta) + grown * (_fisher(p) @ delta)


@pytest.mark.parametrize(
    ("rule", "lag", "leading", "order"),
    [
        (CORRECTIONS["pg"], 0.0, _nothing, 1),
        (CORRECTIONS["pg"], 0.0, _left_and_drift, 2),
        (CORRECTIONS["pg"], 0.0, _left, 1),  # without the drift term a first-order remainder stays
        (CORRECTIONS["sc"], 0.0, _nothing, 1),
        (CORRECTIONS["sc"], 0.0, _left, 2),
        (CORRECTIONS["is-sc"], 0.8, _matched, 2),
        (Correction(cite="-", ratio="lag", center="form-i"), 0.8, _form_i, 2),
        (Correction(cite="-", ratio="lag", center="form-i"), 0.8, _matched, 1),
    ],
)
def test_the_bias_of_engine_error_has_its_leading_terms(rule, lag, leading, order):
    """PG: H delta + Abar F delta. Centred: H delta, at any lag; form (i) keeps a term that grows with it."""
    assert order_of(_bias(rule, lag, leading), STEPS) == pytest.approx(order, abs=ORDER_MARGIN)


def test_the_joint_moment_is_what_centring_leaves():
    """(H delta)_a = E_pi[(A - Abar)(delta - dbar)(e_a - pi)]: no vector of the prefix alone can remove it."""
    z, delta, advantage = np.random.default_rng(2).normal(size=(3, 5))
    p = softmax(z)
    joint = sum(
        p[b] * (advantage[b] - p @ advantage) * (delta[b] - p @ delta) * (np.eye(5)[b] - p) for b in range(5)
    )
    assert_same(_hessian(p, advantage) @ delta, np.asarray(joint), 3.0)
