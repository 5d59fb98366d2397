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

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

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
        For a field the format does not have, or a per-token list whose length differs from `response_ids`.
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
    line["mask"] = [int(m) for m in line["mask"]]
    tokens = len(line["response_ids"])
    for name in PER_TOKEN:
        if line[name] is not None and len(line[name]) != tokens:
            raise ValueError(
                f"{name} must have one entry for each of the {tokens} response tokens, "
                f"got {len(line[name])}; cut the padding off first"
            )
    return line


def append(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]], /) -> int:
    """Append lines to a file and return how many; one write, so that lines of two processes do not mix.

    A NaN or infinite number is written as null: a broken log-prob was not measured.
    """
    lines = [orjson.dumps(r) for r in rows]
    if not lines:
        return 0
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(b"\n".join(lines) + b"\n")
    return len(lines)


def _plain(value: Any) -> Any:
    """Turn arrays, tensors and their scalars into lists, numbers and words."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return value
