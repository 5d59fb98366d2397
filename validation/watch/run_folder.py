"""A run of the store, finished or not.

Its steps show while the real engine works; the toy runs whole ensembles in one compiled call: nothing to see
until the end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from validation.manifest import SETTINGS, CorruptRun, read_status
from validation.store import STATE, load
from validation.watch.progress import Progress

STEP_FILE = re.compile(r"step-([0-9]{5,})\.safetensors")
"""What `real.checkpoint` leaves in the state folder after each step; other names are not its own"""


@dataclass
class RunFolder:
    """A run of the store, finished or not."""

    folder: Path
    _seen: dict[int, Mapping[str, float]] = field(default_factory=dict)
    _last: Progress | None = None

    def poll(self) -> Progress:
        """Read the steps that are new; a finished run once, as a whole."""
        if self._last is not None and self._last.state == "done":
            return self._last
        status = read_status(self.folder)
        if status is None:
            raise CorruptRun(self.folder, "has lost its status.json")
        if status["state"] == "done":
            self._last = self._finished()
            return self._last
        try:
            settings = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
            title, wanted = _title(settings), settings["experiment"].get("steps")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptRun(self.folder, f"has no whole {SETTINGS}") from None
        try:
            for file in sorted((self.folder / STATE).rglob("*.safetensors")):
                if name := STEP_FILE.fullmatch(file.name):
                    self._read(file, int(name[1]))
        except ValueError:
            now = read_status(self.folder)
            if now is None or now["state"] != "done":
                raise
            self._last = self._finished()  # it ended in the meantime, and took its state away
            return self._last
        steps = tuple(self._seen[step] for step in sorted(self._seen))
        return Progress(title, "running", steps, wanted)

    def _read(self, file: Path, number: int) -> None:
        if number not in self._seen:
            from real.checkpoint import read_record

            record = read_record(file.parent, number)
            self._seen[number] = {"step": float(number), **record.measures}

    def _finished(self) -> Progress:
        run = load(self.folder)
        lengths = {len(trace.steps["step"]) for trace in run.traces}
        names = run.traces[0].steps if len(lengths) == 1 else ()
        columns: dict[str, np.ndarray] = {
            name: np.stack([trace.steps[name] for trace in run.traces]).astype(np.float64).mean(axis=0)
            for name in names
        }
        steps = tuple(
            {name: float(values[i]) for name, values in columns.items() if math.isfinite(values[i])}
            for i in range(max(lengths) if columns else 0)
        )
        title = _title(run.settings) + (f", mean of {len(run.traces)} seeds" if len(run.traces) > 1 else "")
        return Progress(title, "done", steps, len(steps))


def _title(settings: Mapping[str, Any]) -> str:
    """Say in a few words what is run."""
    experiment = settings["experiment"]
    rule = experiment["correction"]
    gate = f", pushed below {rule['resync_below']:g}" if rule.get("resync_below") else ""
    return (
        f"{settings['engine']} {settings['fingerprint']}: {rule['cite'].split(';')[0]}, "
        f"lr {experiment['lr']:g}, "
        f"sync every {experiment['sync_every']}{gate}, seed {experiment['seed']}"
    )
