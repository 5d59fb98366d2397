"""prime-rl: token exports (both sides of each token) and traces (the engine's side, as a graph of turns)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from theory.records import Provenance
from validation.audit.block import Row
from validation.audit.errors import BadLog
from validation.audit.readers.base import MEASURED, Reader, Source, after_prompt, cut, where


def _recognise_export(record: Mapping[str, Any]) -> bool:
    return "inference_logprobs" in record and "loss_mask" in record


def _export_rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """Full-length lists whose entry i is the log-prob of token i; the first is a dummy."""
    get = record.get
    mask = get("loss_mask")
    if not isinstance(mask, list):
        raise BadLog(
            f"{where(source, line)}: loss_mask must be a list, got {type(mask).__name__}; check the export"
        )
    start = after_prompt(mask)
    ids = get("token_ids")
    yield Row(
        where=where(source, line),
        logmu=cut(get("inference_logprobs"), start),
        logpi=cut(get("trainer_logprobs"), start),
        token=cut(ids, start),
        mask=mask[start:],
        entropy=cut(get("entropy"), start),
        advantage=cut(get("advantages"), start),
        step=get("step", source.step),
        prompt=ids[:start] if isinstance(ids, list) else None,
        version=get("weight_version", get("sampler_version")),
        trainer_version=get("trainer_version"),
        pack=get("micro_sequence_idx"),
        file=source.file,
        line=line,
    )


def _recognise_traces(record: Mapping[str, Any]) -> bool:
    traces = record.get("traces")
    return isinstance(traces, list) and bool(traces) and isinstance(traces[0], dict) and "nodes" in traces[0]


def _trace_rows(record: Mapping[str, Any], source: Source, line: int) -> Iterator[Row]:
    """Each node that was sampled is one row: its log-probs are compact, one per True of its mask."""
    work = record.get("run", {})
    work = work.get("work", {}) if isinstance(work, dict) else {}
    work = work if isinstance(work, dict) else {}
    policy = work.get("policy")
    span = [policy.get("start"), policy.get("end")] if isinstance(policy, dict) else None
    for trace in record["traces"]:
        nodes = trace.get("nodes") if isinstance(trace, dict) else None
        if not isinstance(nodes, list):
            raise BadLog(f"{where(source, line)}: a trace must have a list of nodes; check the file monitor")
        for index, node in enumerate(nodes):
            if not isinstance(node, dict):
                raise BadLog(f"{where(source, line)}: a node must be an object, got {type(node).__name__}")
            if not node.get("sampled") or node.get("logprobs") is None:
                continue
            ids = node.get("token_ids")
            mask = node.get("mask")
            mask = mask if isinstance(mask, list) else [True] * len(ids or [])
            logps = node["logprobs"]
            yield Row(
                where=where(source, line),
                logmu=_spread(logps, mask),
                token=ids,
                mask=mask,
                advantage=_spread(node.get("advantages"), mask),
                step=work.get("step", source.step),
                prompt=_path_before(nodes, index),
                version=[str(v) for v in span] if span else None,
                file=source.file,
                line=line,
            )


def _spread(compact: Any, mask: list[Any]) -> list[Any] | None:
    """Return a list with one entry per True of `mask`, spread over all tokens.

    As it is if the counts do not fit.
    """
    if not isinstance(compact, list):
        return None
    if len(compact) == len(mask) or len(compact) != sum(map(bool, mask)):
        return compact
    values = iter(compact)
    return [next(values) if m else None for m in mask]


def _path_before(nodes: list[Any], index: int) -> list[Any]:
    """Ids of all nodes from the root to the parent of node `index`."""
    path: list[Any] = []
    seen: set[int] = set()
    parent = nodes[index].get("parent")
    while isinstance(parent, int) and 0 <= parent < len(nodes) and parent not in seen:
        seen.add(parent)
        node = nodes[parent]
        ids = node.get("token_ids") if isinstance(node, dict) else None
        path.append(ids if isinstance(ids, list) else [])
        parent = node.get("parent") if isinstance(node, dict) else None
    return [i for ids in reversed(path) for i in ids]


EXPORT = Reader(
    name="prime-rl",
    source="prime-rl token exports (trainer.enable_token_export=true)",
    recognise=_recognise_export,
    rows=_export_rows,
    provenance={
        "logmu": MEASURED,
        "logpi_s": Provenance(
            kind="not measured", how="prime-rl exports the engine and the trainer now, not between"
        ),
        "logpi": MEASURED,
        "entropy": MEASURED,
    },
    null_is_broken=True,
)
TRACES = Reader(
    name="prime-rl-traces",
    source="prime-rl rollout traces (on by default; the engine's side only)",
    recognise=_recognise_traces,
    rows=_trace_rows,
    provenance={"logmu": MEASURED},
)
