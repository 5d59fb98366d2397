"""slime and miles: rollout and train dumps of --dump-details.

Read with ``weights_only`` so that no code can run.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validation.audit.block import Row
from validation.audit.errors import BadLog, one_line
from validation.audit.readers.base import MEASURED, Reader, Source, approximated, where

_NO_TORCH = "a .pt dump needs torch to be read: pip install torch (the CPU build is enough)"


def load(path: Path, /) -> dict[str, Any]:
    """Read a torch file of plain containers and tensors, tensors turned into lists.

    Raises
    ------
    BadLog
        If torch is missing, the file is broken, or it holds objects that only running code could rebuild.
    """
    try:
        import torch  # heavy and optional: only this format needs it
    except ImportError:
        raise BadLog(f"{one_line(path)}: {_NO_TORCH}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of old formats; the audit has one line of its own
            value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds for a broken file, none of them documented
        first = one_line(str(error).split("\n", 1)[0], limit=100)
        raise BadLog(
            f"{one_line(path)}: a dump must hold plain containers and tensors, got an unreadable file"
            f" ({first}); the file may be cut off, or hold objects, which are never unpickled here"
        ) from None
    value = _plain(value, torch.Tensor)
    if not isinstance(value, dict):
        raise BadLog(f"{one_line(path)}: a slime dump must be a dictionary, got a {type(value).__name__}")
    return value


def rollout_of(path: Path) -> str:
    """Return what the dumps of one rollout share: the number their names begin with."""
    digits = "".join(itertools.takewhile(str.isdecimal, path.name))
    return digits or path.name


def by_rollout(paths: list[Path]) -> dict[str, list[Path]]:
    """Return the dumps of each rollout."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(rollout_of(path), []).append(path)
    return groups


def _plain(value: Any, tensor: type) -> Any:
    """Containers with every tensor turned into a list of numbers."""
    if isinstance(value, tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: _plain(v, tensor) for k, v in value.items() if isinstance(k, (str, int))}
    if isinstance(value, (list, tuple)):
        return [_plain(v, tensor) for v in value]
    return value


def _recognise(record: Mapping[str, Any]) -> bool:
    samples = record.get("samples")
    return isinstance(samples, list) and "rollout_id" in record


def sample_key(record: Mapping[str, Any], sample: Mapping[str, Any], position: int) -> tuple[Any, Any]:
    """Return what joins a sample of a train dump to its rollout."""
    index = sample.get("rollout_position", sample.get("sample_index", sample.get("index", position)))
    return record.get("rollout_id"), index


def rollout_facts(record: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Return what only the rollout dump knows of each sample: versions, group, status, ids."""
    facts: dict[Any, dict[str, Any]] = {}
    for position, sample in enumerate(record["samples"]):
        if isinstance(sample, dict) and not is_train(record):
            facts[record.get("rollout_id"), position] = {
                "version": sample.get("weight_versions"),
                "group": sample.get("group_index"),
                "finish_reason": sample.get("status"),
                "reward": sample.get("reward"),
                "tokens": sample.get("tokens"),
            }
    return facts


def is_train(record: Mapping[str, Any]) -> bool:
    """Whether a dump is the trainer's: it names its format or holds the trainer's log-probs."""
    samples = record.get("samples") or [{}]
    first = samples[0] if isinstance(samples[0], dict) else {}
    return "format_version" in record or "log_probs" in first or "response_lengths" in first


def _rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    for position, sample in enumerate(record["samples"]):
        if not isinstance(sample, dict):
            raise BadLog(f"{where(source, line)}: a sample must be an object, got {type(sample).__name__}")
        known = source.joined.get(sample_key(record, sample, position), {})
        ids = sample.get("tokens")
        length = sample.get("response_length", sample.get("response_lengths"))
        mu = sample.get("rollout_log_probs")
        if not isinstance(length, int) or length < 0:
            length = len(mu) if isinstance(mu, list) else 0
        response = ids[len(ids) - length :] if isinstance(ids, list) and length <= len(ids) else ids
        sampled = known.get("tokens")
        yield Row(
            where=f"{where(source, line)} sample {position}",
            logmu=mu,
            logpi_s=sample.get("log_probs"),
            token=response,
            other_token=sampled[len(sampled) - length :] if isinstance(sampled, list) else None,
            mask=sample.get("loss_mask", sample.get("loss_masks")),
            entropy=sample.get("entropy"),
            advantage=sample.get("advantages"),
            step=record.get("rollout_id", source.step),
            group=sample.get("group_index", known.get("group")),
            prompt=ids[: len(ids) - length] if isinstance(ids, list) else None,
            reward=sample.get("reward", known.get("reward")),
            finish_reason=sample.get("status", known.get("finish_reason")),
            version=sample.get("weight_versions", known.get("version")),
            file=source.file,
            line=position,
        )


READER = Reader(
    name="slime",
    source="slime or miles dumps (--dump-details)",
    recognise=_recognise,
    rows=_rows,
    provenance={
        "logmu": MEASURED,
        "logpi_s": approximated(
            "trainer at the start of the step: pi_s with --keep-old-actor or when each step is synced"
        ),
    },
)
