"""The verifier is exact and survives any text."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from real.countdown import EOS, PAD, Problem, encode
from real.rewards import rewards
from real.samplers.base import Rollout
from real.verifier import DEEPEST, LONGEST, solves

leaves = st.integers(0, 99).map(lambda n: (Fraction(n), str(n), [n]))


def _node(parts):
    """Value, fully parenthesised text, and numbers of an operation; value None where it divides by zero."""
    (a, a_text, a_numbers), sign, (b, b_text, b_numbers) = parts
    text = f"({a_text}){sign}({b_text})"
    if a is None or b is None or (sign == "/" and b == 0):
        return None, text, a_numbers + b_numbers
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign]
    return value, text, a_numbers + b_numbers


trees = st.recursive(
    leaves, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(_node), max_leaves=6
)


@given(trees)
def test_a_tree_solves_its_own_value_and_no_other(tree):
    value, text, numbers = tree
    if len(text) > LONGEST:
        return
    if value is None:
        assert not solves(text, numbers, 0)
        return
    assert solves(text, numbers, value)  # pyright: ignore[reportArgumentType]  - a fraction is a fair target
    assert not solves(text, numbers, value + Fraction(1, 10**9))  # pyright: ignore[reportArgumentType]


@given(trees.filter(lambda tree: tree[0] is not None and len(tree[1]) <= LONGEST), st.integers(0, 99))
def test_numbers_must_be_used_exactly_once_each(tree, extra):
    value, text, numbers = tree
    assert not solves(text, [*numbers, extra], value)
    assert not solves(text, numbers[1:], value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7-4-1", 2),
        ("7-(4-1)", 4),
        ("7+4*1", 11),
        ("(7+4)*1", 11),
        ("7*4/1", 28),
        ("1/(4-7)", Fraction(-1, 3)),
    ],
)
def test_precedence_and_left_association_are_those_of_arithmetic(text, value):
    assert solves(text, [7, 4, 1], value)


@given(st.text(max_size=300))
@example("")
@example("()")
@example("(" * 10_000)
@example("(" * 10_000 + "1" + ")" * 10_000)
@example("9" * 5_000)
@example("-1")
@example("1 + 2")
@example("1_0")
@example("1e3")
@example("9**9**9")
@example("1//1")
@example("__import__('os').system('true')")
@example("\u0661+\u0662")  # digits of another script
@example("\u00b2")
@example("1/0")
@example("0/0")
@example("1/(1-1)")
@example("<pad>")
def test_no_text_makes_it_raise_and_no_nonsense_solves(text):
    assert not solves(text, [1, 2, 3], 10**6)


def test_digits_of_other_scripts_and_leading_zeros_are_no_numbers():
    assert not solves("\u0661+\u0662", [1, 2], 3)
    assert not solves("01+2", [1, 2], 3)
    assert solves("1+2", [1, 2], 3)


def test_nesting_up_to_the_limit_is_read_and_beyond_it_is_wrong_without_deep_recursion():
    assert solves("(" * DEEPEST + "5" + ")" * DEEPEST, [5], 5)
    assert not solves("(" * (DEEPEST + 1) + "5" + ")" * (DEEPEST + 1), [5], 5)
    assert sys.getrecursionlimit() > 10 * DEEPEST


def _rollout(rows):
    width = max(map(len, rows))
    response_BT = torch.tensor([r + [PAD] * (width - len(r)) for r in rows])
    mask_BT = torch.arange(width) < torch.tensor([len(r) for r in rows])[:, None]
    row = torch.zeros(*response_BT.shape, 20)
    return Rollout(
        prompt_CP=torch.zeros(1, 7, dtype=torch.long),
        response_BT=response_BT,
        mask_BT=mask_BT,
        logmu_BTV=row,
        version=0,
    )


def test_a_response_is_right_only_with_its_end_mark_and_nothing_but_the_expression():
    problem = Problem(numbers=(7, 1, 4), target=10, solution="7+4-1")
    right = encode("7+4-1")
    rows = [
        [*right, EOS],
        right,  # cut off
        [*right[:2], PAD, *right[2:], EOS],  # a pad the policy sampled
        [*encode("7+4-1="), EOS],
        [EOS],
    ]
    assert rewards(_rollout(rows), [problem]).tolist() == [[1, -1, -1, -1, -1]]
