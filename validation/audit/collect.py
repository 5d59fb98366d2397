"""One pass over the blocks: exact sums of everything, tables, and a bounded sample for the detectors.

Memory is bounded whatever the log's size: sums do not grow, and the sample is thinned when it is full. What
is rare is kept in the exact sums: broken values, the largest differences.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from theory.ess import EssState, ess_state, merge_states
from validation.audit.block import UNKNOWN, Block
from validation.audit.peers import PeerSums
from validation.audit.signs import Signs
from validation.audit.sums import (
    FLOOR,
    POSITION_EDGES,
    PROBABILITY_EDGES,
    KeyedTable,
    RatioSums,
    Table,
    in_use,
    token_columns,
)
from validation.audit.thinning import Sample, Thinned

LARGEST_KEPT = 64
"""Tokens with the largest |d| that are remembered with their place"""
LOGPS = ("logmu", "logpi_s", "logpi")


class Place(NamedTuple):
    """One token, where it stands and what was logged for it."""

    size: float
    file: int
    line: int
    step: int
    position: int
    token: int
    logmu: float
    reference: float

    @property
    def words(self) -> str:
        """Where it stands, for messages."""
        step = f"step {self.step}, " if self.step != UNKNOWN else ""
        return f"{step}line {self.line} position {self.position}"


class Collector:
    """Everything the report needs, filled by `add`."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rows = 0
        self.masked = 0
        self.reference: str | None = None
        self.measured: Counter[str] = Counter()
        """Tokens under the mask with a number, by column"""
        self.broken: Counter[tuple[str, str]] = Counter()
        """Tokens under the mask by (column, what is wrong)"""
        self.broken_rows: Counter[tuple[str, str]] = Counter()
        self.broken_places: dict[tuple[str, str], list[Place]] = {}
        self.signs = {name: Signs() for name in LOGPS}
        self.length_errors: Counter[int] = Counter()
        self.id_errors = [0, 0]
        """Rows whose two id lists differ, and tokens that differ"""
        self.mixed_versions = 0
        self.discrepancy = RatioSums()
        """log reference - log mu"""
        self.lag = RatioSums()
        """log pi - log pi_s"""
        self.total = RatioSums()
        """log pi - log mu"""
        self.response: dict[str, EssState] = {}
        self.peers = PeerSums()
        self.by_position, self.by_probability = Table(), Table()
        self.by_step, self.by_gap, self.by_finish = KeyedTable(), KeyedTable(), KeyedTable()
        self.lag_by_step, self.lag_by_gap = KeyedTable(), KeyedTable()
        self.largest: list[Place] = []
        self._thinned = Thinned()

    def add(self, block: Block, /) -> None:
        """Take one block."""
        mask = block.tokens["mask"]
        self.tokens += mask.size
        self.rows += len(block.starts) - 1
        self.masked += int(mask.sum())
        self._note_rows(block)
        usable = self._note_broken(block, mask)
        self._choose_reference(usable)
        self._sums(block, mask, usable)
        self._thinned.add(block)

    def sample(self) -> Sample:
        """Return the sampled rows joined; a column some blocks lack is NaN there."""
        return self._thinned.joined()

    def _note_rows(self, block: Block) -> None:
        errors = block.rows["length_error"]
        self.length_errors.update(errors[errors != 0].tolist())
        wrong = block.rows["id_error"]
        self.id_errors[0] += int((wrong > 0).sum())
        self.id_errors[1] += int(wrong.sum())
        self.mixed_versions += int(block.rows["mixed_version"].sum())

    def _note_broken(self, block: Block, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Count what is no log-prob, by column, and return where each column can be used."""
        usable: dict[str, np.ndarray] = {}

        def words(at: int) -> str:
            return self._place(block, at, math.nan).words

        for name in (*LOGPS, "entropy", "kept_mass", "advantage"):
            column = block.tokens.get(name)
            if column is None:
                continue
            good = np.isfinite(column) if name == "advantage" else in_use(column)
            self.measured[name] += int((good & mask).sum())
            usable[name] = good & mask
            if name in self.signs:
                self.signs[name].add(column, usable[name], block.row_of_token, words)
            if good.all():
                continue
            bad = mask & ~good
            if bad.any():
                self._note_bad_column(block, name, column, bad)
        return usable

    def _note_bad_column(self, block: Block, name: str, column: np.ndarray, bad: np.ndarray) -> None:
        owner, rows = block.row_of_token, len(block.starts) - 1
        whole = np.bincount(owner[bad], minlength=rows) == np.bincount(
            owner[block.tokens["mask"]], minlength=rows
        )
        if name == "logmu":
            whole &= ~block.rows["mu_given"]
        # a column that is null in a whole row was not measured there; only holes in it are broken values. The
        # engine always knows its own: a list that is there and all null is broken
        unmeasured = np.isnan(column) & whole[owner] & bad
        self.broken[name, "unmeasured"] += int(unmeasured.sum())
        self.broken_rows[name, "unmeasured"] += len(np.unique(owner[unmeasured]))
        kinds = {
            "missing or NaN": bad & np.isnan(column) & ~unmeasured,
            "infinite": bad & np.isinf(column),
            "floor": bad & np.isfinite(column) & (column < 0),
            f"above {-FLOOR:g}": bad & np.isfinite(column) & (column > 0),
        }
        for kind, where in kinds.items():
            if not where.any():
                continue
            self.broken[name, kind] += int(where.sum())
            self.broken_rows[name, kind] += len(np.unique(owner[where]))
            places = self.broken_places.setdefault((name, kind), [])
            for t in np.flatnonzero(where)[: max(0, 8 - len(places))]:
                places.append(self._place(block, int(t), float("nan")))

    def _choose_reference(self, usable: dict[str, np.ndarray]) -> None:
        if self.reference is None:
            self.reference = next((c for c in ("logpi_s", "logpi") if c in usable and usable[c].any()), None)

    def _sums(self, block: Block, mask: np.ndarray, usable: dict[str, np.ndarray]) -> None:
        row = block.row_of_token
        reference = self.reference
        nothing = np.zeros(mask.size, dtype=bool)
        if reference is not None:
            use = usable.get("logmu", nothing) & usable.get(reference, nothing)
            if use.any():
                self._pair(block, use, row, reference)
        if "logpi_s" in usable and "logpi" in usable:
            use = usable["logpi_s"] & usable["logpi"]
            if use.any():
                g = block.tokens["logpi_s"][use] - block.tokens["logpi"][use]
                columns = token_columns(g).columns
                self.lag.add(-g)
                self._responses("lag", -g, row[use])
                self._row_tables(block, columns, row[use], use, self.lag_by_step, self.lag_by_gap)
            both = use & usable.get("logmu", nothing)
            if both.any():
                x = block.tokens["logpi"][both] - block.tokens["logmu"][both]
                self.total.add(x)
                self._responses("total", x, row[both])

    def _pair(self, block: Block, use: np.ndarray, row: np.ndarray, reference: str) -> None:
        mu, ref = block.tokens["logmu"][use], block.tokens[reference][use]
        d = mu - ref
        columns, ratio = token_columns(d)
        self.discrepancy.add(-d)
        owner = row[use]
        self._responses("discrepancy", -d, owner)
        self.peers.add(mu, d, ratio, _starts(owner))
        position = np.searchsorted(POSITION_EDGES, block.tokens["position"][use], side="right")
        self.by_position.add(position, columns)
        self.by_probability.add(np.searchsorted(np.log(PROBABILITY_EDGES), mu, side="right"), columns)
        self._row_tables(block, columns, owner, use, self.by_step, self.by_gap)
        per_row = _per_row(columns, owner)
        self.by_finish.add(block.rows["finish_reason"][per_row.rows], per_row.sums)
        self._remember_largest(block, np.flatnonzero(use), np.abs(d), mu, ref)

    def _row_tables(
        self,
        block: Block,
        columns: np.ndarray,
        owner: np.ndarray,
        use: np.ndarray,
        by_step: KeyedTable,
        by_gap: KeyedTable,
    ) -> None:
        """Add to the tables whose key belongs to a row; a version may change within one."""
        per_row = _per_row(columns, owner)
        by_step.add(block.rows["step"][per_row.rows], per_row.sums)
        version = block.extra["version"][use]
        starts = _starts(owner)
        first = np.repeat(version[starts], np.diff(np.append(starts, len(owner))))
        if (version != first).any():
            keys, sums, rows = version, columns, owner
        else:
            keys, sums, rows = version[starts], per_row.sums, per_row.rows
        trainer = block.rows["trainer_version"][rows]
        known = (keys != UNKNOWN) & (trainer != UNKNOWN)
        if known.any():
            by_gap.add((trainer - keys)[known], sums[:, known])

    def _responses(self, name: str, x: np.ndarray, owner: np.ndarray) -> None:
        new = ess_state(np.add.reduceat(x, _starts(owner)))
        self.response[name] = merge_states(self.response[name], new) if name in self.response else new

    def _remember_largest(
        self, block: Block, at: np.ndarray, size: np.ndarray, mu: np.ndarray, ref: np.ndarray
    ) -> None:
        floor = self.largest[0].size if len(self.largest) == LARGEST_KEPT else -1.0
        count = min(LARGEST_KEPT, size.size)
        best = np.argpartition(size, size.size - count)[size.size - count :]
        for i in best[size[best] > floor]:
            place = self._place(block, int(at[i]), float(size[i]), float(mu[i]), float(ref[i]))
            if len(self.largest) < LARGEST_KEPT:
                heapq.heappush(self.largest, place)
            else:
                heapq.heappushpop(self.largest, place)

    def _place(
        self, block: Block, at: int, size: float, mu: float = float("nan"), ref: float = float("nan")
    ) -> Place:
        row = int(np.searchsorted(block.starts, at, side="right")) - 1
        token = block.tokens.get("token")
        return Place(
            size,
            int(block.rows["file"][row]),
            int(block.rows["line"][row]),
            int(block.rows["step"][row]),
            int(block.tokens["position"][at]),
            int(token[at]) if token is not None else -1,
            mu,
            ref,
        )


class _PerRow(NamedTuple):
    rows: np.ndarray
    sums: np.ndarray


def _starts(owner: np.ndarray) -> np.ndarray:
    """Where each row begins in a sorted list of owners."""
    return np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))


def _per_row(columns: np.ndarray, owner: np.ndarray) -> _PerRow:
    starts = _starts(owner)
    return _PerRow(owner[starts], np.add.reduceat(columns, starts, axis=1))
