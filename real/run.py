"""One door to both real engines: an experiment goes to the loop its environment is made for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real.settings import Mini
from theory.experiment import Experiment
from theory.records import StepRecord

if TYPE_CHECKING:
    from real.fullsize.loop import FullRun
    from real.outcome import Run


def run(
    experiment: Experiment,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    **options: Any,
) -> Run | FullRun:
    """Run an experiment of the real engine, small or full-size.

    Parameters
    ----------
    experiment : Experiment
        On a `real.settings.Mini` or a `real.fullsize.settings.FullSize`.
    on_step, checkpoint, resume
        As both loops take them.
    **options
        Of the one loop alone: ``sampler`` (Mini), ``tokenizer`` (FullSize).

    Raises
    ------
    ValueError
        For an environment of neither, or what the loop itself refuses.
    """
    environment = experiment.environment
    if isinstance(environment, Mini):
        from real.loop import run as run_mini

        return run_mini(experiment, on_step=on_step, checkpoint=checkpoint, resume=resume, **options)
    from real.fullsize.settings import FullSize

    if isinstance(environment, FullSize):
        from real.fullsize.loop import run as run_full

        return run_full(experiment, on_step=on_step, checkpoint=checkpoint, resume=resume, **options)
    raise ValueError(
        f"a real engine runs experiments on a Mini or a FullSize, got {type(environment).__name__}"
    )
