"""Samples as frameworks hold them in memory, written to JSON lines by a user.

TRL's asynchronous GRPO, AReaL, OpenRLHF, Tinker, verl, ms-swift. None of these writes them by itself. The
conventions differ in alignment only; fill values stand where the mask is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.audit.block import UNKNOWN, Row
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


def _row(
    record: Mapping[str, Any], source: Source, line: int, *, mask: Any, shift: int, **columns: Any
) -> Row:
    """Row of full-length lists; entry i of mask and log-probs belongs to token i + `shift` of the ids."""
    mask = mask if isinstance(mask, list) else []
    start = after_prompt(mask)
    ids = columns.pop("token", None)
    prompt = ids[: start + shift] if isinstance(ids, list) else None
    per_token = ("logmu", "logpi_s", "logpi", "version", "advantage")
    columns = {k: cut(v, start) if k in per_token else v for k, v in columns.items()}
    return Row(
        where=where(source, line),
        mask=mask[start:],
        token=cut(ids, start + shift),
        prompt=prompt,
        step=record.get("step", source.step),
        file=source.file,
        line=line,
        **columns,
    )


def _recognise_trl(record: Mapping[str, Any]) -> bool:
    return {"input_ids", "completion_mask", "old_log_probs"} <= record.keys()


def _trl(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """TRL's asynchronous GRPO: its old_log_probs are the generator's, so they are mu."""
    yield _row(
        record,
        source,
        line,
        mask=record["completion_mask"],
        shift=0,
        token=record["input_ids"],
        logmu=record["old_log_probs"],
        logpi_s=record.get("logp_pi_s"),
        logpi=record.get("logp_pi"),
        advantage=record.get("advantage"),
        version=record.get("model_version"),
        trainer_version=record.get("trainer_version"),
        group=record.get("group_id"),
    )


def _recognise_areal(record: Mapping[str, Any]) -> bool:
    return {"input_ids", "loss_mask", "logprobs"} <= record.keys()


def _areal(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """AReaL: logprobs are mu unless it overwrote them; prox_logp is the trainer at the last version."""
    versions = record.get("versions")
    if isinstance(versions, list) and all(isinstance(v, int) for v in versions):
        versions = [v if v >= 0 else UNKNOWN for v in versions]  # -1 stands on the prompt
    yield _row(
        record,
        source,
        line,
        mask=record["loss_mask"],
        shift=0,
        token=record["input_ids"],
        logmu=record["logprobs"],
        logpi_s=record.get("prox_logp"),
        version=versions,
        trainer_version=record.get("trainer_version"),
        reward=record.get("rewards"),
    )


def _recognise_openrlhf(record: Mapping[str, Any]) -> bool:
    return {"sequences", "action_mask", "rollout_log_probs"} <= record.keys()


def _openrlhf(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """OpenRLHF: masks and log-probs lack the first token."""
    count = len(flat(record["sequences"]))
    parts = {
        k: flat(record.get(k)) for k in ("sequences", "action_mask", "rollout_log_probs", "action_log_probs")
    }
    for i in range(count):
        ids, mask, mu, old = (parts[k][i] if i < len(parts[k]) else None for k in parts)
        yield _row(record, source, line, mask=mask, shift=1, token=ids, logmu=mu, logpi_s=old)


def _recognise_tinker(record: Mapping[str, Any]) -> bool:
    inputs = record.get("loss_fn_inputs")
    return isinstance(inputs, dict) and "target_tokens" in inputs


def _tinker(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """Tinker's datum: every list belongs to the target tokens."""
    inputs = record["loss_fn_inputs"]
    outputs = record.get("loss_fn_outputs")
    outputs = outputs if isinstance(outputs, dict) else {}
    yield _row(
        record,
        source,
        line,
        mask=inputs.get("mask"),
        shift=0,
        token=inputs["target_tokens"],
        logmu=inputs.get("logprobs"),
        logpi=outputs.get("logprobs"),
        advantage=inputs.get("advantages"),
    )


def _recognise_verl(record: Mapping[str, Any]) -> bool:
    return {"responses", "rollout_log_probs"} <= record.keys()


def _verl(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """Verl's batch: response-wide lists, right padded; one object may hold a batch."""
    names = ("responses", "response_mask", "rollout_log_probs", "old_log_probs", "log_probs", "prompts")
    parts = {k: flat(record.get(k)) for k in names}
    scalars = {}
    for k in ("min_global_steps", "max_global_steps", "uid"):
        v = record.get(k)
        scalars[k] = v if isinstance(v, list) else [v]
    for i in range(len(parts["rollout_log_probs"])):
        ids, mask, mu, old, now, prompt = (parts[k][i] if i < len(parts[k]) else None for k in names)
        low, high, uid = (scalars[k][min(i, len(scalars[k]) - 1)] if scalars[k] else None for k in scalars)
        yield Row(
            where=where(source, line),
            logmu=mu,
            logpi_s=old,
            logpi=now,
            token=ids,
            mask=mask,
            step=record.get("step", record.get("global_steps", source.step)),
            prompt=prompt,
            group=uid,
            version=[str(low), str(high)] if low is not None and high is not None else low,
            file=source.file,
            line=line,
        )


def _recognise_swift(record: Mapping[str, Any]) -> bool:
    return {"response_token_ids", "rollout_logprobs"} <= record.keys()


def _swift(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """ms-swift's sample: a list a turn; one log-prob too many at a turn's end is its own, which it drops."""
    turns = flat(record["response_token_ids"])
    ids = [t for turn in turns for t in turn]

    def joined(name: str) -> list[Any] | None:
        parts = flat(record[name]) if record.get(name) is not None else []
        if [len(p) for p in parts] == [len(t) + 1 for t in turns]:
            parts = [p[:-1] for p in parts]
        return [v for p in parts for v in p] if parts else None

    yield Row(
        where=where(source, line),
        logmu=joined("rollout_logprobs"),
        logpi_s=joined("old_per_token_logps") or joined("logp_pi_s"),
        logpi=joined("logp_pi"),
        token=ids,
        mask=joined("response_loss_mask"),
        step=record.get("step", source.step),
        prompt=record.get("prompt_token_ids"),
        version=record.get("version"),
        trainer_version=record.get("trainer_version"),
        file=source.file,
        line=line,
    )


def _reader(name: str, source: str, recognise: Any, rows: Any, pi_s: Any = None) -> Reader:
    provenance = {"logmu": MEASURED, "logpi": MEASURED}
    if pi_s is not None:
        provenance["logpi_s"] = pi_s
    return Reader(name=name, source=source, recognise=recognise, rows=rows, provenance=provenance)


_OLD = approximated(
    "recomputed by the trainer at the start of the step: pi_s only if the sampler was in sync"
)
READERS = (
    _reader("trl-async", "samples of TRL's asynchronous GRPO", _recognise_trl, _trl, MEASURED),
    _reader(
        "areal", "AReaL's samples", _recognise_areal, _areal, approximated("prox_logp: the last version")
    ),
    _reader("openrlhf", "OpenRLHF's experience", _recognise_openrlhf, _openrlhf, _OLD),
    _reader("tinker", "Tinker data", _recognise_tinker, _tinker),
    _reader("verl-batch", "verl's batch", _recognise_verl, _verl, _OLD),
    _reader("ms-swift", "ms-swift's samples", _recognise_swift, _swift, _OLD),
)
