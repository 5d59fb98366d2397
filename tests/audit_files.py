"""Writing a synthetic log as files of the formats the audit reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from audit_logs import Log


def _list(values: Any, row: int) -> list[Any] | None:
    """One row as JSON has it: NaN is null."""
    if values is None:
        return None
    return [None if isinstance(v, float) and np.isnan(v) else v for v in values[row].tolist()]


def _cut(log: Log, values: Any, row: Any) -> list[Any] | None:
    out = _list(values, row)
    return out if out is None or log.lengths is None else out[: int(log.lengths[row])]


def _scalar(values: Any, row: Any) -> Any:
    return None if values is None else values[row].tolist()


def canonical(log: Log, path: Path) -> Path:
    """Canonical JSON lines."""
    with path.open("w") as file:
        for i in range(len(log.ids)):
            row = {
                "run": "synthetic",
                "step": int(log.step[i]),
                "seq_id": i,
                "group_id": _scalar(log.group, i),
                "prompt_ids": log.prompts[i],
                "response_ids": _cut(log, log.ids, i),
                "mask": _cut(log, log.mask, i),
                "logp_mu": _cut(log, log.mu, i),
                "logp_pi_s": _cut(log, log.pi_s, i),
                "logp_pi": _cut(log, log.pi, i),
                "entropy": _cut(log, log.entropy, i),
                "kept_mass": _cut(log, log.kept, i),
                "version": _scalar(log.version, i),
                "trainer_version": _scalar(log.trainer_version, i),
                "sampling": log.sampling,
                "pack_index": _scalar(log.pack, i),
                "trainer_ids": _cut(log, log.trainer_ids, i),
                "source": "test",
            }
            file.write(json.dumps(row) + "\n")
    return path


def prime_rl(log: Log, folder: Path) -> Path:
    """prime-rl token exports: full-length lists, the trainer's log-probs as pi."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = log.pi if log.pi is not None else log.pi_s
    for step in np.unique(log.step):
        target = folder / f"step_{step}"
        target.mkdir(exist_ok=True)
        with (target / "rank_0.jsonl").open("w") as file:
            for i in np.flatnonzero(log.step == step):
                prompt = log.prompts[i]
                dummy = [0.0] * len(prompt)
                row = {
                    "schema_version": 1,
                    "step": int(step),
                    "rank": 0,
                    "micro_step": 0,
                    "micro_sequence_idx": _scalar(log.pack, i) or 0,
                    "export_sequence_idx": int(i),
                    "env_name": "toy",
                    "token_ids": prompt + (_cut(log, log.ids, i) or []),
                    "loss_mask": [False] * len(prompt) + [bool(m) for m in _cut(log, log.mask, i) or []],
                    "inference_logprobs": dummy + (_cut(log, log.mu, i) or []),
                    "trainer_logprobs": [-3.0] * len(prompt) + (_cut(log, trainer, i) or []),
                    "entropy": [2.0] * len(prompt) + (_cut(log, log.entropy, i) or []),
                }
                file.write(json.dumps(row) + "\n")
        (target / "STABLE").touch()
    return folder


def nemo_rl(log: Log, folder: Path) -> Path:
    """NeMo-RL train data: full-length lists in lists of length one, padded to the batch's width."""
    folder.mkdir(parents=True, exist_ok=True)
    width = max(len(p) for p in log.prompts) + log.ids.shape[1]
    for step in np.unique(log.step):
        with (folder / f"train_data_step{step}.jsonl").open("w") as file:
            for i in np.flatnonzero(log.step == step):
                prompt = log.prompts[i]
                n = len(prompt) + len(_cut(log, log.ids, i) or [])
                pad = [0] * (width - n)
                zero = [0.0] * len(prompt)
                row = {
                    "content": ["q a"],
                    "rewards": [1.0],
                    "input_lengths": [n],
                    "token_ids": [prompt + (_cut(log, log.ids, i) or []) + pad],
                    "token_loss_mask": [[0] * len(prompt) + (_cut(log, log.mask, i) or []) + pad],
                    "sample_loss_mask": [1.0],
                    "advantages": [[0.5] * width],
                    "generation_logprobs": [zero + (_cut(log, log.mu, i) or []) + pad],
                    "prev_logprobs": [[-3.0] * len(prompt) + (_cut(log, log.pi_s, i) or []) + pad],
                    "idx": int(i),
                }
                file.write(json.dumps(row) + "\n")
    return folder


def slime(log: Log, folder: Path) -> Path:
    """slime dumps, one train and one rollout file a step (needs torch)."""
    import torch

    for name in ("rollout_data", "train_data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for step in np.unique(log.step):
        rollouts, trained = [], []
        for place, i in enumerate(np.flatnonzero(log.step == step)):
            ids = log.prompts[i] + (_cut(log, log.ids, i) or [])
            mu, length = _cut(log, log.mu, i), len(_cut(log, log.ids, i) or [])
            version = [] if log.version is None else [str(log.version[i])]
            rollouts.append(
                {
                    "index": place,
                    "group_index": _scalar(log.group, i),
                    "tokens": ids,
                    "response_length": length,
                    "loss_mask": _cut(log, log.mask, i),
                    "rollout_log_probs": mu,
                    "weight_versions": version,
                    "reward": 1.0,
                    "status": "completed",
                }
            )
            trained.append(
                {
                    "rollout_position": place,
                    "tokens": torch.tensor(ids),
                    "response_lengths": length,
                    "loss_masks": _cut(log, log.mask, i),
                    "rollout_log_probs": mu,
                    "log_probs": (
                        torch.tensor(_cut(log, log.pi_s, i), dtype=torch.float64)
                        if log.pi_s is not None
                        else None
                    ),
                }
            )
        torch.save({"rollout_id": int(step), "samples": rollouts}, folder / "rollout_data" / f"{step}.pt")
        torch.save(
            {"format_version": 2, "rollout_id": int(step), "rank": 0, "samples": trained},
            folder / "train_data" / f"{step}.pt",
        )
    return folder


def open_instruct(log: Log, path: Path) -> Path:
    """open-instruct traces: the engine's side alone."""
    with path.open("w") as file:
        for i in range(len(log.ids)):
            row = {
                "step": int(log.step[i]),
                "sample_idx": i,
                "prompt_idx": i,
                "prompt_tokens": log.prompts[i],
                "response_tokens": _cut(log, log.ids, i),
                "reward": 1.0,
                "advantage": 0.7,
                "finish_reason": "stop",
                "dataset": "toy",
                "ground_truth": [4],
                "request_info": None,
                "logprobs": _cut(log, log.mu, i),
            }
            file.write(json.dumps(row) + "\n")
    return path


def vllm_chat(log: Log, path: Path) -> Path:
    """Chat responses of vLLM's server."""
    with path.open("w") as file:
        for i in range(len(log.ids)):
            content = [
                {"token": f"token_id:{t}", "logprob": lp, "bytes": [97], "top_logprobs": []}
                for t, lp in zip(_cut(log, log.ids, i) or [], _cut(log, log.mu, i) or [], strict=False)
            ]
            choice = {
                "index": 0,
                "token_ids": _cut(log, log.ids, i),
                "finish_reason": "stop",
                "logprobs": {"content": content},
            }
            file.write(json.dumps({"prompt_token_ids": log.prompts[i], "choices": [choice]}) + "\n")
    return path


def curve(columns: dict[str, Any], path: Path) -> Path:
    """Metrics, one row a step: CSV or JSON lines by the path's ending."""
    names = list(columns)
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".csv":
        lines = [",".join(names)] + [",".join(str(v) for v in row) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(
            "".join(json.dumps(dict(zip(names, map(float, row), strict=True))) + "\n" for row in rows)
        )
    return path


def write(form: str, made: Any, folder: Path) -> Path:
    """A log or a curve in the named format, inside `folder`."""
    if isinstance(made, dict):
        return curve(made, folder / ("metrics.csv" if form == "csv" else "metrics.jsonl"))
    writers = {
        "canonical": (canonical, "trace.jsonl"),
        "nemo_rl": (nemo_rl, "nemo"),
        "prime_rl": (prime_rl, "token_exports"),
        "slime": (slime, "dump"),
        "open_instruct": (open_instruct, "rollouts.jsonl"),
        "vllm_chat": (vllm_chat, "responses.jsonl"),
    }
    writer, name = writers[form]
    return writer(log=made, **{"path" if "." in name else "folder": folder / name})
