"""Weights of the toy's ensembles: kept beside their run, read back, and compared exactly.

Suffixes: K steps, S training seeds, D features, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from theory.experiment import Experiment
from theory.records import STEP_COLUMNS
from toy.ensemble import Ensemble
from toy.measure import kl_between
from validation.store import StoredRun

WEIGHTS = "weights.parquet"


def write_weights(path: Path, result: Ensemble, /) -> None:
    """Write the weights of trainer and sampler after every step, one row a seed and step."""
    S, K, D, V = result.theta.shape
    table = pa.table(
        {
            "seed": np.repeat(np.arange(S, dtype=np.int16), K),
            "step": np.tile(result.steps.astype(np.int32), S),
            "trainer": pa.FixedSizeListArray.from_arrays(pa.array(result.theta.reshape(-1)), D * V),
            "sampler": pa.FixedSizeListArray.from_arrays(pa.array(result.theta_sampler.reshape(-1)), D * V),
        },
        metadata={"features": str(D), "vocabulary": str(V)},
    )
    pq.write_table(table, path)


def ensemble_of(experiment: Experiment, stored: StoredRun) -> Ensemble:
    """Rebuild the ensemble a stored run was made from."""
    table = pq.read_table(stored.files[WEIGHTS])
    S = len(stored.traces)
    D, V = (int(table.schema.metadata[name]) for name in (b"features", b"vocabulary"))

    def weights(name: str) -> np.ndarray:
        flat = table.column(name).combine_chunks().flatten().to_numpy()
        return flat.reshape(S, -1, D, V)

    measures = {
        name: np.stack([t.steps[name] for t in stored.traces])
        for name in stored.traces[0].steps
        if name in STEP_COLUMNS and name != "step"
    }
    return Ensemble(
        experiment=experiment,
        measures=measures,
        theta=weights("trainer"),
        theta_sampler=weights("sampler"),
    )


def distances_of(first: list[Ensemble], second: list[Ensemble]) -> np.ndarray:
    """KL of all runs of some ensembles to all runs of others, (K, S1, S2); a run to itself is 0."""
    blocks = [[kl_between(a, b) for b in second] for a in first]
    return np.concatenate([np.concatenate(row, axis=2) for row in blocks], axis=1)
