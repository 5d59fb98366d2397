"""Runs of the real engine read at the compared steps: distances between them, and what they last measured.

Apart from the rest, so that a kept distance is stale only when what computes it has changed. Suffixes: K
compared steps, R reference runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from theory.experiment import Experiment
from theory.records import Trace
from validation.derived import derived
from validation.provenance import module_digest

ENGINE = "real"
"""Name in the store"""
MEASURED_PROMPTS = 128
"""Held-out problems whose responses carry a distance between runs; two responses each, about 1,700
prefixes"""


def distances(
    root: Path, experiment: Experiment, run: tuple[Path, str], references: list[tuple[Path, str]]
) -> dict[str, np.ndarray]:
    """KL of a run, given as folder and digest, to each reference run at every compared step."""

    def compute() -> dict[str, np.ndarray]:
        import torch

        from real.checkpoint import read_snapshot
        from real.evaluate import own_samples
        from real.loop import draw_seed, start_model
        from real.model import row_logps
        from theory.decomposition import kl

        environment = dataclasses.replace(
            experiment.environment, eval_prompts=MEASURED_PROMPTS, eval_samples=2
        )
        own, other = start_model(environment), start_model(environment)
        table: list[tuple[int, int, float]] = []
        with torch.no_grad():
            for step in compared_steps(experiment):
                own.load_state_dict(dict(read_snapshot(run[0], kept_step(run[0], step)).weights))
                rollout = own_samples(own, environment, seed=draw_seed(experiment.seed, "evaluation", step))
                mine = row_logps(own, rollout.prompt_CP, rollout.response_BT).double()
                for j, (folder, _) in enumerate(references):
                    if folder == run[0]:
                        table.append((step, j, 0.0))
                        continue
                    other.load_state_dict(dict(read_snapshot(folder, kept_step(folder, step)).weights))
                    theirs = row_logps(other, rollout.prompt_CP, rollout.response_BT).double()
                    table.append((step, j, kl(mine, theirs)[rollout.mask_BT].mean().item()))
        step, reference, value = (np.array(column) for column in zip(*table, strict=True))
        return {"step": step, "reference": reference, "kl": value}

    inputs = [module_digest(__name__), run[1], *(digest for _, digest in references)]
    return derived(root / ENGINE, "kl", *inputs, compute=compute)


def kept_step(folder: Path, step: int) -> int:
    """Step of the weights a run had at a step: its last finite ones where it diverged before."""
    kept = (int(path.stem.removeprefix("snapshot-")) for path in folder.glob("snapshot-*.safetensors"))
    return max((k for k in kept if k <= step), default=step)


def held(trace: Trace, column: str, steps: np.ndarray) -> np.ndarray:
    """Column of a trace at some steps; where a run ended before, what it last measured."""
    values = trace.steps.get(column, np.empty(0))
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.full(len(steps), np.nan)
    place = np.searchsorted(trace.steps["step"][known], steps, side="right") - 1
    return np.where(place < 0, np.nan, values[known][np.maximum(place, 0)])


def compared_steps(experiment: Experiment) -> list[int]:
    """List the steps whose weights are kept and compared with the on-policy runs; the last is one."""
    every = experiment.environment.eval_every
    return sorted({*range(every, experiment.steps + 1, every), experiment.steps})
