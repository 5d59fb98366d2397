"""What a run has reported so far: a run folder of the store, or the canonical trace of a foreign trainer.

A source is asked again and again; it reads only what is new. A run folder shows its steps while the real
engine works (the toy runs whole ensembles in one compiled call: nothing to see until the end), a trace every
step that has lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from theory.crossing import first_below
from theory.forecast import Forecast, forecast
from theory.monitor import read_batch
from theory.resync import FAILURE_THRESHOLD
from validation.store import SETTINGS, STATE, CorruptRun, load, read_status

STEP_FILES = "step-*.safetensors"
"""What `real.checkpoint` leaves in the state folder after each step"""
SYNCS = ("resynced", "pushed")


class Progress(NamedTuple):
    """A run as far as it is known."""

    title: str
    state: str
    """running, done, or growing (a file says no more)"""
    steps: tuple[Mapping[str, float], ...]
    """Each with "step" and the measures it has; "pushed" where the sampler got new weights after it"""
    total: int | None
    """Steps it will have; None: not known"""

    @property
    def crossed(self) -> float:
        """First step with the token ESS below one half; inf: none, NaN: not measured."""
        if not self.steps:
            return math.nan
        return first_below(self.series("ess_token"), steps=self.series("step"))

    def series(self, name: str) -> np.ndarray:
        """One measure by step, NaN where a step lacks it."""
        return np.array([s.get(name, math.nan) for s in self.steps])

    def lag(self) -> np.ndarray:
        """Count the updates since the last push at each step."""
        out, held = [], 0
        for step in self.steps:
            held += 1
            out.append(held)
            held = 0 if any(step.get(name, 0) for name in SYNCS) else held
        return np.array(out)

    def outlook(self) -> Forecast | None:
        """Lag at which the token ESS will cross one half; None where it has, or too little is known."""
        ess, lag = self.series("ess_token"), self.lag()
        seen = np.isfinite(ess)
        if seen.sum() < 2 or lag[-1] < 2 or ess[-1] < FAILURE_THRESHOLD:
            return None
        return forecast(ess[seen], lag=lag[seen])


class Source(Protocol):
    """Where progress comes from."""

    def poll(self) -> Progress:
        """Read what is new and return all there is."""
        ...


def source_of(path: Path, /) -> Source:
    """Find out what is at a path.

    Raises
    ------
    ValueError
        If nothing there can be watched.
    """
    if path.is_dir() and (path / "status.json").exists():
        return RunFolder(path)
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if found:
            return TraceFiles(found)
    elif path.is_file():
        return TraceFiles([path])
    raise ValueError(
        f"watch needs a run folder (with status.json) or a canonical trace (.jsonl), got {path}, which is "
        + ("neither" if path.exists() else "not there")
        + "; a run of `lagfloor run` is under runs/"
    )


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
        settings = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        for file in sorted((self.folder / STATE).rglob(STEP_FILES)):
            self._read(file)
        steps = tuple(self._seen[step] for step in sorted(self._seen))
        return Progress(_title(settings), "running", steps, settings["experiment"].get("steps"))

    def _read(self, file: Path) -> None:
        number = int(file.stem.split("-")[1])
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


@dataclass
class TraceFiles:
    """Canonical traces that a trainer appends to."""

    files: list[Path]
    _at: dict[Path, int] = field(default_factory=dict)
    _open: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    _done: dict[int, Mapping[str, float]] = field(default_factory=dict)
    _versions: dict[int, int] = field(default_factory=dict)

    def poll(self) -> Progress:
        """Read the lines appended since; a step is judged anew while it still gets lines."""
        for file in self.files:
            for line in self._new_lines(file):
                self._open.setdefault(int(line["step"]), []).append(line)
        for step in sorted(self._open):
            self._done[step] = measures_of(self._open[step])
            versions = [v for line in self._open[step] if (v := _int(line.get("version"))) is not None]
            if versions:
                self._versions[step] = max(versions)
        newest = max(self._done, default=0)
        self._open = {step: lines for step, lines in self._open.items() if step == newest}
        steps = [dict(self._done[s]) | {"step": float(s)} for s in sorted(self._done)]
        for now, after in pairwise(steps):
            before, later = (self._versions.get(int(s["step"])) for s in (now, after))
            if before is not None and later is not None and later > before:
                now["pushed"] = 1.0
        return Progress(", ".join(f.name for f in self.files), "growing", tuple(steps), None)

    def _new_lines(self, file: Path) -> Iterable[Mapping[str, Any]]:
        """Whole lines beyond where the last poll ended."""
        with file.open("rb") as opened:
            opened.seek(self._at.get(file, 0))
            text = opened.read()
        end = text.rfind(b"\n") + 1
        self._at[file] = self._at.get(file, 0) + end
        for number, line in enumerate(text[:end].splitlines(), start=1):
            try:
                value = json.loads(line)
                if not isinstance(value, dict) or "step" not in value or "response_ids" not in value:
                    raise ValueError("it has no step or response_ids")
            except ValueError as error:
                raise ValueError(
                    f"{file}: a line must be a response of a canonical trace, got line {number} of those "
                    "read now "
                    f"now ({error}); `lagfloor audit` reads other formats"
                ) from None
            yield value


def measures_of(lines: Sequence[Mapping[str, Any]], /) -> dict[str, float]:
    """Measures of one step from its lines, keys of STEP_COLUMNS; what the lines lack is absent."""
    found = {}
    rewards = [float(line["reward"]) for line in lines if line.get("reward") is not None]
    if rewards:
        found["reward"] = float(np.mean(rewards))
    width = max((len(line["response_ids"]) for line in lines), default=0)
    if width == 0:
        return found
    columns = {name: _padded(lines, name, width) for name in ("logp_mu", "logp_pi_s", "logp_pi")}
    mask = _padded(lines, "mask", width) > 0
    known = {name: np.isfinite(c[mask]).any() for name, c in columns.items()}
    mu, pi_s, pi = columns.values()
    if known["logp_pi_s"] and known["logp_pi"]:
        whole = mask & np.isfinite(pi_s) & np.isfinite(pi)
        reading = read_batch(mu if known["logp_mu"] else None, pi_s, pi, mask=whole, resamples=0)
        return found | reading.measures()
    if known["logp_mu"] and known["logp_pi"]:  # only their sum is known
        whole = mask & np.isfinite(mu) & np.isfinite(pi)
        return found | {"ess_total": read_batch(None, mu, pi, mask=whole, resamples=0).ess_token}
    if known["logp_mu"] and known["logp_pi_s"]:
        whole = mask & np.isfinite(mu) & np.isfinite(pi_s)
        return found | {
            "discrepancy_rms": read_batch(mu, pi_s, pi_s, mask=whole, resamples=0).discrepancy_rms
        }
    return found


def _padded(lines: Sequence[Mapping[str, Any]], name: str, width: int) -> np.ndarray:
    """One column of all responses, NaN where a response has ended or has no number."""
    out = np.full((len(lines), width), np.nan)
    for row, line in zip(out, lines, strict=True):
        values = line.get(name) or ()
        row[: len(values)] = [math.nan if v is None else v for v in values]
    return out


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
