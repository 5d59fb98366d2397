"""Commit a full-size run's state now and then, and take it up again.

A state is two copies of the parameters, gigabytes: it is written at evaluated steps, and the steps after it
are made again after a kill. Every draw has a seed of its own step, so they come out the same wherever the
engine and the trainer do.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from real import checkpoint as disk
from real.evaluate import Evaluation
from real.resume import evaluations_of
from theory.experiment import Experiment
from theory.records import StepRecord

if TYPE_CHECKING:
    from real.fullsize.loop import FullLoop


@dataclasses.dataclass(slots=True)
class FullProgress:
    """What grows during a run, besides the weights."""

    step: int = 0
    records: list[StepRecord] = dataclasses.field(default_factory=list)
    evaluations: dict[int, Evaluation] = dataclasses.field(default_factory=dict)
    tails: dict[int, float] = dataclasses.field(default_factory=dict)
    """Mean mass outside the sampler's columns, by step"""
    stopped: str | None = None


def save(folder: Path, experiment: Experiment, loop: FullLoop, done: FullProgress) -> None:
    """Write the state; it is there whole or not at all, and commits the records written before it."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = loop.trainer
    tensors = _numbered("model", [p.detach() for p in trainer.model.parameters()])
    if trainer.frozen.version != trainer.version:
        tensors |= _numbered("sampler", trainer.frozen.tensors())
    data = {
        "experiment": experiment.fingerprint(),
        "step": done.step,
        "version": trainer.version,
        "synced_version": trainer.frozen.version,
        "rms_at_load": loop.rms_at_load,
        "evaluations": {step: dataclasses.asdict(e) for step, e in done.evaluations.items()},
        "tails": done.tails,
        "stopped": done.stopped,
    }
    disk.write(folder / disk.STATE, tensors, data)


def restore(folder: Path, experiment: Experiment, loop: FullLoop, done: FullProgress) -> bool:
    """Take up the state in a folder; False if there is none.

    Raises
    ------
    ValueError
        If the folder holds another experiment, or files that are broken.
    """
    found = disk.read_state(folder, experiment)
    if found is None:
        return False
    tensors, data = found
    # `stopped` is not taken up: see `real.resume`
    done.step = data["step"]
    done.evaluations = evaluations_of(data)
    done.tails = {int(step): tail for step, tail in data["tails"].items()}
    done.records = [disk.read_record(folder, step) for step in range(1, done.step + 1)]
    trainer = loop.trainer
    held = "sampler" if data["synced_version"] != data["version"] else "model"
    # the sampler gets the weights it held, not those the trainer has reached since
    _load(trainer.model, tensors, held)
    trainer.version = data["synced_version"]
    loop.sync()
    _load(trainer.model, tensors, "model")
    trainer.version = data["version"]
    loop.rms_at_load = data["rms_at_load"]
    return True


def _numbered(prefix: str, tensors: list[Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{i:05d}": tensor.cpu() for i, tensor in enumerate(tensors)}


@torch.no_grad()
def _load(model: torch.nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    for i, parameter in enumerate(model.parameters()):
        parameter.copy_(tensors[f"{prefix}.{i:05d}"])
