"""Values that a field of a settings class may not hold, by its type: what each class must refuse."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from theory.limits import LARGEST_COUNT, shown
from theory.trigger import Trigger

EVERYWHERE: tuple[Any, ...] = (
    math.nan,
    np.bool_(True),
    1j,
    b"x",
    [1],
    {},
    np.ones((3, 3)),
    np.array(True),
    int,
    object(),
)
"""Right in no field"""
LESS_THAN_ANY = -(10**5000)
"""A whole number too long for Python to print, and below every least"""
BEYOND = LARGEST_COUNT + 1
WRONG: dict[Any, tuple[Any, ...]] = {
    int: ("3", "", 2.5, 2.0, True, None, -1, BEYOND, math.inf, LESS_THAN_ANY),
    float: ("0.5", "", True, None, -math.inf, LESS_THAN_ANY),
    bool: ("True", "", 0, 1, None, 1.0),
    str: (1, 0.5, True, None),
}
NO_END = {"seed", "noise_seed"}
"""Whole numbers that may be as large as one likes"""


def hints_of(kind: type) -> dict[str, Any]:
    """Fields with their types."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def wrong_for(hint: Any) -> Iterator[Any]:
    """Values that no field of this type may hold."""
    right = get_origin(hint)
    if right is list:
        yield from (None, 1, "x", (), {})
    elif right in (dict, Callable):
        yield from (x for x in (*EVERYWHERE, None, 1, "x", ()) if not isinstance(x, right))
    else:
        yield from EVERYWHERE
    if get_origin(hint) in (Union, types.UnionType):
        inner = [h for h in get_args(hint) if h is not type(None)]
        yield from (x for x in wrong_for(inner[0]) if x is not None and not _in(x, EVERYWHERE))
    elif get_origin(hint) is Literal:
        yield from ("no such name", "", 1, None, True)
    elif get_origin(hint) is tuple:
        yield from ("123", 1, (), (1,), ("a", "b", "c"), ((1.0,), (2.0,)), (True, True, True))
    elif hint in WRONG:
        yield from WRONG[hint]
    elif hint is Any or dataclasses.is_dataclass(hint):
        yield from ("pg", 1, None, True, Trigger, types.SimpleNamespace())


def _in(x: Any, many: tuple[Any, ...]) -> bool:
    return any(x is y for y in many)


def refuses_every_wrong_value(kind: type, name: str, hint: Any, needs: dict[str, Any]) -> None:
    """Give a field every value that is wrong for its type; `needs` are the fields that must be given."""
    kind(**needs)
    wrong = [x for x in wrong_for(hint) if not (name in NO_END and x is BEYOND)]
    assert len(wrong) > 4, f"no values that are wrong in a field of type {hint}: add some to this table"
    for value in wrong:
        try:
            kind(**(needs | {name: value}))
        except ValueError as refused:
            said = str(refused)
        else:
            pytest.fail(f"accepts {shown(value)}")
        assert re.search("(got|unknown .*) .+[;:,] .+", said), said
        assert "\n" not in said
        assert len(said) < 300
