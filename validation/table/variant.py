"""What makes a table another than the whole one of its working point, so that the two are kept apart."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from validation.table.plan import REFERENCES, SEEDS


def _listed(seeds: tuple[int, ...]) -> str:
    return ",".join(map(str, seeds))


USUAL: Mapping[str, Any] = MappingProxyType(
    {"engine": "vllm", "precision": "bf16", "seeds": _listed(SEEDS), "references": _listed(REFERENCES)}
)
"""What a flag that is left out stands for, where that is not its default"""
NEUTRAL = frozenset(["preset", "point", "lr", "out", "jobs", "backend", "json", "plan"])
"""Flags that name the table, or change nothing in it"""
LONGEST = 60
"""Characters of a file's name that say what is unusual; a digest stands for more"""


def variant_of(options: Any, /) -> str:
    """Name each flag of a table that is not the usual one; empty for the whole table.

    Parameters
    ----------
    options : dataclass
        Of the command ``table``.
    """
    words = []
    for field in dataclasses.fields(options):
        got = getattr(options, field.name)
        if field.name not in NEUTRAL and got not in (field.default, USUAL.get(field.name, field.default)):
            name = field.name.replace("_", " ")
            words.append(name if got is True else f"{name} {got}")
    return ", ".join(words)


def name_of(preset: str, point: str, variant: str = "", /) -> str:
    """Name of a table in words."""
    return ", ".join(filter(None, (preset, point, variant)))


def file_stem(made: Mapping[str, Any], /) -> str:
    """Name of the files of a table's document."""
    name = name_of(made["preset"], made["point"], made.get("variant", ""))
    whole = re.sub(r"[^\w.+-]+", "-", name)
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
