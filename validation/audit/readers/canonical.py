"""The canonical trace: one JSON line a response, all three policies where they are known.

This is also what the hooks for TRL, verl and SkyRL write (README, "Audit"): lists have one entry a response
token,
and an entry that is masked or was not measured may be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import Row
from validation.audit.readers.base import MEASURED, Reader, Source, where

_LOGPS = ("logp_mu", "logp_pi_s", "logp_pi")


def _recognise(record: Mapping[str, Any]) -> bool:
    return any(name in record for name in _LOGPS)


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    get = record.get
    version = get("version", get("sampler_version"))
    yield Row(
        where=where(source, line),
        logmu=get("logp_mu"),
        logpi_s=get("logp_pi_s"),
        logpi=get("logp_pi"),
        token=get("response_ids", get("token_ids")),
        mask=get("mask"),
        entropy=get("entropy"),
        kept_mass=get("kept_mass"),
        advantage=get("advantage", get("advantages")),
        step=get("step"),
        group=get("group_id"),
        prompt=get("prompt_ids"),
        reward=get("reward"),
        finish_reason=get("finish_reason"),
        version=version,
        trainer_version=get("trainer_version"),
        pack=get("pack_index"),
        other_token=get("trainer_ids", get("trainer_token_ids")),
        file=source.file,
        line=line,
    )


READER = Reader(
    name="canonical",
    source="canonical JSON lines, or a hook in TRL, verl or SkyRL",
    recognise=_recognise,
    rows=_rows,
    provenance={
        "logmu": MEASURED,
        "logpi_s": MEASURED,
        "logpi": MEASURED,
        "entropy": MEASURED,
        "kept_mass": MEASURED,
    },
)
