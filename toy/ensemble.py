"""What an ensemble of toy runs leaves behind: measures, parameters, and traces in the project's own format.

Shape suffixes: see `toy.task`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from theory.experiment import Experiment
from theory.records import Provenance, StepRecord, Trace, trace_of
from toy.environment import memory_of
from toy.observe import ACCURACY_DRAWS
from toy.toggles import Infrastructure

AS_DRAWN = ("reward", "discrepancy_rms", "ess_token", "ess_sequence", "ess_total", "mean_w", "logmu", "token")
"""Columns that describe the sampler's batch, which a fault of the pipeline makes differ from the trainer's"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Runs of one experiment that differ in their training seed."""

    experiment: Experiment
    measures: Mapping[str, np.ndarray]
    """Keys of STEP_COLUMNS to arrays (S, K), taken after the update of steps 1..K"""
    theta: np.ndarray
    """Trained weights after each step, (S, K, D, V)"""
    theta_sampler: np.ndarray
    """Weights the sampler held when it drew each step's batch, (S, K, D, V)"""
    drawn: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Drawn tokens, (S, K, C, N, T) and (S, K, C, N), where asked for"""

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return self.theta.shape[0]

    @property
    def steps(self) -> np.ndarray:
        """Steps measured, from 1."""
        return np.arange(1, self.theta.shape[1] + 1)

    @property
    def provenance(self) -> dict[str, Provenance]:
        """Where columns come from, where "measured" does not say it all."""
        found = {}
        if memory_of(self.experiment.environment) != "first":
            how = f"{ACCURACY_DRAWS} fresh responses per prompt; sums over a chain have no exact share"
            found["accuracy"] = Provenance(kind="approximated", how=how)
        chosen = getattr(self.experiment.environment, "infrastructure", Infrastructure())
        if chosen != Infrastructure():
            fields = ((f.name, getattr(chosen, f.name), f.default) for f in dataclasses.fields(chosen))
            on = ", ".join(f"{name}={value}" for name, value, default in fields if value != default)
            how = f"of the responses as drawn and the log-probs as reported; the trainer's batch had {on}"
            found |= {name: Provenance(kind="measured", how=how) for name in AS_DRAWN}
        return found

    @property
    def traces(self) -> list[Trace]:
        """One trace a seed."""
        if self.drawn:
            return [trace_of(list(self.records(s)), self.provenance) for s in range(self.seeds)]
        return [
            Trace(
                steps={"step": self.steps}
                | {name: values[seed].astype(np.float64) for name, values in self.measures.items()},
                provenance=self.provenance,
            )
            for seed in range(self.seeds)
        ]

    def records(self, seed: int) -> Iterator[StepRecord]:
        """Step records of one seed, in order."""
        for k in self.steps:
            row = {name: float(values[seed, k - 1]) for name, values in self.measures.items()}
            here = {name: values[seed, k - 1] for name, values in self.drawn.items()}
            tokens, sequences = self._tables(int(k), here) if here else ({}, {})
            yield StepRecord(step=int(k), measures=row, tokens=tokens, sequences=sequences)

    def _tables(
        self, step: int, drawn: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Token and sequence tables of one step."""
        C, N, T = drawn["token"].shape
        sequence = np.arange(C * N)
        updates = self.experiment.minibatches
        behind = updates * (step - 1)
        tokens = {
            "step": np.full(C * N * T, step),
            "sequence": np.repeat(sequence, T),
            "position": np.tile(np.arange(T), C * N),
            "mask": np.ones(C * N * T, dtype=bool),
            "advantage": np.repeat(drawn["advantage"].reshape(-1), T),
        }
        tokens |= {name: drawn[name].reshape(-1) for name in ("token", "logmu", "logpi_s", "logpi")}
        sequences = {
            "step": np.full(C * N, step),
            "sequence": sequence,
            "group": np.repeat(np.arange(C), N),
            "reward": drawn["reward"].reshape(-1),
            "length": np.full(C * N, T),
            "finish_reason": np.full(C * N, "length"),
            "sampler_version": np.full(C * N, behind - updates * int(drawn["lag"])),
            "trainer_version": np.full(C * N, behind),
        }
        return tokens, sequences
