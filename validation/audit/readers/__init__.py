"""Readers of foreign logs, one file a format.

Each recognises its records by their keys, never by a file's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from validation.audit.readers import (
    canonical,
    memory,
    nemo_rl,
    open_instruct,
    prime_rl,
    sglang,
    slime,
    vllm_openai,
)
from validation.audit.readers.base import Reader

_ORDER = (
    prime_rl.EXPORT,
    nemo_rl.READER,
    slime.READER,
    prime_rl.TRACES,
    vllm_openai.READER,
    sglang.READER,
    # before the canonical trace: a framework's sample stays its own where a user adds a canonical column
    *memory.READERS,
    canonical.READER,
    open_instruct.READER,
)
READERS: Mapping[str, Reader] = MappingProxyType({r.name: r for r in _ORDER})


def reader_for(record: Mapping[str, Any], /) -> Reader | None:
    """Return the first reader that knows a record's keys."""
    return next((r for r in _ORDER if r.recognise(record)), None)
