"""What a reader is: recognise a record by its keys, turn it into rows, say what each column means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from theory.records import Provenance
from validation.audit.block import Row

OldMeans = Literal["pi_s", "pi", "mu"]
"""What the column a framework calls old (prev, recomputed, proximal) log-probs holds in this run.

The trainer at the
sampler's weights, the trainer at other weights, or the engine's own values copied"""


class Source(NamedTuple):
    """Where a record stands and what the user said about the log."""

    path: Path
    file: int = 0
    step: int | None = None
    """From the file's or folder's name, where the format keeps the step there"""
    joined: Mapping[Any, Any] = MappingProxyType({})
    """What another file of the same log says, by the format's own key (slime)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format."""

    name: str
    """As --format knows it"""
    source: str
    """Who writes it and how it is switched on"""
    recognise: Callable[[Mapping[str, Any]], bool]
    rows: Callable[[Mapping[str, Any], Source, int], Iterator[Row]]
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    """By token column; a column that is absent was not logged by this format"""
    null_is_broken: bool = False
    """Whether the writer turns non-finite numbers into null"""


MEASURED = Provenance(kind="measured", how="as logged")


def approximated(how: str) -> Provenance:
    """Provenance of a column that stands for another one."""
    return Provenance(kind="approximated", how=how)


def where(source: Source, line: int) -> str:
    """File and line of a record, for messages."""
    return f"{source.path.name}:{line}"


def step_in(path: Path) -> int | None:
    """Step that a file's or its folder's name ends in: train_data_step7.jsonl, step_7/rank_0.jsonl, 7.pt."""
    for part in (path.parent.name, path.name.split(".")[0]):
        _, mark, digits = part.rpartition("step")
        digits = digits.strip("_-")
        if mark and digits.isascii() and digits.isdecimal() and len(digits) < 12:
            return int(digits)
    return None


def after_prompt(mask: list[Any]) -> int:
    """Index of the first response token in a full-length mask; the length if there is none."""
    for i, m in enumerate(mask):
        if m:
            return i
    return len(mask)


def cut(values: Any, start: int) -> Any:
    """Return the response part of a full-length list; None and scalars as they are."""
    return values[start:] if isinstance(values, list) else values


def flat(value: Any) -> list[Any]:
    """Values of a batch of any size.

    [[1, 2]] and [[1], [2]] give their rows, [1, 2] gives itself as one row.
    """
    if isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        return value
    return [value]
