"""Every correction's mean update over all actions is its formula, written again from probabilities.

Agreement of two engines cannot find a swapped ratio, since both share the core: this can.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from enumeration import Prefix, expected_update, prefix, softmax
from formulas import BY_BATCH, BY_NAME, CLIPS, assert_same, formula, plain, ppo_weight

from theory.centering import coefficients
from theory.corrections import CORRECTIONS, Correction, Logps, correction
from theory.gradient import expected_gradient

SEEDS = range(5)


def test_every_correction_of_the_table_has_its_formula_here():
    assert set(BY_NAME) | BY_BATCH == set(CORRECTIONS)


@pytest.mark.parametrize("spread", [0.3, 2.5], ids=["near", "far"])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_each_row_of_the_table_follows_its_formula(name, spread):
    for seed in SEEDS:
        at = prefix(np.random.default_rng(seed), error=spread, lag=spread)
        # far ratios reach e^7: the sum is as large as its largest w A
        largest = max(1.0, float((at.pi / at.mu).max()))
        assert_same(expected_update(CORRECTIONS[name], at), BY_NAME[name](at), largest)
        assert_same(expected_gradient(CORRECTIONS[name], at.logs, at.advantage), BY_NAME[name](at), largest)


@pytest.mark.parametrize("ref", ["before-batch", "synced", "engine"])
def test_ppo_takes_its_ratio_to_the_reference_asked_for(ref):
    for seed in SEEDS:
        at = prefix(np.random.default_rng(seed))
        reference = {"before-batch": at.pi_old, "synced": at.pi_s, "engine": at.mu}[ref]
        rule = correction("ppo", ppo_ref=ref)
        expected = plain(lambda at, a, reference=reference: ppo_weight(at, a, at.pi[a] / reference[a]))(at)
        assert_same(expected_update(rule, at), expected)


def test_ppo_on_the_first_update_of_a_batch_is_plain_policy_gradient():
    at = prefix(np.random.default_rng(0))
    first = Logps(*at.logs[:3])  # no pi_old: the batch is one update
    got = coefficients(correction("ppo", ppo_ref="before-batch"), first, at.advantage)
    np.testing.assert_array_equal(got.token, coefficients(CORRECTIONS["pg"], first, at.advantage).token)
    assert got.row is None


@pytest.mark.parametrize("center", ["none", "matched", "form-i", "numerics"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("ratio", ["none", "lag", "total", "batch"])
def test_every_ratio_clip_and_centre_follows_the_one_formula(ratio, clip, center):
    for clip_on in (None, "lag", "total", "batch"):
        rule = Correction(cite="-", ratio=ratio, center=center, clip_on=clip_on, **CLIPS[clip])
        for seed in SEEDS:
            at = prefix(np.random.default_rng(seed), error=1.2, lag=4.0)
            largest = max(1.0, float((at.pi / at.mu).max()))
            assert_same(expected_update(rule, at), formula(rule, at), largest)


@pytest.mark.parametrize("clip", [c for c in CLIPS if c != "none"])
def test_the_clips_do_bind_in_these_tests(clip):
    """Otherwise the test above would say nothing about them."""
    bound = 0
    for seed in SEEDS:
        at = prefix(np.random.default_rng(seed), error=1.2, lag=4.0)
        with_clip = Correction(cite="-", ratio="lag", center="matched", **CLIPS[clip])
        without = Correction(cite="-", ratio="lag", center="matched")
        bound += not np.allclose(expected_update(with_clip, at), expected_update(without, at))
    assert bound > 0


def _numeric_gradient(objective: Callable[[np.ndarray], float], z: np.ndarray) -> np.ndarray:
    """Central differences: error h^2 of the third derivative plus eps / h."""
    h = 1e-5
    steps = np.eye(len(z)) * h
    return np.array([(objective(z + s) - objective(z - s)) / (2 * h) for s in steps])


DIFFERENCE = 1e-8
"""h^2 = 1e-10 times third derivatives below ~50, and eps / h = 2e-11 times values below 50"""


@pytest.mark.parametrize("dual", [None, 1.5])
def test_ppo_is_the_gradient_of_its_clipped_objective(dual):
    """E_mu max(min(r A, clip(r) A), dual A if A < 0), as published, differentiated by differences."""
    rule = Correction(cite="-", ratio="batch", clip="ppo", low=0.8, high=1.2, dual=dual)
    for seed in SEEDS:
        at = prefix(np.random.default_rng(seed))

        def objective(z: np.ndarray, at: Prefix = at) -> float:
            r = softmax(z) / at.pi_old
            value = np.minimum(r * at.advantage, np.clip(r, 0.8, 1.2) * at.advantage)
            if dual is not None:
                value = np.where(at.advantage < 0, np.maximum(value, dual * at.advantage), value)
            return float(at.mu @ value)

        expected = _numeric_gradient(objective, np.log(at.pi))
        np.testing.assert_allclose(expected_update(rule, at), expected, rtol=0, atol=DIFFERENCE)


def test_decoupled_ppo_is_the_gradient_of_its_objective():
    """E_mu (pi_old/mu) min(r A, clip(r) A), r = pi/pi_old: the weight corrects, the clip bounds the step."""
    for seed in SEEDS:
        at = prefix(np.random.default_rng(seed))

        def objective(z: np.ndarray, at: Prefix = at) -> float:
            r = softmax(z) / at.pi_old
            return float(at.pi_old @ np.minimum(r * at.advantage, np.clip(r, 0.8, 1.2) * at.advantage))

        expected = _numeric_gradient(objective, np.log(at.pi))
        np.testing.assert_allclose(
            expected_update(CORRECTIONS["decoupled-ppo"], at), expected, rtol=0, atol=DIFFERENCE
        )
