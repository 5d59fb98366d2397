"""The table of corrections: its rows, how they are changed, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from libraries import as_numpy, carry, compiled
from strategies import floats
from tolerances import algebra

from theory.corrections import (
    CORRECTIONS,
    DLC_CLIP,
    Correction,
    Logps,
    correction,
)
from theory.resync import FAILURE_THRESHOLD
from theory.weights import clipped_weight, log_ratio, lr_factor

UNKNOWN: Any = "pi_0"
NAMES = ["pg", "is", "tis", "seq-is", "sc", "is-sc", "mis", "icepop", "ppo"]
NAMES += ["decoupled-ppo", "m2po", "vcpo", "dlc"]


def test_every_correction_users_know_is_in_the_table():
    assert list(CORRECTIONS) == NAMES
    assert all(row.cite for row in CORRECTIONS.values())


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        CORRECTIONS["pg"] = CORRECTIONS["is"]  # pyright: ignore[reportIndexIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        CORRECTIONS["pg"].ratio = "lag"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_what_its_name_asks_for_and_can_key_a_table(name):
    assert correction(name) is not None
    assert correction(name) == CORRECTIONS[name]
    assert {correction(name): 1}[CORRECTIONS[name]] == 1


def test_dlc_resyncs_at_the_failure_threshold_and_others_only_when_asked():
    assert CORRECTIONS["dlc"].resync_below == FAILURE_THRESHOLD
    assert CORRECTIONS["dlc"].high == DLC_CLIP
    assert [name for name, row in CORRECTIONS.items() if row.resync_below] == ["dlc"]
    rescued = correction("is", resync_below=0.5, resync_level="sequence")
    assert (rescued.resync_below, rescued.resync_level) == (0.5, "sequence")
    assert dataclasses.replace(rescued, resync_below=0.0, resync_level="token") == CORRECTIONS["is"]


def test_what_a_correction_needs_from_the_engines():
    assert [name for name, row in CORRECTIONS.items() if row.centered] == ["sc", "is-sc", "dlc"]
    assert [name for name, row in CORRECTIONS.items() if row.needs_pi_s] == ["is-sc", "dlc"]
    assert correction("ppo", ppo_ref="synced").needs_pi_s
    assert not correction("ppo", ppo_ref="engine").needs_pi_s
    assert correction("sc", center="numerics").needs_pi_s
    assert correction("decoupled-ppo", clip_on="lag").needs_pi_s


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: correction("dcl"), r"unknown correction 'dcl'; known: decoupled-ppo, dlc, icepop, is, "),
        (lambda: correction("ppo", ppo_ref=UNKNOWN), "unknown ppo_ref 'pi_0'; known: before-batch, synced"),
        (lambda: correction("tis", ppo_ref="engine"), "ppo_ref belongs to the correction 'ppo', got it with"),
        (lambda: correction("dlc", clipp="mask"), "has no field 'clipp'; known: cite, ratio, level, clip, "),
        (lambda: correction("is", ratio="lagg"), "unknown ratio 'lagg'; known: none, lag, total, batch"),
        (lambda: correction("is", level="word"), "unknown level 'word'; known: token, sequence, geometric"),
        (
            lambda: correction("is", clip="cut"),
            "unknown clip 'cut'; known: none, truncate, mask, ppo, second",
        ),
        (lambda: correction("is", clip_on="mu"), "unknown clip_on 'mu'; known: none, lag, total, batch"),
        (lambda: correction("sc", center="half"), "unknown center 'half'; known: none, matched, form-i, num"),
        (lambda: correction("dlc", resync_level="batch"), "unknown resync_level 'batch'; known: token, seq"),
        (lambda: correction("dlc", level="sequence"), "needs level 'token', got 'sequence': the centre is a"),
        (lambda: correction("m2po", center="matched"), "needs a clip per token, got 'second-moment'; use cl"),
        (lambda: correction("mis", low=2.0, high=0.5), r"0 <= low < high, got \(2.0, 0.5\); to switch clip"),
        (lambda: correction("mis", low=1.0, high=1.0), r"0 <= low < high, got \(1.0, 1.0\)"),
        (lambda: correction("mis", low=-1.0), r"0 <= low < high, got \(-1.0, 2.0\)"),
        (lambda: correction("tis", high=math.nan), r"0 <= low < high, got \(0.0, nan\)"),
        (lambda: correction("dlc", resync_below=1.5), r"an ESS share in \[0, 1\], got 1.5; 0 switches the r"),
        (lambda: correction("dlc", resync_below=math.nan), r"an ESS share in \[0, 1\], got nan"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


LOGS = Logps(
    mu=np.log([0.5, 0.3, 0.2]),
    pi_s=np.log([0.4, 0.4, 0.2]),
    pi=np.log([0.1, 0.6, 0.3]),
    pi_old=np.log([0.2, 0.5, 0.3]),
)


def test_ratios_by_hand(xp):
    logs = Logps(*(carry(xp, x) for x in LOGS))
    by_hand: dict[Any, Any] = {
        "none": [1, 1, 1],
        "lag": [0.25, 1.5, 1.5],
        "total": [0.2, 2, 1.5],
        "batch": [0.5, 1.2, 1],
    }
    for ratio, expected in by_hand.items():
        np.testing.assert_allclose(np.exp(as_numpy(log_ratio(ratio, logs))), expected, rtol=algebra(1.0))
    one_update = logs._replace(pi_old=None)
    np.testing.assert_array_equal(as_numpy(log_ratio("batch", one_update)), [0, 0, 0])


def test_a_ratio_is_zero_where_its_reference_has_no_mass(xp):
    """Nothing is sampled there: whatever the trainer says, the entry must not weigh."""
    nothing = carry(xp, np.array([-np.inf, -np.inf, -1.0]))
    pi = carry(xp, np.array([-1.0, -np.inf, -np.inf]))
    logs = Logps(nothing, nothing, pi, nothing)
    for ratio in ("lag", "total", "batch"):
        np.testing.assert_array_equal(as_numpy(log_ratio(ratio, logs)), [-np.inf] * 3)


RULES = {
    "truncate": (Correction(cite="-", ratio="total", clip="truncate", high=1.2), [0.2, 1.2, 1.2]),
    "truncate at its edge": (Correction(cite="-", ratio="total", clip="truncate", high=2.5), [0.2, 2.0, 1.5]),
    "mask above": (Correction(cite="-", ratio="total", clip="mask", high=1.8), [0.2, 0, 1.5]),
    "mask both": (Correction(cite="-", ratio="total", clip="mask", low=0.3, high=1.8), [0, 0, 1.5]),
    "clip on another": (
        Correction(cite="-", ratio="total", clip="mask", clip_on="lag", low=0.3, high=1.4),
        [0, 0, 0],
    ),
    "truncate on another": (
        Correction(cite="-", ratio="total", clip="truncate", clip_on="lag", high=1.4),
        [0.2, 1.4, 1.4],
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_clipped_weights_by_hand(xp, case):
    rule, expected = RULES[case]
    got = clipped_weight(rule, Logps(*(carry(xp, x) for x in LOGS)), carry(xp, np.ones(3)))
    np.testing.assert_allclose(as_numpy(got), expected, rtol=algebra(1.0))


def test_ppo_stops_the_side_the_advantage_pushes_to(xp):
    """w = (.2, 2, 1.5): a gain stops above the upper edge, a loss below the lower one and above the dual."""
    logs = Logps(*(carry(xp, x) for x in LOGS))
    rule = Correction(cite="-", ratio="total", clip="ppo", low=0.8, high=1.7)
    for sign, dual, expected in (
        (1.0, None, [0.2, 0, 1.5]),
        (-1.0, None, [0, 2, 1.5]),
        (-1.0, 1.8, [0, 0, 1.5]),
        (1.0, 1.8, [0.2, 0, 1.5]),  # the dual clip is for losses only
    ):
        got = clipped_weight(dataclasses.replace(rule, dual=dual), logs, carry(xp, np.full(3, sign)))
        np.testing.assert_allclose(as_numpy(got), expected, rtol=algebra(1.0))


def test_weights_of_responses_reach_every_token(xp):
    x = np.log(np.array([[2.0, 3.0, 7.0], [0.5, 1.0, 1.0]]))
    mask = np.array([[True, True, False], [True, True, True]])
    logs = Logps(carry(xp, -x), carry(xp, -x), carry(xp, np.zeros_like(x)))
    by_hand: dict[Any, Any] = {
        "token": [[2, 3, 7], [0.5, 1, 1]],
        "sequence": [[6, 6, 6], [0.5, 0.5, 0.5]],
        "geometric": [[6**0.5] * 3, [0.5 ** (1 / 3)] * 3],
    }
    for level, expected in by_hand.items():
        rule = Correction(cite="-", ratio="total", level=level)
        got = clipped_weight(rule, logs, carry(xp, np.ones_like(x)), mask=xp.asarray(mask))
        np.testing.assert_allclose(as_numpy(got)[mask], np.array(expected)[mask], rtol=algebra(1.0))


@pytest.mark.parametrize("broken", ["mu and pi_s", "pi and pi_old"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("pg", "sc")])
def test_a_nan_log_prob_stays_visible_in_its_weight(xp, name, broken):
    """Dropping it would be a silent zero: it is a fault of an engine, to be found."""
    sound = carry(xp, np.array([[-1.0, -1.0, -2.0]]))
    nan = carry(xp, np.array([[-1.0, math.nan, -2.0]]))
    logs = Logps(nan, nan, sound, nan) if broken == "mu and pi_s" else Logps(sound, sound, nan, nan)
    got = as_numpy(clipped_weight(CORRECTIONS[name], logs, carry(xp, np.ones((1, 3)))))
    assert math.isnan(got[0, 1])


@given(x=floats((2, 4), 3.0), advantage=floats((2, 4), 3.0))
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_never_negative_nor_above_their_bound(name, x, advantage):
    rule = CORRECTIONS[name]
    pi = np.full((2, 4), -1.0)
    logs = Logps(pi - x, pi - x, pi, pi)
    got = clipped_weight(rule, logs, advantage)
    assert (got >= 0).all()
    if rule.clip in ("truncate", "mask"):
        assert got.max() <= rule.high
    else:
        assert np.isfinite(got).all()


def test_the_learning_rate_shrinks_with_the_root_of_the_ess(xp):
    ess = carry(xp, np.array([0.25, 1.0, 0.81]))
    np.testing.assert_allclose(
        as_numpy(lr_factor(CORRECTIONS["vcpo"], ess)), [0.5, 1, 0.9], rtol=algebra(1.0)
    )
    np.testing.assert_array_equal(as_numpy(lr_factor(CORRECTIONS["is"], ess)), [1, 1, 1])


def test_a_rule_with_traced_numbers_runs_under_jit(xp):
    """The toy hands clips and thresholds through a compiled function: a new value recompiles nothing."""

    def weight(high: object, log_w: object) -> object:
        rule = Correction(cite="-", ratio="lag", clip="truncate", high=high, resync_below=high)  # pyright: ignore[reportArgumentType]
        zero = log_w - log_w  # pyright: ignore[reportOperatorIssue]
        return clipped_weight(rule, Logps(zero, zero - log_w, zero), zero)  # pyright: ignore[reportOperatorIssue]

    got = compiled(xp, weight)(carry(xp, np.array(0.75)), carry(xp, np.log([0.5, 3.0])))
    np.testing.assert_allclose(as_numpy(got), [0.5, 0.75], rtol=algebra(1.0))
