"""Syncs of the runs of a cell, the scheduled ones and those a rule asked for."""

from __future__ import annotations

import numpy as np

from validation.evidence import World


def syncs_per_run(world: World, cell: str, /) -> float:
    """Return the mean over a cell's runs of the syncs after the first: every sampler starts synced."""
    return float(np.mean([trace.steps["synced"][1:].sum() for trace in world.cells[cell].traces]))
