"""open-instruct: {run}_rollouts_{shard}.jsonl of save_traces (the engine's side only)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import Row
from validation.audit.readers.base import MEASURED, Reader, Source, where


def _recognise(record: Mapping[str, Any]) -> bool:
    return "response_tokens" in record and "prompt_tokens" in record


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    get = record.get
    yield Row(
        where=where(source, line),
        logmu=get("logprobs"),
        token=get("response_tokens"),
        mask=get("mask"),
        step=get("step", source.step),
        group=get("prompt_idx"),
        prompt=get("prompt_tokens"),
        reward=get("reward"),
        finish_reason=get("finish_reason"),
        file=source.file,
        line=line,
    )


READER = Reader(
    name="open-instruct",
    source="open-instruct traces (save_traces, rollouts_save_path)",
    recognise=_recognise,
    rows=_rows,
    provenance={"logmu": MEASURED},
)
