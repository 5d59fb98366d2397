"""The canonical trace on disk: one JSON object a line, one line a response.

What cannot be told is null, never 0.

==================  =======================================================================================
field               meaning
==================  =======================================================================================
run                 name of the run, or null
step                index of the trainer's update the response was used in, from 1
seq_id              response, unique in the step
group_id            prompt it answers, unique in the step, or null
prompt_ids          token ids, or null
response_ids        token ids, n of them
mask                n of 0/1: whether the token counts in the loss
logp_mu             n of nats: engine, as really sampled; null as a whole or at a token not sampled
logp_pi_s           n of nats: trainer at the sampler's weights, or null
logp_pi             n of nats: trainer at the measuring point, or null
advantage           n of reward, or one number, or null
version             updates behind the sampler's weights: int, spans ``[[version, start, end], ...]``, null
trainer_version     updates behind the trainer's weights at the measuring point, or null
entropy, kept_mass  n of nats (entropy of pi_s); n of shares; or null
sampling            settings of the sampler: T, top_p, top_k, min_p, logprobs_mode, ...; or null
reward              of the whole response, or null
finish_reason       stop, length, ...; or null
source              which hook wrote the line
==================  =======================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from theory.limits import shown

PER_TOKEN = ("response_ids", "mask", "logp_mu", "logp_pi_s", "logp_pi", "entropy", "kept_mass")
"""Fields with one entry a response token"""

FIELDS = (
    "run",
    "step",
    "seq_id",
    "group_id",
    "prompt_ids",
    *PER_TOKEN,
    "advantage",
    "version",
    "trainer_version",
    "sampling",
    "reward",
    "finish_reason",
    "source",
)


def row(
    *, step: int, seq_id: int | str, response_ids: Any, mask: Any, source: str, **rest: Any
) -> dict[str, Any]:
    """One line of the canonical trace.

    Parameters
    ----------
    step, seq_id, response_ids, mask, source
        As in the table above; the only fields that must be known.
    **rest
        The other fields; absent ones become null. Sequences may be lists or tensors of any kind with
        ``tolist``.

    Raises
    ------
    ValueError
        For a field the format does not have, a step that is no whole number, a per-token field that is no
        list of numbers or whose length differs from `response_ids`, and a mask of other numbers than 0 and 1.
    """
    unknown = sorted(set(rest) - set(FIELDS))
    if unknown:
        raise ValueError(f"a canonical line has no field {unknown[0]!r}; known: {', '.join(FIELDS)}")
    given = {
        "step": step,
        "seq_id": seq_id,
        "response_ids": response_ids,
        "mask": mask,
        "source": source,
    } | rest
    line = {name: _plain(given.get(name)) for name in FIELDS}
    if type(line["step"]) is not int:
        raise ValueError(f"step is a whole number, from 1, got {shown(step)}; count the trainer's updates")
    for name in PER_TOKEN:
        if line[name] is not None or name in ("response_ids", "mask"):
            _refuse_odd(name, line[name])
    if odd := [m for m in line["mask"] if m not in (0, 1)]:
        raise ValueError(f"mask says by 0 or 1 whether a token counts, got {shown(odd[0])}; pass mask > 0")
    line["mask"] = [int(m) for m in line["mask"]]
    tokens = len(line["response_ids"])
    for name in (*PER_TOKEN, "advantage"):
        if isinstance(line[name], list) and len(line[name]) != tokens:
            raise ValueError(
                f"{name} must have one entry for each of the {tokens} response tokens, "
                f"got {len(line[name])}; cut the padding off first"
            )
    return line


def append(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]], /) -> int:
    """Append lines to a file and return how many: all of them or, on an error, none.

    The file is locked meanwhile, so that lines of two processes do not mix. What a killed process left of a
    line stays a line of its own. A NaN or infinite number is written as null: a broken log-prob was not
    measured.

    Raises
    ------
    ValueError
        For what is no mapping, and what JSON cannot hold.
    OSError
        For a file that cannot be written; the disk may be full.
    """
    lines = [_json(r) for r in rows]
    if not lines:
        return 0
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        text = b"\n".join(lines) + b"\n"
        _write(file, text if _ends_whole(path) else b"\n" + text)
    return len(lines)


def _json(line: Any) -> bytes:
    if not isinstance(line, Mapping):
        raise ValueError(f"a line is a mapping as row() makes it, got {shown(line)}; pass a list of them")
    try:
        return orjson.dumps(line)
    except TypeError as error:
        raise ValueError(
            f"a line holds numbers, texts and lists of them, got {' '.join(str(error).split())}; "
            "convert what is not"
        ) from None


def _ends_whole(path: Path) -> bool:
    """Whether the last line of the file, if there is one, has ended."""
    if not path.is_file() or not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _write(file: FileIO, text: bytes) -> None:
    """Write all of a text; where that fails, cut the file to what it was."""
    before = os.fstat(file.fileno()).st_size
    left = memoryview(text)
    try:
        while left:
            left = left[file.write(left) :]  # a disk that fills up takes a part, and refuses the next
    except OSError:
        with contextlib.suppress(OSError):  # a device
            file.truncate(before)
        raise


def _refuse_odd(name: str, values: Any) -> None:
    """Refuse what is no list of numbers and nulls."""
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list, one entry a response token, got {shown(values)}")
    if odd := set(map(type, values)) - {int, float, bool, type(None)}:
        found = next(v for v in values if type(v) in odd)
        raise ValueError(f"{name} must be a list of numbers, got {shown(found)} in it; pass one a token")


def _plain(value: Any) -> Any:
    """Turn arrays, tensors and their scalars into lists, numbers and words."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(v) for v in value]
    return value
