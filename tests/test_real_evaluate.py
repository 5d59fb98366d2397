"""Evaluation: a fixed held-out set, distances on the first argument's own samples, off-support shares."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

from real import countdown
from real.evaluate import (
    evaluate,
    held_out,
    kl_between,
    kl_on_prefixes,
    off_support,
    own_samples,
)
from real.loop import start_model
from real.model import at_tokens, flatten, load, row_logps
from real.settings import Mini
from theory.records import OFF_SUPPORT_BELOW

SMALL = Mini(eval_prompts=64, eval_samples=2)


@pytest.fixture(scope="module")
def start():
    return start_model(SMALL)


def test_the_held_out_set_is_the_same_every_time_and_of_the_test_side_only():
    assert held_out(32) == held_out(64)[:32]
    assert {countdown.split_of(p.numbers) for p in held_out(64)} == {"test"}


def test_a_policy_is_at_distance_zero_from_itself_and_positive_from_others(start):
    other = load()
    assert kl_between(start, start, SMALL, seed=0) == 0
    assert kl_between(start, other, SMALL, seed=0) > 0
    assert kl_between(other, start, SMALL, seed=0) > 0


def test_the_distance_is_the_mean_kl_on_the_prefixes_of_the_first_argument(start):
    other = load()
    rollout = own_samples(start, SMALL, seed=3)
    with torch.no_grad():
        p, q = (row_logps(m, rollout.prompt_CP, rollout.response_BT).double() for m in (start, other))
    by_hand = (p.exp() * (p - q)).sum(-1)[rollout.mask_BT].mean().item()
    assert kl_between(start, other, SMALL, seed=3) == pytest.approx(by_hand, rel=1e-6)
    assert kl_on_prefixes(start, other, rollout) == pytest.approx(by_hand, rel=1e-6)


def test_the_off_support_share_counts_the_policys_own_tokens_that_the_start_gave_almost_nothing(start):
    flat = copy.deepcopy(start)
    flatten(flat, 4.0)  # a policy that says what the start would not
    rollout = own_samples(flat, SMALL, seed=1)
    with torch.no_grad():
        p = at_tokens(row_logps(start, rollout.prompt_CP, rollout.response_BT), rollout.response_BT).exp()
    by_hand = (p[rollout.mask_BT] < OFF_SUPPORT_BELOW).double().mean().item()
    assert off_support(start, rollout) == by_hand
    assert by_hand > 0.1
    assert evaluate(start, SMALL, seed=1, initial=start).off_support < 0.02


def test_what_has_no_start_to_compare_with_is_not_measured(start):
    assert math.isnan(evaluate(start, SMALL, seed=1).off_support)


def test_a_sharper_policy_is_more_often_right_and_has_less_entropy(start):
    sharp = load()
    flat, peaked = (evaluate(m, Mini(), seed=0) for m in (start, sharp))
    assert peaked.accuracy.value > flat.accuracy.value + 2 * flat.accuracy.stderr
    assert peaked.entropy < flat.entropy


def test_the_warm_start_begins_where_there_is_room_to_learn(start):
    """Between 15 and 35%: the range the working points were chosen for."""
    result = evaluate(start, Mini(), seed=12)
    assert 0.15 < result.accuracy.value < 0.35
    assert 0 < result.accuracy.stderr < 0.03


def test_the_seed_decides_the_responses_alone(start):
    first, again, other = (evaluate(start, SMALL, seed=s) for s in (5, 5, 6))
    assert first == again or math.isnan(first.off_support)
    assert (first.accuracy, first.entropy) == (again.accuracy, again.entropy)
    assert first.entropy != other.entropy


@pytest.mark.parametrize("field", ["eval_every", "eval_prompts", "eval_samples", "top_k_row"])
def test_settings_below_one_are_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be >= 1, got 0"):
        dataclasses.replace(Mini(), **{field: 0})


def test_a_missing_model_folder_is_named_with_what_to_do():
    with pytest.raises(ValueError, match="'no/such/folder', which is neither") as caught:
        Mini(model="no/such/folder")
    assert "real.warmstart" in str(caught.value)
