"""Commit a run's state after each step, and take it up again: what makes a killed run go on bit for bit.

No generator state is kept, since every draw has a seed of its own step (`real.loop.draw_seed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from real import checkpoint as disk
from real.evaluate import Evaluation
from real.outcome import Progress
from real.sync import SyncProof
from real.trainer import Trainer
from theory.estimate import Estimate
from theory.experiment import Experiment
from theory.records import StepRecord


def save(
    folder: Path, experiment: Experiment, trainer: Trainer, done: Progress, record: StepRecord | None
) -> None:
    """Write the step's record and snapshot, then the state: it commits them, so it comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    if record is not None:
        disk.write_record(folder, record)
    if done.step in done.snapshots:
        disk.write_snapshot(folder, done.step, done.snapshots[done.step])
    state = {
        "experiment": experiment.fingerprint(),
        "step": done.step,
        "version": trainer.version,
        "synced_version": trainer.synced_version,
        "evaluations": {step: dataclasses.asdict(e) for step, e in done.evaluations.items()},
        "syncs": [dataclasses.asdict(proof) for proof in done.syncs],
        "stopped": done.stopped,
    }
    weights = disk.prefixed("model", trainer.model.state_dict())
    weights |= disk.prefixed("sampler", trainer.frozen.state_dict())
    disk.write(folder / disk.STATE, weights, state)


def restore(
    folder: Path,
    experiment: Experiment,
    trainer: Trainer,
    done: Progress,
    push: Callable[[int], SyncProof],
) -> bool:
    """Take up the state in a folder; False if there is none.

    Parameters
    ----------
    folder : Path
        Where `save` wrote.
    experiment : Experiment
        Must be the one that was saved.
    trainer, done
        Filled in.
    push : callable
        Gives the sampler and the frozen copy the trainer's weights, as a version; its proof is not counted as
        a sync of the run.

    Raises
    ------
    ValueError
        If the folder holds another experiment, or files that are broken.
    """
    found = disk.read_state(folder, experiment)
    if found is None:
        return False
    weights, state = found
    # a run that stopped at a divergence is tried once more: the policy's own comes again, a machine's fault
    # does not
    done.step = state["step"]
    done.evaluations = evaluations_of(state)
    done.syncs = [SyncProof(**proof) for proof in state["syncs"]]
    done.records = [disk.read_record(folder, step) for step in range(1, done.step + 1)]
    done.snapshots = {step: disk.read_snapshot(folder, step) for step in done.evaluations}
    # the sampler gets the weights it held, not those the trainer has reached since
    trainer.model.load_state_dict(disk.unprefixed("sampler", weights))
    push(state["synced_version"])
    trainer.model.load_state_dict(disk.unprefixed("model", weights))
    trainer.version, trainer.synced_version = state["version"], state["synced_version"]
    return True


def evaluations_of(state: Mapping[str, Any]) -> dict[int, Evaluation]:
    """Read the evaluations, by step, out of a state."""
    return {
        int(step): Evaluation(**(e | {"accuracy": Estimate(**e["accuracy"])}))
        for step, e in state["evaluations"].items()
    }
