"""What a run of the real engine leaves behind, and what of it grows while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from real.evaluate import Evaluation
from real.sync import SyncProof
from theory.experiment import Experiment
from theory.records import StepRecord, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The weights at an evaluated step, with what is needed to measure distances between runs later."""

    weights: Mapping[str, Tensor]
    """State dict of the trainer, tied head included"""
    sampler_weights: Mapping[str, Tensor]
    """State dict the sampler was given before it drew this step's batch"""
    prompt_CP: Tensor | None = None
    """The step's batch, on the sampler's own prefixes; None at step 0, which has none"""
    response_BT: Tensor | None = None
    mask_BT: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a run leaves."""

    experiment: Experiment
    trace: Trace
    snapshots: Mapping[int, Snapshot]
    """Weights at the evaluated steps; 0 is the start, the largest the end"""
    evaluations: Mapping[int, Evaluation]
    """Held-out measures at the same steps"""
    syncs: tuple[SyncProof, ...]
    """Every weight sync with its cost and its proof"""
    stopped: str | None = None
    """Why the run ended before its last step; None if it did not"""


@dataclass(slots=True)
class Progress:
    """What grows during a run, besides the weights."""

    step: int = 0
    records: list[StepRecord] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    syncs: list[SyncProof] = field(default_factory=list)
    stopped: str | None = None
