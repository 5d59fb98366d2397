"""Responses of vLLM's OpenAI server, chat and completions; several may be rescored by prompt_logprobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import Row
from validation.audit.errors import BadLog
from validation.audit.readers.base import MEASURED, Reader, Source, where


def _recognise(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("choices"), list)


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    for choice in record["choices"]:
        if not isinstance(choice, dict):
            raise BadLog(f"{where(source, line)}: a choice must be an object, got {type(choice).__name__}")
        logps = choice.get("logprobs")
        logps = logps if isinstance(logps, dict) else {}
        values, names = _chat(logps["content"]) if logps.get("content") is not None else _completion(logps)
        named = _named_ids(names)
        ids = choice.get("token_ids")
        yield Row(
            where=where(source, line),
            logmu=values,
            token=ids if isinstance(ids, list) else named,
            other_token=named if isinstance(ids, list) else None,
            step=record.get("step", source.step),
            prompt=choice.get("prompt_token_ids", record.get("prompt_token_ids")),
            finish_reason=choice.get("finish_reason"),
            version=record.get("weight_version"),
            file=source.file,
            line=line,
        )


def _chat(content: Any) -> tuple[list[Any] | None, list[Any]]:
    """Log-probs and token names of a chat response; an entry without a log-prob counts as missing."""
    if not isinstance(content, list):
        return None, []
    entries = [c if isinstance(c, dict) else {} for c in content]
    # where a server also reports what it really sampled from, that is mu
    key = "sampling_logprob" if entries and all("sampling_logprob" in e for e in entries) else "logprob"
    return [e.get(key) for e in entries], [e.get("token") for e in entries]


def _completion(logps: Mapping[str, Any]) -> tuple[list[Any] | None, list[Any]]:
    values = logps.get("token_logprobs")
    names = logps.get("tokens")
    return (values if isinstance(values, list) else None), (names if isinstance(names, list) else [])


def _named_ids(names: list[Any]) -> list[int] | None:
    """Ids of "token_id:N" words, None unless all are of that form."""
    if not names:
        return None
    out = []
    for name in names:
        digits = name[9:] if isinstance(name, str) and name.startswith("token_id:") else ""
        if not (0 < len(digits) < 10 and digits.isascii() and digits.isdecimal()):
            return None
        out.append(int(digits))
    return out


READER = Reader(
    name="vllm-openai",
    source="responses of vLLM's OpenAI server (logprobs: true, return_token_ids: true)",
    recognise=_recognise,
    rows=_rows,
    provenance={"logmu": MEASURED},
    null_is_broken=True,
)
