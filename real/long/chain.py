"""One attempt of a search: three numbers joined from left to right, with both values written out.

``7-1=06*4=24`` is (7 - 1) * 4 = 24. Values are whole and 0..99, always two digits, so an attempt is eleven
characters wide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product

SIGNS = "+-*"
LARGEST = 99
WIDTH = 11

_WRITTEN = re.compile(r"([1-9])([-+*])([1-9])=(\d\d)([-+*])([1-9])=(\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Chain:
    """Numbers and signs, and what is claimed of them; `exact` says whether the claims are true."""

    numbers: tuple[int, int, int]
    signs: tuple[str, str]
    middle: int
    value: int

    @property
    def exact(self) -> bool:
        """Whether both equalities hold."""
        (a, b, c), (first, second) = self.numbers, self.signs
        return _join(a, first, b) == self.middle and _join(self.middle, second, c) == self.value

    def __str__(self) -> str:
        (a, b, c), (first, second) = self.numbers, self.signs
        return f"{a}{first}{b}={self.middle:02d}{second}{c}={self.value:02d}"


def read(text: str, /) -> Chain | None:
    """Read a written attempt; None where it is not one, to the letter."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return None
    a, first, b, middle, second, c, value = found.groups()
    return Chain((int(a), int(b), int(c)), (first, second), int(middle), int(value))


@lru_cache(maxsize=256)
def chains(multiset: tuple[int, int, int], /) -> tuple[Chain, ...]:
    """All exact chains of three numbers whose values stay within 0..99, each once, in a fixed order.

    Parameters
    ----------
    multiset : tuple of int
        Sorted.
    """
    found = []
    for (a, b, c), (first, second) in product(sorted(set(permutations(multiset))), product(SIGNS, SIGNS)):
        middle = _join(a, first, b)
        value = _join(middle, second, c)
        if 0 <= middle <= LARGEST and 0 <= value <= LARGEST:
            found.append(Chain((a, b, c), (first, second), middle, value))
    return tuple(found)


def solves(text: str, /, numbers: Sequence[int], target: int) -> bool:
    """Whether the last attempt of a search is exact, uses these numbers once each, and hits the target.

    Attempts stand between semicolons; what the earlier ones say does not matter. Never raises.
    """
    last = read(text.rpartition(";")[2])
    return (
        last is not None and last.exact and last.value == target and sorted(last.numbers) == sorted(numbers)
    )


def _join(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right
