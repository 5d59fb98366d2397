"""Responses of SGLang's /generate with return_logprob: triples of log-prob, id and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import Row
from validation.audit.errors import BadLog
from validation.audit.readers.base import MEASURED, Reader, Source, where


def _recognise(record: Mapping[str, Any]) -> bool:
    told = record.get("meta_info")
    return isinstance(told, dict) and isinstance(told.get("output_token_logprobs"), list)


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    told = record["meta_info"]
    triples = told["output_token_logprobs"]
    if not all(isinstance(t, list) and len(t) >= 2 for t in triples):
        raise BadLog(
            f"{where(source, line)}: output_token_logprobs must hold [logprob, id, text] lists; repair the"
            " line"
        )
    ended = told.get("finish_reason")
    ids = record.get("output_ids")
    yield Row(
        where=where(source, line),
        logmu=[t[0] for t in triples],
        token=[t[1] for t in triples],
        other_token=ids if isinstance(ids, list) else None,
        step=record.get("step", source.step),
        prompt=record.get("input_ids"),
        finish_reason=ended.get("type") if isinstance(ended, dict) else ended,
        version=told.get("weight_version"),
        file=source.file,
        line=line,
    )


READER = Reader(
    name="sglang",
    source="responses of SGLang's /generate (return_logprob: true)",
    recognise=_recognise,
    rows=_rows,
    provenance={"logmu": MEASURED},
    null_is_broken=True,
)
