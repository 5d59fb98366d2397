"""Rows packed into blocks: some hundred thousand tokens become arrays in one conversion a column."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from validation.audit.block import UNKNOWN, Block, Row
from validation.audit.errors import BadLog, one_line

TOKENS_PER_BLOCK = 1 << 17
"""Tokens packed at a time: the memory of a block is about 200 bytes a token, Python lists included"""

FLOAT_COLUMNS = ("logmu", "logpi_s", "logpi", "entropy", "kept_mass", "advantage")
PER_ROW = ("advantage", "kept_mass")
"""Columns that may be one number for the whole row"""


def blocks(rows: Iterable[Row], /, *, size: int = TOKENS_PER_BLOCK) -> Iterator[Block]:
    """Pack rows into blocks of about `size` tokens, in order."""
    held: list[Row] = []
    count = 0
    for row in rows:
        held.append(row)
        count += max(_length(row), 1)
        if count >= size:
            yield pack(held)
            held, count = [], 0
    if held:
        yield pack(held)


def _length(row: Row) -> int:
    """Tokens of a row: that of its ids, else of the first list of log-probs there is."""
    for name in ("token", "logmu", "logpi_s", "logpi"):
        values = getattr(row, name)
        if isinstance(values, list):
            return len(values)
        if values is not None:
            raise _not_numbers(row, name, values)
    return 0


def pack(rows: list[Row], /) -> Block:
    """Turn rows into one block; lists of the wrong length are cut or padded with NaN and the row says so.

    Raises
    ------
    BadLog
        Where a list holds something that is not a number.
    """
    lengths = [_length(r) for r in rows]
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    total = int(starts[-1])
    tokens: dict[str, np.ndarray] = {}
    for name in FLOAT_COLUMNS:
        lists = [getattr(r, name) for r in rows]
        if any(values is not None for values in lists):
            tokens[name] = _floats(rows, name, lists, lengths)
    tokens["mask"] = np.ones(total, dtype=bool)
    if any(r.mask is not None for r in rows):
        filled = [r.mask if r.mask is not None else [1] * n for r, n in zip(rows, lengths, strict=True)]
        # a mask entry that is missing or NaN compares as False: a token nobody vouches for is not counted
        tokens["mask"] = _floats(rows, "mask", filled, lengths) > 0
    for i, row in enumerate(rows):
        if (shortest := _shortest(row)) < lengths[i]:
            tokens["mask"][starts[i] + shortest : starts[i + 1]] = False
    tokens["position"] = np.arange(total) - np.repeat(_first_counted(tokens["mask"], starts), lengths)
    if any(r.token is not None for r in rows):
        tokens["token"] = _integers(rows, "token", [r.token for r in rows], lengths)
    steps = [_integer(r.step) for r in rows]
    columns = {
        "step": np.array(steps, dtype=np.int64),
        "group": np.array([_key(r.group) for r in rows], dtype=np.int64),
        "prompt": np.array([_prompt_key(r.prompt) for r in rows], dtype=np.int64),
        "length": np.array(lengths, dtype=np.int64),
        "reward": np.array([_float(r.reward) for r in rows]),
        "finish_reason": np.array([_word(r.finish_reason) for r in rows], dtype="U16"),
        "trainer_version": np.array([_integer(r.trainer_version) for r in rows], dtype=np.int64),
        "file": np.array([r.file for r in rows], dtype=np.int64),
        "line": np.array([r.line for r in rows], dtype=np.int64),
        "pack": np.array([_integer(r.pack) for r in rows], dtype=np.int64),
        "length_error": np.array([_length_error(r, n) for r, n in zip(rows, lengths, strict=True)]),
        "id_error": np.array([_id_error(r) for r in rows]),
        "mu_given": np.array([r.logmu is not None for r in rows]),
    }
    versions, mixed = _versions(rows, starts)
    columns["mixed_version"] = mixed
    first = np.minimum(starts[:-1], max(total - 1, 0))
    columns["sampler_version"] = versions[first] if total else np.full(len(rows), UNKNOWN)
    return Block(tokens=tokens, rows=columns, starts=starts, extra={"version": versions})


def _first_counted(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Index of each row's first counted token, so that padding on the left moves no position."""
    at = np.flatnonzero(mask)
    if not len(at):
        return starts[:-1]
    first = at[np.minimum(np.searchsorted(at, starts[:-1]), len(at) - 1)]
    return np.where((first >= starts[:-1]) & (first < starts[1:]), first, starts[:-1])


def _floats(rows: list[Row], name: str, lists: list[Any], lengths: list[int]) -> np.ndarray:
    """One float column; None becomes NaN, a scalar is spread over its row."""
    fitted = []
    for row, values, n in zip(rows, lists, lengths, strict=True):
        if values is None:
            fitted.append([None] * n)
        elif isinstance(values, list):
            fitted.append(values if len(values) == n else (values + [None] * n)[:n])
        elif isinstance(values, np.ndarray) and values.ndim == 1:
            fitted.append((values.tolist() + [None] * n)[:n])
        elif name in PER_ROW and isinstance(values, (int, float)) and not isinstance(values, bool):
            fitted.append([values] * n)
        else:
            raise _not_numbers(row, name, values)
    try:
        out = np.array(list(chain.from_iterable(fitted)), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        out = None
    if out is None or out.ndim != 1:
        raise _not_numbers(*_first_bad(rows, name, fitted, np.float64))
    return out


def _integers(rows: list[Row], name: str, lists: list[Any], lengths: list[int]) -> np.ndarray:
    """One column of token ids; -1 where a row has none."""
    fitted = [
        [-1] * n if v is None else (v if len(v) == n else (list(v) + [-1] * n)[:n])
        for v, n in zip(lists, lengths, strict=True)
    ]
    try:
        out = np.array(list(chain.from_iterable(fitted)), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        out = None
    if out is None or out.ndim != 1:
        raise _not_numbers(*_first_bad(rows, name, fitted, np.int64))
    return out


def _first_bad(rows: list[Row], name: str, lists: list[Any], dtype: Any) -> tuple[Row, str, Any]:
    for row, values in zip(rows, lists, strict=True):
        try:
            if np.array(values, dtype=dtype).ndim == 1:
                continue
        except (TypeError, ValueError, OverflowError):
            pass
        return row, name, values
    return rows[0], name, lists[0]


def _not_numbers(row: Row, name: str, values: Any) -> BadLog:
    return BadLog(
        f"{row.where}: {name} must be a flat list of numbers, got {one_line(values, limit=60)}; "
        "check the format (--format) or repair the line"
    )


def _versions(rows: list[Row], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Version behind each token, and which rows were sampled by several weights at places nobody logged."""
    out = np.full(int(starts[-1]), UNKNOWN, dtype=np.int64)
    mixed = np.zeros(len(rows), dtype=bool)
    for i, row in enumerate(rows):
        version = row.version
        if version is None:
            continue
        lo, hi = int(starts[i]), int(starts[i + 1])
        if not isinstance(version, list):
            out[lo:hi] = _integer(version)
        elif version and all(isinstance(s, (list, tuple)) and len(s) == 3 for s in version):
            for v, start, end in version:
                span = slice(lo + max(_integer(start), 0), min(lo + max(_integer(end), 0), hi))
                out[span] = _integer(v)
        elif len(version) == hi - lo and len(version) > 1 and all(isinstance(v, int) for v in version):
            out[lo:hi] = [_integer(v) for v in version]
        else:
            known = [v for v in map(_integer, version) if v != UNKNOWN]
            if known:
                out[lo:hi] = min(known)
                mixed[i] = len(set(known)) > 1
    return out, mixed


def _length_error(row: Row, n: int) -> int:
    """Entries by which a list of log-probs is longer than the ids; 0 where they agree."""
    for values in (row.logmu, row.logpi_s, row.logpi, row.mask):
        if isinstance(values, list) and len(values) != n:
            return len(values) - n
    return 0


def _shortest(row: Row) -> int:
    """Length of the shortest list of log-probs; beyond it there is nothing to compare."""
    lists = (row.logmu, row.logpi_s, row.logpi)
    return min((len(v) for v in lists if isinstance(v, list)), default=_length(row))


def _id_error(row: Row) -> int:
    """Tokens whose two lists of ids disagree, length included."""
    if row.other_token is None or row.token is None:
        return 0
    if not isinstance(row.other_token, list):
        raise _not_numbers(row, "the second list of ids", row.other_token)
    differing = sum(a != b for a, b in zip(row.token, row.other_token, strict=False))
    return differing + abs(len(row.token) - len(row.other_token))


def _integer(value: Any) -> int:
    """Return a number or numeric word as an integer; UNKNOWN for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or value is None:
        return UNKNOWN
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else UNKNOWN
    if isinstance(value, float):
        return int(value) if abs(value) < 1 << 53 else UNKNOWN
    if isinstance(value, str):
        digits = value.strip().lstrip("v")
        if 0 < len(digits) < 18 and digits.removeprefix("-").isdecimal() and digits.isascii():
            return int(digits)
    return UNKNOWN


def _float(value: Any) -> float:
    """Return a number, a list of one, or NaN."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else float("nan")


def _word(value: Any) -> str:
    return value[:16] if isinstance(value, str) else ""


def _key(value: Any) -> int:
    """Return a stable number for a group's name."""
    number = _integer(value)
    if number != UNKNOWN or value is None:
        return number
    return zlib.crc32(repr(value)[:1000].encode("utf-8", "replace"))


def _prompt_key(ids: Any) -> int:
    """Return a stable number for a list of prompt ids."""
    if not isinstance(ids, list) or not ids:
        return UNKNOWN
    try:
        return hash(tuple(ids))  # of integers: the same in each process
    except TypeError:
        return UNKNOWN
