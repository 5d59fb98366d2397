"""How far a run of the real engine is from the on-policy runs: on its own prefixes, and on its sampler's.

Suffixes: K compared steps, R on-policy runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from theory.experiment import Experiment
from validation.derived import derived
from validation.gather.compare import ENGINE, compared_steps, distances, kept_step
from validation.provenance import module_digest

PREFIX_RESPONSES = 128
"""Responses of the step's batch whose prefixes carry the distance on the sampler's side"""


def against(
    root: Path, experiment: Experiment, run: tuple[Path, str], references: list[tuple[Path, str]], /
) -> dict[str, np.ndarray]:
    """Distances of a run to each on-policy run at the compared steps; computed once and kept.

    Parameters
    ----------
    root : Path
        Of the store.
    experiment : Experiment
        Of the run.
    run, references : (Path, str)
        Folder and digest of the stored run, and of the on-policy ones.

    Returns
    -------
    dict
        "kl" (K, R): KL(run||reference) in nats per token on the run's own prefixes on held-out problems.
        "kl_prefixes" (K, R): the same on prefixes of the batch that the run's sampler drew at that step.
        NaN where a run that diverged drew no such batch; its last finite weights stand in for "kl".
    """
    own = distances(root, experiment, run, references)
    theirs = _on_the_samplers_prefixes(root / ENGINE, experiment, run, references)
    K, R = len(compared_steps(experiment)), len(references)
    return {"kl": _filled(own, K, R, experiment), "kl_prefixes": _filled(theirs, K, R, experiment)}


def _filled(columns: dict[str, np.ndarray], K: int, R: int, experiment: Experiment) -> np.ndarray:
    out = np.full((K, R), np.nan)
    place = {step: k for k, step in enumerate(compared_steps(experiment))}
    for step, j, value in zip(columns["step"], columns["reference"], columns["kl"], strict=True):
        out[place[int(step)], int(j)] = value
    return out


def _on_the_samplers_prefixes(
    root: Path, experiment: Experiment, run: tuple[Path, str], references: list[tuple[Path, str]]
) -> dict[str, np.ndarray]:
    def compute() -> dict[str, np.ndarray]:
        import torch

        from real.checkpoint import read_snapshot
        from real.loop import start_model
        from real.model import row_logps
        from theory.decomposition import kl

        own, other = start_model(experiment.environment), start_model(experiment.environment)
        table: list[tuple[int, int, float]] = []
        with torch.no_grad():
            for step in compared_steps(experiment):
                if kept_step(run[0], step) != step:
                    break  # the run diverged before: its sampler drew no batch here
                snapshot = read_snapshot(run[0], step)
                prompt_CP, response_BT, mask_BT = snapshot.prompt_CP, snapshot.response_BT, snapshot.mask_BT
                if prompt_CP is None or response_BT is None or mask_BT is None:
                    continue  # weights at the end of a run that diverged: no batch of its own
                samples = len(response_BT) // len(prompt_CP)
                C = max(1, min(len(prompt_CP), PREFIX_RESPONSES // samples))
                prompt_CP, response_BT = prompt_CP[:C], response_BT[: C * samples]
                mask_BT = mask_BT[: C * samples]
                own.load_state_dict(dict(snapshot.weights))
                mine = row_logps(own, prompt_CP, response_BT).double()
                for j, (folder, _) in enumerate(references):
                    if folder == run[0]:
                        table.append((step, j, 0.0))
                        continue
                    other.load_state_dict(dict(read_snapshot(folder, kept_step(folder, step)).weights))
                    theirs = row_logps(other, prompt_CP, response_BT).double()
                    table.append((step, j, kl(mine, theirs)[mask_BT].mean().item()))
        step, reference, value = (np.array([row[i] for row in table]) for i in range(3))
        return {"step": step, "reference": reference, "kl": value}

    inputs = [module_digest(__name__), run[1], *(digest for _, digest in references), str(PREFIX_RESPONSES)]
    return derived(root, "kl-prefixes", *inputs, compute=compute)
