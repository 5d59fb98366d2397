"""Send what each step reports to TensorBoard, wandb or trackio, where installed: one callback for a loop.

    with tracked(["tensorboard"], project="lagfloor", run="dlc-1") as on_step:
        real.loop.run(experiment, on_step=on_step)

Scalars are called ``lag/`` and their name in `theory.records.STEP_COLUMNS`, as `real.trl` and `real.verl` log
them; a measure a step does not have is not sent.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from theory.records import StepRecord

PREFIX = "lag/"


class _Open(NamedTuple):
    """A tracker that takes scalars."""

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


def _tensorboard(project: str, run: str, settings: Mapping[str, Any], folder: Path) -> _Open:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / project / run))
    writer.add_text("settings", f"```json\n{json.dumps(settings, indent=1)}\n```", 0)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return _Open(log, writer.close)


def _wandb(project: str, run: str, settings: Mapping[str, Any], folder: Path) -> _Open:
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    opened = wandb.init(project=project, name=run, config=dict(settings), dir=str(folder))
    return _Open(lambda values, step: opened.log(dict(values), step=step), opened.finish)


def _trackio(project: str, run: str, settings: Mapping[str, Any], folder: Path) -> _Open:
    import trackio

    trackio.init(project=project, name=run, config=dict(settings))
    return _Open(lambda values, step: trackio.log(dict(values), step=step), trackio.finish)


class _Tracker(NamedTuple):
    module: str
    open: Callable[[str, str, Mapping[str, Any], Path], _Open]


TRACKERS: Mapping[str, _Tracker] = MappingProxyType(
    {
        "tensorboard": _Tracker("tensorboard", _tensorboard),
        "wandb": _Tracker("wandb", _wandb),
        "trackio": _Tracker("trackio", _trackio),
    }
)


def present() -> tuple[str, ...]:
    """Trackers that are installed here."""
    return tuple(name for name, t in TRACKERS.items() if importlib.util.find_spec(t.module) is not None)


@contextmanager
def tracked(
    names: Sequence[str],
    /,
    *,
    project: str,
    run: str,
    settings: Mapping[str, Any] | None = None,
    folder: Path = Path("runs/trackers"),
) -> Iterator[Callable[[StepRecord], None]]:
    """Open trackers for a run, give the callback of its loop, and close them whatever happens.

    Parameters
    ----------
    names : sequence of str
        Keys of `TRACKERS`; `present()` for all that are installed. None of them is fine too.
    project, run : str
        What the trackers call it.
    settings : mapping, optional
        Plain values kept with the run, for example ``experiment.to_dict()``.
    folder : Path
        Where TensorBoard and wandb write; trackio has a place of its own (``TRACKIO_DIR``).

    Raises
    ------
    ValueError
        For a tracker nobody knows, or one that is not installed, and settings that are no plain values.
    """
    if isinstance(names, str):
        raise ValueError(f"trackers are a list of names, got the text {names!r}; write [{names!r}]")
    unknown = sorted(set(names) - set(TRACKERS))
    if unknown:
        raise ValueError(f"unknown tracker {unknown[0]!r}; known: {', '.join(TRACKERS)}")
    absent = sorted(set(names) - set(present()))
    if absent:
        raise ValueError(f"tracker {absent[0]!r} is not installed; pip install {absent[0]}, or leave it out")
    try:
        json.dumps(settings or {})
    except (TypeError, ValueError) as error:  # before anything is opened that would have to be closed
        raise ValueError(
            f"settings of a tracker are plain values, got {' '.join(str(error).split())}; "
            "pass texts and numbers"
        ) from None
    with ExitStack() as stack:
        logs = []
        for name in dict.fromkeys(names):
            opened = TRACKERS[name].open(project, run, settings or {}, folder)
            stack.callback(opened.close)
            logs.append(opened.log)

        def on_step(record: StepRecord) -> None:
            values = {PREFIX + n: float(v) for n, v in record.measures.items() if math.isfinite(v)}
            for log in logs:
                log(values, record.step)

        yield on_step
