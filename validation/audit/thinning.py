"""A bounded sample of whole rows for the detectors, thinned while the log is read.

By taking every second run of rows when it is full: what is kept does not depend on how long the log will be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from validation.audit.block import Block

SAMPLE_TOKENS = 1 << 19
"""Tokens kept whole for the detectors: 40 MB"""
SAMPLE_ROWS = 1 << 16
RUN_OF_ROWS = 32
"""Rows that are kept or dropped together: neighbours are samples of one prompt or of one pack"""


class Sample:
    """Columns of sampled whole rows; tokens of row i are ``starts[i]:starts[i + 1]``."""

    def __init__(
        self, tokens: dict[str, np.ndarray], rows: dict[str, np.ndarray], starts: np.ndarray
    ) -> None:
        self.tokens, self.rows, self.starts = tokens, rows, starts

    @property
    def size(self) -> int:
        """Tokens in the sample."""
        return int(self.starts[-1])


class Thinned:
    """Rows kept of all blocks so far."""

    def __init__(self) -> None:
        self._rows = 0
        self._stride = 1
        self._kept: list[tuple[np.ndarray, Block]] = []
        """Numbers of the rows kept, with their columns"""
        self._kept_tokens = 0
        self._kept_rows = 0

    def add(self, block: Block, /) -> None:
        """Take the rows of a block that the stride hits."""
        number = self._rows + np.arange(len(block.starts) - 1)
        self._rows += len(number)
        self._hold(number, block)
        while self._overfull():
            self._stride *= 2
            held, self._kept, self._kept_tokens, self._kept_rows = self._kept, [], 0, 0
            for number, kept in held:
                self._hold(number, kept)

    def _hold(self, number: np.ndarray, block: Block) -> None:
        """Keep those rows whose run is a multiple of the stride."""
        chosen = np.flatnonzero((number // RUN_OF_ROWS) % self._stride == 0)
        if not len(chosen):
            return
        kept = _subset(block, chosen)
        self._kept.append((number[chosen], kept))
        self._kept_tokens += int(kept.starts[-1])
        self._kept_rows += len(chosen)

    def _overfull(self) -> bool:
        full = self._kept_tokens > SAMPLE_TOKENS or self._kept_rows > SAMPLE_ROWS
        # one run of rows is kept however long its rows are
        return full and self._kept_rows > RUN_OF_ROWS

    def joined(self) -> Sample:
        """Return the sampled rows joined; a column some blocks lack is NaN there."""
        held = [block for _, block in self._kept]
        names = sorted({n for b in held for n in b.tokens})
        tokens: dict[str, np.ndarray] = {}
        for name in names:
            tokens[name] = np.concatenate(
                [b.tokens[name] if name in b.tokens else _blank(name, int(b.starts[-1])) for b in held]
            )
        rows: dict[str, np.ndarray] = {}
        starts = np.zeros(1, dtype=np.int64)
        if held:
            tokens["version"] = np.concatenate([b.extra["version"] for b in held])
            rows = {n: np.concatenate([b.rows[n] for b in held]) for n in held[0].rows}
            starts = np.append(0, np.cumsum(np.concatenate([np.diff(b.starts) for b in held])))
        return Sample(tokens, rows, starts)


def _subset(block: Block, chosen: np.ndarray) -> Block:
    """Whole rows of a block."""
    lengths = np.diff(block.starts)
    starts = np.append(0, np.cumsum(lengths[chosen]))
    if len(chosen) == len(lengths):
        return block
    keep = np.zeros(len(lengths), dtype=bool)
    keep[chosen] = True
    at = np.repeat(keep, lengths)
    return Block(
        tokens={n: v[at] for n, v in block.tokens.items()},
        rows={n: v[chosen] for n, v in block.rows.items()},
        starts=starts,
        extra={n: v[at] for n, v in block.extra.items()},
    )


def _blank(name: str, size: int) -> Any:
    if name == "token":
        return np.full(size, -1, dtype=np.int64)
    return np.full(size, np.nan)
