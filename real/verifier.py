"""Exact verifier of Countdown answers: a recursive parser over fractions, safe on any text.

Grammar: ``expression = term (("+" | "-") term)*``, ``term = factor (("*" | "/") factor)*``,
``factor = number | "(" expression ")"``; numbers are ASCII digits without a leading zero. Nothing is
evaluated by the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

LONGEST = 256
"""Longer answers are wrong unread: bounds the time spent on hostile text"""
DEEPEST = 32
"""Deeper nesting is wrong: bounds the recursion"""

_DIGITS = frozenset("0123456789")


class _NotAnExpression(Exception):
    """The text leaves the grammar."""


class _Parser:
    """One pass over one text; collects the numbers it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.numbers: list[int] = []

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take_one_of(self, signs: str) -> str:
        """Consume and return the next character if it is one of `signs`, else return an empty string."""
        next_one = self.peek()
        if next_one and next_one in signs:
            self.at += 1
            return next_one
        return ""

    def expression(self) -> Fraction:
        value = self.term()
        while sign := self.take_one_of("+-"):
            other = self.term()
            value = value + other if sign == "+" else value - other
        return value

    def term(self) -> Fraction:
        value = self.factor()
        while sign := self.take_one_of("*/"):
            other = self.factor()
            value = value * other if sign == "*" else value / other
        return value

    def factor(self) -> Fraction:
        if self.take_one_of("("):
            self.depth += 1
            if self.depth > DEEPEST:
                raise _NotAnExpression
            value = self.expression()
            if not self.take_one_of(")"):
                raise _NotAnExpression
            self.depth -= 1
            return value
        start = self.at
        while self.peek() in _DIGITS:
            self.at += 1
        digits = self.text[start : self.at]
        if not digits or (len(digits) > 1 and digits[0] == "0"):
            raise _NotAnExpression
        self.numbers.append(int(digits))
        return Fraction(self.numbers[-1])


def solves(text: str, /, numbers: Sequence[int], target: int) -> bool:
    """Whether `text` is an expression of exactly these numbers, each used once, that equals `target` exactly.

    Never raises, whatever the text is: what is no expression, or divides by zero, solves nothing.
    """
    if len(text) > LONGEST:
        return False
    parser = _Parser(text)
    try:
        value = parser.expression()
    except (_NotAnExpression, ZeroDivisionError):
        return False
    return parser.at == len(text) and value == target and sorted(parser.numbers) == sorted(numbers)
