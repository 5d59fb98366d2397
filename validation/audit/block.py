"""Responses as rows of Python lists, and blocks of columns they are packed into: the audit's unit of work.

Readers yield one `Row` a response with the lists just as JSON gave them; `packing` makes a `Block` of some
hundred thousand tokens. Token columns are those of `theory.records.TOKEN_COLUMNS`, row columns those of
`SEQUENCE_COLUMNS`; what foreign logs add (a version per token, a second list of ids) stands in `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from theory.records import SEQUENCE_COLUMNS, TOKEN_COLUMNS

ROW_EXTRAS = ("file", "line", "prompt", "pack", "length_error", "mixed_version", "id_error", "mu_given")
"""file, line: where the row stands; prompt: key of its prompt ids; pack: place in its pack; length_error:
log-probs minus ids; mixed_version: sampled by several weights at unknown places; id_error: ids that two lists
tell differently; mu_given: whether there is a list of the engine's log-probs at all"""

UNKNOWN = np.iinfo(np.int64).min
"""A version, group, prompt or pack that was not logged"""


class Row(NamedTuple):
    """One response as logged; lists have one entry a response token, None means not logged."""

    where: str
    """File and line, for messages"""
    logmu: list[Any] | None = None
    logpi_s: list[Any] | None = None
    logpi: list[Any] | None = None
    token: list[Any] | None = None
    mask: list[Any] | None = None
    entropy: list[Any] | None = None
    kept_mass: list[Any] | None = None
    advantage: list[Any] | float | None = None
    step: Any = None
    group: Any = None
    prompt: list[Any] | None = None
    reward: Any = None
    finish_reason: Any = None
    version: Any = None
    """An integer, spans [[version, start, end], ...], a list with one version a token, or words"""
    trainer_version: Any = None
    pack: Any = None
    other_token: list[Any] | None = None
    """A second list of ids for the same tokens, where the log has one"""
    file: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Columns of many responses; tokens of row i are ``starts[i]:starts[i + 1]``."""

    tokens: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]
    """Keys of SEQUENCE_COLUMNS and ROW_EXTRAS"""
    starts: np.ndarray
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    """version: weights behind each token, UNKNOWN where not logged"""

    def __post_init__(self) -> None:
        """Refuse columns nobody has defined."""
        unknown = set(self.tokens) - set(TOKEN_COLUMNS) | set(self.rows) - set(SEQUENCE_COLUMNS) - set(
            ROW_EXTRAS
        )
        if unknown:
            raise ValueError(
                f"a block has no column {sorted(unknown)[0]!r}; known: {', '.join(TOKEN_COLUMNS)}"
            )

    @property
    def row_of_token(self) -> np.ndarray:
        """Index of the row each token belongs to."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
