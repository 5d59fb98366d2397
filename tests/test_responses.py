"""Ratios over whole responses and over the batch: every response of two tokens, one of which ends early."""

from __future__ import annotations

import math

import numpy as np
import pytest
from enumeration import Prefix, Tree, expected_tree_update, expected_update, prefix, responses, tree
from formulas import BY_NAME, CLIPS, assert_same, clipped
from hypothesis import given
from hypothesis import strategies as st
from tolerances import algebra

from theory.centering import coefficients
from theory.corrections import CORRECTIONS, Correction, Logps, correction

SEEDS = range(5)


def tree_ratio(t: Tree, name: str, a: int, b: int | None, step: int) -> float:
    """Token ratio at one step of a response."""
    if name == "none":
        return 1.0
    reference = {"lag": t.pi_s, "total": t.mu, "batch": t.pi_old}[name]
    if step == 0:
        return float(t.pi[0][a] / reference[0][a])
    assert b is not None
    return float(t.pi[1][a, b] / reference[1][a, b])


def tree_formula(rule: Correction, t: Tree) -> np.ndarray:
    """Mean update over all responses for an uncentred rule at any level."""
    size = len(t.ending)
    out = np.zeros((size + 1, size))
    for a, b in responses(t):
        tokens = [a] if b is None else [a, b]
        probability = t.mu[0][a] * (1.0 if b is None else t.mu[1][a, b])
        gain = t.advantage[a, b or 0]

        def level(name: str, step: int, a: int = a, b: int | None = b, tokens: list[int] = tokens) -> float:
            each = [tree_ratio(t, name, a, b, s) for s in range(len(tokens))]
            if rule.level == "token":
                return each[step]
            whole = math.prod(each)
            return whole if rule.level == "sequence" else whole ** (1 / len(tokens))

        for step, action in enumerate(tokens):
            wc = clipped(rule, level(rule.ratio, step), level(rule.clip_on or rule.ratio, step), gain)
            pi = t.pi[0] if step == 0 else t.pi[1][a]
            out[0 if step == 0 else 1 + a] += probability * gain * wc * (np.eye(size)[action] - pi)
    return out


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("ratio", ["lag", "total", "batch"])
def test_ratios_of_whole_responses_follow_the_formula(ratio, clip, level):
    for clip_on in (None, "batch"):
        rule = Correction(cite="-", ratio=ratio, level=level, clip_on=clip_on, **CLIPS[clip])
        for seed in SEEDS[:2]:
            t = tree(np.random.default_rng(seed))
            assert_same(expected_tree_update(rule, t), tree_formula(rule, t), 10.0)


def on_policy_tree_gradient(t: Tree) -> np.ndarray:
    """Exact gradient of the mean advantage in all logits, from values and not from scores."""
    root, after = t.pi
    value = np.where(t.ending, t.advantage[:, 0], (after * t.advantage).sum(-1))
    size = len(root)
    out = np.zeros((size + 1, size))
    out[0] = root * (value - root @ value)
    for a in range(size):
        if not t.ending[a]:
            out[1 + a] = root[a] * after[a] * (t.advantage[a] - after[a] @ t.advantage[a])
    return out


def test_the_product_ratio_recovers_the_gradient_of_whole_responses():
    for seed in SEEDS:
        t = tree(np.random.default_rng(seed))
        got = expected_tree_update(CORRECTIONS["seq-is"], t)
        assert_same(got, on_policy_tree_gradient(t), 10.0)
        # the control: a ratio per token does not, since prefixes keep the engine's frequency
        assert np.abs(expected_tree_update(CORRECTIONS["is"], t) - on_policy_tree_gradient(t)).max() > 1e-3


def test_vcpo_truncates_the_product_at_eight():
    bound = False
    for seed in range(20):
        t = tree(np.random.default_rng(seed))
        products = [
            math.prod(tree_ratio(t, "total", a, b, s) for s in range(1 if b is None else 2))
            for a, b in responses(t)
        ]
        rule = CORRECTIONS["vcpo"]
        by_hand = np.zeros((4, 3))
        for (a, b), w in zip(responses(t), products, strict=True):
            p = t.mu[0][a] * (1.0 if b is None else t.mu[1][a, b])
            c = p * t.advantage[a, b or 0] * min(w, 8.0)
            by_hand[0] += c * (np.eye(3)[a] - t.pi[0])
            if b is not None:
                by_hand[1 + a] += c * (np.eye(3)[b] - t.pi[1][a])
        assert_same(expected_tree_update(rule, t), by_hand, 10.0)
        bound |= max(products) > 8
    assert bound


@pytest.mark.parametrize("name", ["sc", "is-sc", "dlc"])
def test_centred_corrections_centre_at_each_prefix(name):
    """In a tree the mean at a prefix is that of the prefix alone, times how often the engine reaches it."""
    for seed in SEEDS:
        t = tree(np.random.default_rng(seed))
        got = expected_tree_update(CORRECTIONS[name], t)
        for a in range(3):
            if t.ending[a]:
                assert not got[1 + a].any()
                continue
            local = Prefix(t.mu[1][a], t.pi_s[1][a], t.pi[1][a], t.pi_old[1][a], t.advantage[a])
            assert_same(got[1 + a], t.mu[0][a] * BY_NAME[name](local), 5.0)
        value = np.where(t.ending, t.advantage[:, 0], (t.mu[1] * t.advantage).sum(-1))
        root = Prefix(t.mu[0], t.pi_s[0], t.pi[0], t.pi_old[0], value)
        assert_same(got[0], BY_NAME[name](root), 5.0)


def m2po_keeps(log_w: np.ndarray, budget: float) -> np.ndarray:
    """Brute force: drop the largest log(w)^2 one at a time until the mean of the rest fits the budget."""
    keep = np.ones(len(log_w), dtype=bool)
    while keep.any() and np.mean(log_w[keep] ** 2) > budget:
        largest = np.flatnonzero(keep)[np.argmax(log_w[keep] ** 2)]
        keep[largest] = False
    return keep


@given(
    log_w=st.lists(st.integers(-64, 64), min_size=8, max_size=8, unique_by=abs),  # 64ths: sums are exact
    budget=st.sampled_from([0.001, 0.04, 0.3]),
)
def test_m2po_keeps_the_largest_set_within_its_second_moment(xp, log_w, budget):
    log_w = np.array(log_w) / 64
    rule = correction("m2po", high=budget)
    padded = np.append(log_w, [np.nan, 5.0]).reshape(2, 5)
    mask = np.append(np.ones(8, dtype=bool), [False, False]).reshape(2, 5)
    pi = np.where(mask, -2.0, np.nan)
    logs = Logps(*(xp.asarray(x) for x in (pi - padded, pi, pi)))
    gain = np.linspace(-1, 1, 10).reshape(2, 5)
    got = np.asarray(coefficients(rule, logs, xp.asarray(gain), mask=xp.asarray(mask)).token)
    expected = np.where(m2po_keeps(log_w, budget), np.exp(log_w), 0) * gain.reshape(-1)[:8]
    np.testing.assert_allclose(got.reshape(-1)[:8], expected, rtol=0, atol=algebra(np.e))
    assert not got.reshape(-1)[8:].any()


def test_m2po_by_hand():
    """Squares .01, .04, .09, .16: the means of the smallest 1, 2, 3 are .01, .025, .0467, so two are kept."""
    log_w = np.array([0.2, -0.4, 0.1, 0.3])
    logs = Logps(-1.0 - log_w, np.full(4, -1.0), np.full(4, -1.0))
    got = coefficients(CORRECTIONS["m2po"], logs, np.ones(4)).token
    np.testing.assert_allclose(got, [math.exp(0.2), 0, math.exp(0.1), 0], rtol=algebra(1.0))


def test_m2po_within_budget_is_importance_sampling():
    at = prefix(np.random.default_rng(0), error=0.05, lag=0.05)
    assert_same(expected_update(CORRECTIONS["m2po"], at), expected_update(CORRECTIONS["is"], at))
