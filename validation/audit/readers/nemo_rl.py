"""NeMo-RL: train_data_step{N}.jsonl, on by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import Row
from validation.audit.errors import BadLog
from validation.audit.readers.base import (
    MEASURED,
    Reader,
    Source,
    after_prompt,
    approximated,
    cut,
    flat,
    where,
)

_PER_TOKEN = ("token_ids", "token_loss_mask", "generation_logprobs", "prev_logprobs", "advantages")


def _recognise(record: Mapping[str, Any]) -> bool:
    return "generation_logprobs" in record


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """Full-length lists padded to the batch's width, each perhaps wrapped in a list of length one."""
    columns = {name: flat(record.get(name)) for name in _PER_TOKEN}
    count = len(columns["generation_logprobs"])
    widths = record.get("input_lengths")
    widths = widths if isinstance(widths, list) else [widths]
    counted = record.get("sample_loss_mask")
    counted = counted if isinstance(counted, list) else [counted]
    rewards = record.get("rewards")
    rewards = rewards if isinstance(rewards, list) else [rewards]
    for i in range(count):
        one = {name: values[i] if i < len(values) else None for name, values in columns.items()}
        mu = one["generation_logprobs"]
        if not isinstance(mu, list):
            raise BadLog(
                f"{where(source, line)}: generation_logprobs must be a list, got {type(mu).__name__}"
            )
        given = widths[i] if i < len(widths) else None
        width = given if isinstance(given, int) and given > 0 else None
        one = {name: values[:width] if isinstance(values, list) else values for name, values in one.items()}
        mask = one["token_loss_mask"]
        if not isinstance(mask, list):
            mask = [0] + [1] * (len(mu) - 1)  # the first entry is a dummy
        if i < len(counted) and counted[i] is not None and not counted[i]:
            mask = [0] * len(mask)
        start = after_prompt(mask) if any(mask) else 1
        ids = one["token_ids"]
        yield Row(
            where=where(source, line),
            logmu=cut(one["generation_logprobs"], start),
            logpi_s=_computed(cut(one["prev_logprobs"], start), mask[start:]),
            token=cut(ids, start),
            mask=mask[start:],
            advantage=cut(one["advantages"], start),
            step=record.get("step", source.step),
            prompt=ids[:start] if isinstance(ids, list) else None,
            reward=rewards[i] if i < len(rewards) else None,
            file=source.file,
            line=line,
        )


def _computed(values: Any, mask: list[Any]) -> Any:
    """`prev_logprobs`, or None where it is all zeros.

    Then the recompute was skipped, not measured as zero.
    """
    if isinstance(values, list) and any(mask) and not any(v for v in values):
        return None
    return values


READER = Reader(
    name="nemo-rl",
    source="NeMo-RL train_data_step{N}.jsonl (on by default)",
    recognise=_recognise,
    rows=_rows,
    provenance={
        "logmu": MEASURED,
        "logpi_s": approximated(
            "trainer at the start of the step: pi_s only if the sampler had just been synced"
        ),
    },
)
