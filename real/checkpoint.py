"""State of a run on disk, so that a killed run goes on bit for bit: safetensors in one folder, no pickle.

``state.safetensors`` is the last finished step; it is written last and by renaming, so it commits everything
before it. ``step-*.safetensors`` and ``snapshot-*.safetensors`` are written once; those beyond the state
belong to a step that was killed and are written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from real.outcome import Snapshot
from theory.experiment import Experiment
from theory.records import StepRecord

STATE = "state.safetensors"
FINISH_REASONS = ("length", "stop")
"""Codes of the words in the tables: tensors hold no text"""


def write(path: Path, tensors: Mapping[str, Tensor], data: Any = None) -> None:
    """Write tensors and JSON data as one file that is there whole or not at all."""
    beside = path.with_name(path.name + ".part")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        beside,
        metadata={"lagfloor": json.dumps(data)},
    )
    os.replace(beside, path)


def read(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what `write` wrote.

    Raises
    ------
    ValueError
        If the file is missing or broken.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return tensors, json.loads((file.metadata() or {})["lagfloor"])
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"a run folder must hold whole safetensors files, got {path} ({error}); "
            "start without resume, in another folder"
        ) from None


def read_state(folder: Path, experiment: Experiment) -> tuple[dict[str, Tensor], Any] | None:
    """Read the state of a run; None where there is none.

    Raises
    ------
    ValueError
        If the folder holds another experiment, or a broken file.
    """
    if not (folder / STATE).exists():
        return None
    tensors, data = read(folder / STATE)
    mine = experiment.fingerprint()
    if data["experiment"] != mine:
        raise ValueError(
            f"to resume, the settings must be those of the folder: {folder} holds experiment "
            f"{data['experiment']}, got {mine}; choose another folder or the same settings"
        )
    return tensors, data


def write_record(folder: Path, record: StepRecord) -> None:
    """Write one step's measures and tables."""
    tables = {"tokens": record.tokens, "sequences": record.sequences}
    tensors = {
        f"{table}.{name}": torch.from_numpy(np.ascontiguousarray(_coded(name, column)))
        for table, columns in tables.items()
        for name, column in columns.items()
    }
    write(
        _record_path(folder, record.step), tensors, {"step": record.step, "measures": dict(record.measures)}
    )


def read_record(folder: Path, step: int) -> StepRecord:
    """Read one step's measures and tables; errors as `read`."""
    tensors, data = read(_record_path(folder, step))
    tables: dict[str, dict[str, np.ndarray]] = {"tokens": {}, "sequences": {}}
    for name, tensor in tensors.items():
        table, column = name.split(".", 1)
        tables[table][column] = _decoded(column, tensor.numpy())
    return StepRecord(step=step, measures=data["measures"], **tables)


def write_snapshot(folder: Path, step: int, snapshot: Snapshot) -> None:
    """Write the weights of an evaluated step."""
    batch = {"prompt": snapshot.prompt_CP, "response": snapshot.response_BT, "mask": snapshot.mask_BT}
    tensors = {f"batch.{name}": tensor for name, tensor in batch.items() if tensor is not None}
    write(
        folder / f"snapshot-{step:05d}.safetensors",
        tensors | prefixed("model", snapshot.weights) | prefixed("sampler", snapshot.sampler_weights),
    )


def read_snapshot(folder: Path, step: int) -> Snapshot:
    """Read the weights of an evaluated step; errors as `read`."""
    tensors, _ = read(folder / f"snapshot-{step:05d}.safetensors")
    return Snapshot(
        weights=unprefixed("model", tensors),
        sampler_weights=unprefixed("sampler", tensors),
        prompt_CP=tensors.get("batch.prompt"),
        response_BT=tensors.get("batch.response"),
        mask_BT=tensors.get("batch.mask"),
    )


def prefixed(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict with a prefix on its names; tensors are cloned, since a file may not share memory."""
    return {f"{prefix}.{name}": tensor.detach().clone() for name, tensor in weights.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `prefixed`."""
    return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}


def _record_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:05d}.safetensors"


def _coded(name: str, column: np.ndarray) -> np.ndarray:
    if name != "finish_reason":
        return column
    return (column == FINISH_REASONS[1]).astype(np.uint8)


def _decoded(name: str, column: np.ndarray) -> np.ndarray:
    if name != "finish_reason":
        return column
    return np.array(FINISH_REASONS)[column]
