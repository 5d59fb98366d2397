"""Countdown: use three numbers, each exactly once, to reach a target. Problems, text, train/test split.

A prompt is fixed in width ("714=09:" asks for 9 from 7, 1 and 4), so batches need no padding on the left; an
answer is an expression of at most seven characters and an end mark. The vocabulary is twenty characters:
small enough to keep the sampler's whole row at every token.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

from real.task import CHECKPOINTS, EOS, PAD, Problem, Split, Task
from real.verifier import solves

CHARACTERS = "0123456789+-*/()=:"

NUMBERS = 3
PROMPT_TOKENS = 7
RESPONSE_TOKENS = 8
"""Three digits, two operators, one pair of parentheses, the end mark"""

MULTISETS = tuple(combinations_with_replacement(range(1, 10), NUMBERS))


def _digest(multiset: tuple[int, ...]) -> str:
    return hashlib.sha256(repr(multiset).encode()).hexdigest()


TEST_MULTISETS = frozenset(sorted(MULTISETS, key=_digest)[: len(MULTISETS) // 10])
"""The 16 of 165 multisets of numbers that no training problem uses, in any order: those of smallest
SHA-256"""


def split_of(numbers: Iterable[int], /) -> Split:
    """Side of the split a set of numbers is on, whatever their order."""
    return "test" if tuple(sorted(numbers)) in TEST_MULTISETS else "train"


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_ATOM = 3
# shares of + - * / among random trees; division last, since most of it is not whole and the draw is thrown
# away
_OPERATORS, _WEIGHTS = "+-*/", (0.35, 0.25, 0.30, 0.10)


def _combine(
    left: tuple[int, str, int], right: tuple[int, str, int], sign: str
) -> tuple[int, str, int] | None:
    """Join two (value, text, precedence) with the fewest parentheses; None where a quotient is not whole."""
    (a, a_text, a_level), (b, b_text, b_level) = left, right
    level = _PRECEDENCE[sign]
    if sign == "/" and (b == 0 or a % b):
        return None
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
    if a_level < level:
        a_text = f"({a_text})"
    if b_level < level or (b_level == level and sign in "-/"):
        b_text = f"({b_text})"
    return value, a_text + sign + b_text, level


def _random_expression(rng: random.Random, numbers: Sequence[int]) -> tuple[int, str] | None:
    """Value and text of a random tree over all the numbers; None where it would need a fraction."""
    parts = [(n, str(n), _ATOM) for n in numbers]
    while len(parts) > 1:
        left = parts.pop(rng.randrange(len(parts)))
        right = parts.pop(rng.randrange(len(parts)))
        joined = _combine(left, right, rng.choices(_OPERATORS, _WEIGHTS)[0])
        if joined is None:
            return None
        parts.append(joined)
    return parts[0][0], parts[0][1]


def problems(count: int, /, *, seed: int, split: Split = "train") -> list[Problem]:
    """Draw solvable problems: random numbers, the value of a random expression of them as target.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        The same seed gives the same list.
    split : {"train", "test"}
        "test" draws from `TEST_MULTISETS` alone, "train" from all others.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        numbers = tuple(rng.randint(1, 9) for _ in range(NUMBERS))
        if split_of(numbers) != split:
            continue
        expression = _random_expression(rng, numbers)
        if expression is None or not 1 <= expression[0] <= 99:
            continue
        found.append(Problem(numbers=numbers, target=expression[0], solution=expression[1]))
    return found


COUNTDOWN = Task(
    name="countdown",
    characters=CHARACTERS,
    prompt_tokens=PROMPT_TOKENS,
    response_tokens=RESPONSE_TOKENS,
    checkpoint=CHECKPOINTS / "mini.safetensors",
    problems=problems,
    solves=solves,
)
VOCABULARY = COUNTDOWN.vocabulary
TOKEN_ID = {character: i for i, character in enumerate(VOCABULARY)}
encode, decode = COUNTDOWN.encode, COUNTDOWN.decode
__all__ = ["COUNTDOWN", "EOS", "PAD", "Problem", "Split", "decode", "encode", "problems", "split_of"]
