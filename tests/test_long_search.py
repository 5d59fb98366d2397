"""Search traces: what the generator writes the verifier accepts, and nothing that says less."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from real import countdown
from real.long.attempt import SAME, WIDTH, Chain, attempt, chains, read, solves
from real.long.search import ATTEMPTS, BETWEEN, SEARCH, problems
from real.task import EOS

VALUES = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
numbers = st.tuples(*[st.integers(1, 9)] * 3)
signs = st.tuples(st.sampled_from("+-*"), st.sampled_from("+-*"))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["train", "test"]))
def test_every_drawn_search_solves_its_problem_and_fits(seed, split):
    for problem in problems(10, seed=seed, split=split):
        assert countdown.split_of(problem.numbers) == split
        assert 1 <= problem.target <= 99
        assert solves(problem.solution, problem.numbers, problem.target)
        assert len(SEARCH.encode(problem.prompt)) == SEARCH.prompt_tokens
        assert len(SEARCH.encode(problem.solution)) + 1 <= SEARCH.response_tokens


@given(st.integers(0, 2**32 - 1))
def test_only_the_last_attempt_of_a_search_hits_and_none_comes_twice(seed):
    for problem in problems(10, seed=seed):
        tries = problem.solution.split(BETWEEN)
        assert 1 <= len(tries) <= ATTEMPTS
        assert len(set(tries)) == len(tries)
        assert {len(text) for text in tries} == {WIDTH}
        hits = [text.count(SAME) == 2 for text in tries]
        assert hits == [False] * (len(tries) - 1) + [True]
        assert all(
            solves(text, problem.numbers, problem.target) == hit
            for text, hit in zip(tries, hits, strict=True)
        )


@given(numbers, signs, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_an_attempt_reads_back_as_it_was_written(used, joined, middle, value, target):
    chain = Chain(used, joined, middle, value)
    text = attempt(chain, target)
    assert len(text) == WIDTH
    assert read(text) == chain
    assert SEARCH.decode(SEARCH.encode(text)) == text
    assert (text.count(SAME) == 2) == (value == target)


@given(numbers, signs)
def test_a_chain_is_exact_where_integer_arithmetic_says_so(used, joined):
    (a, b, c), (first, second) = used, joined
    middle = VALUES[first](a, b)
    value = VALUES[second](middle, c)
    assert Chain(used, joined, middle, value).exact
    assert not Chain(used, joined, middle, value + 1).exact
    assert not Chain(used, joined, middle + 1, value).exact or value == VALUES[second](middle + 1, c)
    listed = Chain(used, joined, middle, value) in chains(tuple(sorted(used)))  # pyright: ignore
    assert listed == (0 <= middle <= 99 and 0 <= value <= 99)


@given(numbers, signs, st.integers(0, 99), st.text("0123456789+-*=:;!x", max_size=40))
def test_a_response_is_right_if_and_only_if_its_last_attempt_is_true(used, joined, target, junk):
    (a, b, c), (first, second) = used, joined
    middle = VALUES[first](a, b)
    value = VALUES[second](middle, c)
    text = attempt(Chain(used, joined, middle, value), value) if min(middle, value) >= 0 else ""
    right = 0 <= middle <= 99 and 0 <= value <= 99
    assert solves(text, used, value) == right
    assert solves(junk + BETWEEN + text, used, value) == right
    assert not solves(text + BETWEEN, used, value)
    assert not solves(text[:-4], used, value)
    if target != value:
        assert not solves(text, used, target)


@given(st.integers(0, 2**32 - 1), st.data())
def test_no_other_character_anywhere_in_the_last_attempt_is_right(seed, data):
    problem = problems(1, seed=seed)[0]
    last = problem.solution.split(BETWEEN)[-1]
    at = data.draw(st.integers(0, WIDTH - 1))
    other = data.draw(st.sampled_from(sorted(set(SEARCH.characters) - {last[at]})))
    changed = last[:at] + other + last[at + 1 :]
    # another sign may give the same value, as 2+2 and 2*2 do: then the text is true again
    found = re.fullmatch(r"(\d)(.)(\d)=(\d\d)(.)(\d)=(\d\d)(\d)!(\d)!", changed)
    true = False
    if found:
        a, first, b, middle, second, c, value, tens, units = found.groups()
        true = (
            first in VALUES
            and second in VALUES
            and VALUES[first](int(a), int(b)) == int(middle)
            and VALUES[second](int(middle), int(c)) == int(value) == problem.target == int(tens + units)
            and sorted(map(int, (a, b, c))) == sorted(problem.numbers)
        )
    assert solves(changed, problem.numbers, problem.target) == true


@given(st.text(max_size=60))
@example("7-1=06*4=243\u0662!!")
@example(";" * 50)
def test_no_text_makes_the_verifier_raise(text):
    assert solves(text, (7, 1, 4), 24) in (True, False)


def test_numbers_have_to_be_those_of_the_problem():
    text = attempt(Chain((7, 1, 4), ("-", "*"), 6, 24), 24)
    assert solves(text, (7, 1, 4), 24)
    assert solves(text, (4, 1, 7), 24)
    assert not solves(text, (7, 7, 4), 24)
    repeated = attempt(Chain((7, 7, 4), ("+", "-"), 14, 10), 10)  # as a set the numbers are 7 and 4
    assert solves(repeated, (7, 4, 7), 10)
    assert not solves(repeated, (7, 4, 4), 10)


def test_the_words_of_the_task_leave_room_for_padding_and_end_mark():
    assert SEARCH.vocabulary[EOS] == "<eos>"
    assert len(set(SEARCH.vocabulary)) == len(SEARCH.vocabulary)
    with pytest.raises(ValueError, match="may hold only the characters"):
        SEARCH.encode("(1)")
