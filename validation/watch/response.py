"""One line of a canonical trace as the audit's reader reads it, and the measures of the responses of a step.

A column that a line lacks, and an entry that is null or NaN, was not measured and does not count. An infinite
log-prob was measured: it counts, and the ratio it makes is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from theory.batch import refuse_positive
from theory.monitor import read_batch
from validation.audit.block import UNKNOWN
from validation.audit.errors import BadLog, one_line
from validation.audit.packing import pack
from validation.audit.readers import canonical
from validation.audit.readers.base import Source

COLUMNS = {"logp_mu": "logmu", "logp_pi_s": "logpi_s", "logp_pi": "logpi"}
"""Log-probs: their names in a trace, and in a block of the audit"""


class Response(NamedTuple):
    """What a line says, T response tokens; NaN is not measured."""

    step: int
    logs: Mapping[str, np.ndarray]
    """Those of COLUMNS that the line has, (T,) each, nats"""
    mask: np.ndarray
    """(T,); without a mask in the line every response token counts"""
    reward: float
    version: int | None
    """Of the sampler's weights"""


def response_of(record: Any, source: Source, line: int, /) -> Response:
    """Take a line in.

    Raises
    ------
    ValueError
        For a line that is no response of a canonical trace, and for one that says what cannot be.
    """
    if not isinstance(record, dict):
        raise ValueError(f"a line must be a JSON object, got {_kind(record)}")
    if not (canonical.READER.recognise(record) or "response_ids" in record):
        raise ValueError("it has no log-probs of a canonical trace and no response_ids")
    (row,) = canonical.READER.rows(record, source, line)
    try:
        block = pack([row])
    except BadLog as error:
        # the audit says where by itself, and names its own options behind the semicolon
        raise ValueError(str(error).removeprefix(f"{row.where}: ").rpartition("; ")[0]) from None
    step, version = int(block.rows["step"][0]), int(block.rows["sampler_version"][0])
    if step == UNKNOWN:
        raise ValueError(f"step must be an integer, got {one_line(record.get('step', 'no step'), limit=40)}")
    if more := int(block.rows["length_error"][0]):
        raise ValueError(
            "its lists must have one entry a response token, got one with "
            f"{abs(more)} too {'many' if more > 0 else 'few'}"
        )
    reward = float(block.rows["reward"][0])
    if record.get("reward") is not None and not math.isfinite(reward):
        raise ValueError(f"reward must be a finite number, got {one_line(record['reward'], limit=40)}")
    logs = {name: block.tokens[ours] for name, ours in COLUMNS.items() if ours in block.tokens}
    mask = block.tokens["mask"]
    refuse_positive(**{name: x[mask] for name, x in logs.items()})
    return Response(step, logs, mask, reward, None if version == UNKNOWN else version)


def _kind(value: Any) -> str:
    return "no JSON" if value is None else f"a {type(value).__name__}"


def measures_of(responses: Sequence[Response], /) -> dict[str, float]:
    """Measures of one step, keys of STEP_COLUMNS; what its lines lack is absent."""
    rewards = [r.reward for r in responses if not math.isnan(r.reward)]
    found = {"reward": float(np.mean(rewards))} if rewards else {}
    columns = _measured(responses)
    mu, pi_s, pi = (columns.get(name) for name in COLUMNS)
    whole = _whole(responses, columns)
    if pi_s is not None and pi is not None:
        return found | read_batch(mu, pi_s, pi, mask=whole, resamples=0).measures()
    if mu is not None and pi is not None:  # only their sum is known
        return found | {"ess_total": read_batch(None, mu, pi, mask=whole, resamples=0).ess_token}
    if mu is not None and pi_s is not None:
        reading = read_batch(mu, pi_s, pi_s, mask=whole, resamples=0)
        return found | {"discrepancy_rms": reading.discrepancy_rms}
    return found


def holes_of(responses: Sequence[Response], /) -> int:
    """Response tokens of a step that do not count, since a column the step has lacks their number."""
    columns = _measured(responses)
    if not columns:
        return 0
    return sum(int(r.mask.sum()) for r in responses) - int(_whole(responses, columns).sum())


def _measured(responses: Sequence[Response]) -> dict[str, np.ndarray]:
    """Columns with a number at a token that counts, (B, T), NaN where a response has ended or has none."""
    mask = _padded([r.mask for r in responses], fill=0.0) > 0
    columns = {}
    for name in COLUMNS:
        column = _padded([r.logs.get(name, np.full(len(r.mask), math.nan)) for r in responses], fill=math.nan)
        if not np.isnan(column[mask]).all():
            columns[name] = column
    return columns


def _whole(responses: Sequence[Response], columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tokens that count and have a number in each column, (B, T)."""
    whole = _padded([r.mask for r in responses], fill=0.0) > 0
    for column in columns.values():
        whole = whole & ~np.isnan(column)
    return whole


def _padded(rows: Sequence[np.ndarray], *, fill: float) -> np.ndarray:
    out = np.full((len(rows), max(map(len, rows), default=0)), fill)
    for line, values in zip(out, rows, strict=True):
        line[: len(values)] = values
    return out
