"""What a setting must be: whole, finite, a share, a flag, one of a few names; a refusal is one line.

Each verb raises ValueError with the rule, what was got and what to do. Settings of theory, toy and real all
go through them, so a wrong type is refused where it is written and not where it is first used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

LARGEST_COUNT = 2**31 - 1
"""Both engines count in 32-bit integers"""
LARGEST_REAL = float(np.finfo(np.float32).max)
"""Both compute in float32"""
SHOWN = 80
"""Characters of a refused value that are shown"""

_WHOLE = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)


def shown(got: Any, /) -> str:
    """Return a refused value as one short line: as it is written in code, NumPy's numbers as plain ones."""
    try:
        text = str(got) if isinstance(got, _NUMBER) else repr(got)
    except ValueError:  # Python writes no whole number of thousands of digits
        text = f"a {type(got).__name__} too long to write"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_array(got: Any, /) -> bool:
    """Whether this is an array of some library, possibly traced: its value may be known only when it runs.

    Numbers of NumPy are numbers.
    """
    return is_array_api_obj(got) and not isinstance(got, np.generic)


def is_number_array(got: Any, /) -> bool:
    """Whether this is an array of one real number, as a compiled function holds it."""
    kinds = ("real floating", "integral")
    return is_array(got) and got.ndim == 0 and array_namespace(got).isdtype(got.dtype, kinds)


def refuse_count(name: str, got: Any, /, *, least: int, most: float = LARGEST_COUNT) -> None:
    """Refuse what is no whole number from `least` to `most`."""
    if isinstance(got, bool) or not isinstance(got, _WHOLE):
        raise ValueError(f"{name} must be a whole number, got {shown(got)}; {least} is the smallest there is")
    if int(got) < least:
        raise ValueError(
            f"{name} must be >= {least}, got {shown(got)}; {least} is the smallest setting there is"
        )
    if int(got) > most:
        raise ValueError(f"{name} must be at most {most}, got {shown(got)}; lower it")


def refuse_number(name: str, got: Any, /) -> None:
    """Refuse what is no number of Python or NumPy; NaN and infinities are left to the rule of the setting."""
    if isinstance(got, bool) or not isinstance(got, _NUMBER):
        raise ValueError(f"{name} must be a number, got {shown(got)}; write a plain one, such as 0.5")


def refuse_real(name: str, got: Any, /, *, least: float = -LARGEST_REAL) -> None:
    """Refuse what is no number from `least` up that float32 holds."""
    refuse_number(name, got)
    try:
        value = float(got)
    except OverflowError:  # a whole number beyond float64
        value = LARGEST_REAL * (2 if got > 0 else -2)
    if not (math.isfinite(value) and value >= least):
        floor = "" if least == -LARGEST_REAL else f" and >= {least:g}"
        raise ValueError(f"{name} must be finite{floor}, got {shown(got)}; choose a number that is")
    if abs(value) > LARGEST_REAL:
        raise ValueError(
            f"{name} must be a number float32 holds, at most {LARGEST_REAL:.3g}, got {shown(got)}; "
            "bring it nearer to 0"
        )


def refuse_share(name: str, got: Any, /, *, do: str, what: str = "a share") -> None:
    """Refuse what is no number in [0, 1]; `do` says what the edges mean."""
    refuse_number(name, got)
    if not 0 <= got <= 1:
        raise ValueError(f"{name} is {what} in [0, 1], got {shown(got)}; {do}")


def refuse_flag(name: str, got: Any, /) -> None:
    """Refuse what is neither True nor False; a truth value of NumPy is made one by bool()."""
    if not isinstance(got, bool):
        raise ValueError(f"{name} is True or False, got {shown(got)}; write one of the two")


def refuse_choice(name: str, got: Any, known: Iterable[str], /) -> None:
    """Refuse what is none of the known names."""
    names = tuple(known)
    if not isinstance(got, str) or got not in names:
        raise ValueError(f"unknown {name} {shown(got)}; known: {', '.join(names)}")


def refuse_text(name: str, got: Any, /) -> None:
    """Refuse what is no text."""
    if not isinstance(got, str):
        raise ValueError(f"{name} must be text, got {shown(got)}; write it in quotes")


def refuse_other(name: str, got: Any, kind: type, /, *, do: str) -> None:
    """Refuse what is no `kind`, the class itself included."""
    if not isinstance(got, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {shown(got)}; {do}")
