"""Run one experiment of the articles on a full-size Qwen3, or print what it would do.

python -m real.fullsize --environment.model Qwen/Qwen3-0.6B --plan
python -m real.fullsize --environment.model ./Qwen3-0.6B --correction dlc --sync-every 64 --lr 0.05
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from real import process
from real.command_line import start
from real.errors import running, usage
from real.fullsize.settings import FullSize

if TYPE_CHECKING:
    from theory.advantage import Baseline
    from theory.experiment import Experiment
    from theory.records import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run on a full-size model. The learning rate is not tuned: start from a plan, then a short run."""

    environment: FullSize = field(default_factory=FullSize)
    correction: str = "dlc"
    """Row of the corrections table"""
    lr: float = 0.05
    """Step of plain SGD"""
    steps: int = 40
    prompts: int = 64
    samples: int = 8
    baseline: str = "none"
    """none: rewards +-1 as they are; global, group, group-std"""
    sync_every: int = 64
    """Scheduled sync in steps; 1 is on-policy"""
    seed: int = 0
    checkpoint: Path | None = None
    """Folder for the state, written at evaluated steps: two copies of the parameters; the same command goes
    on from there"""
    plan: bool = False
    """Print what would run, its memory and the engine's arguments; load nothing"""
    assume_cards: int = 1
    """Cards to plan for where the machine has none"""
    assume_gib: float = 80.0
    """Memory of each of them"""


def experiment(settings: Settings, /) -> Experiment:
    """Experiment of the command line."""
    from theory.corrections import correction
    from theory.experiment import Experiment

    baseline: Baseline = settings.baseline  # type: ignore[assignment] - Experiment refuses unknown ones
    return Experiment(
        environment=settings.environment,
        correction=correction(settings.correction),
        lr=settings.lr,
        steps=settings.steps,
        prompts=settings.prompts,
        samples=settings.samples,
        baseline=baseline,
        sync_every=settings.sync_every,
        seed=settings.seed,
    )


def _show(record: StepRecord) -> None:
    names = ("reward", "ess_token", "ess_sequence", "discrepancy_rms", "lag_rms", "accuracy")
    cells = " ".join(f"{n}={record.measures[n]:.4g}" for n in names if n in record.measures)
    print(f"step {record.step}: {cells}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; a wrong setting is one line and exit code 2, Ctrl-C one and 130."""
    return start(Settings, "python -m real.fullsize", _main, arguments=argv)


def _main(settings: Settings) -> int:
    if not Path(settings.environment.model).exists():
        process.allow_hub()
    process.prepare()
    with usage():
        job = experiment(settings)
        from real.fullsize.devices import cards
        from real.fullsize.plan import assumed_cards, plan

        if settings.plan:
            found = cards() or assumed_cards(settings.assume_cards, settings.assume_gib)
            print(plan(job, found))
            return 0
    from real.fullsize.loop import run

    folder = settings.checkpoint
    try:
        with running(), usage():  # a setting that only the weights can refuse is bad usage
            result = run(job, on_step=_show, checkpoint=folder, resume=bool(folder))
    except KeyboardInterrupt:
        kept = (
            "nothing was written; with --checkpoint the evaluated steps are"
            if folder is None
            else f"{folder} keeps the run up to the last evaluated step; the same command goes on from there"
        )
        raise KeyboardInterrupt(kept) from None
    if result.stopped is not None:
        print(f"stopped at {result.stopped}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
