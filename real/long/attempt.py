"""One attempt of a search, written out: a chain of three numbers, and its value held against the target.

``7-1=06*4=243x2x`` is (7 - 1) * 4 = 24 beside a target of 32: after the value comes each digit of the target
with its verdict, ``!`` where the value has the same digit and ``x`` where it has not. Values are whole and
0..99, always two digits, so every attempt is fifteen characters wide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product

SIGNS = "+-*"
LARGEST = 99
SAME, OTHER = "!x"
WIDTH = 15

_CHAIN = re.compile(r"([1-9])([-+*])([1-9])=(\d\d)([-+*])([1-9])=(\d\d)", re.ASCII)
_CHAIN_WIDTH = 11


@dataclass(frozen=True, slots=True)
class Chain:
    """Numbers and signs, from left to right, and what is claimed of them."""

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


def attempt(chain: Chain, target: int, /) -> str:
    """Write a chain and hold its value against a target of 0..99."""
    digits = zip(f"{target:02d}", f"{chain.value:02d}", strict=True)
    return str(chain) + "".join(wanted + (SAME if wanted == got else OTHER) for wanted, got in digits)


def read(text: str, /) -> Chain | None:
    """Read the chain an attempt begins with; None where it is not one, to the letter."""
    found = _CHAIN.fullmatch(text[:_CHAIN_WIDTH])
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

    Attempts stand between semicolons; what the earlier ones say does not matter. The last has to be written
    out to the end, with the target's digits and both verdicts. Never raises.
    """
    last = text.rpartition(";")[2]
    chain = read(last)
    return (
        chain is not None
        and chain.exact
        and chain.value == target
        and sorted(chain.numbers) == sorted(numbers)
        and last == attempt(chain, target)
    )


def _join(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right
