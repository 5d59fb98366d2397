"""``phase``: where each correction holds on the toy, by learning rate and sync period, drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validation.errors import BadUsage, running, usage
from validation.places import folder, made


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draw deviation, accuracy and off-support share over learning rate and sync period, per correction."""

    runs: Path = Path("runs")
    """Folder of the stored runs; finished cells are reused"""
    out: Path = Path("report")
    """Folder of the SVG files"""
    seed: int = 0
    """Environments, as in ``check toy --seed``"""


def main(options: Options) -> int:
    """Run what is missing, draw, and leave the table for the report; 0 when all was written."""
    from validation.plan import environments

    with usage():
        environments(options.seed)
    folder(options.runs, "--runs")
    made(options.out, "--out")
    from validation.gather import phase
    from validation.report.phase import FILE, figures, read_phase
    from validation.report.results import CHECKS
    from validation.report.style import to_svg
    from validation.screen import stages

    with running(), stages() as stage:
        bar = stage("phase diagram", total=len(list(phase.rows(options.seed))))
        diagram = phase.gather(options.runs / "toy", options.seed, on_row=bar.advance)
    from validation.atomic import write_text

    checks = options.runs / CHECKS
    try:
        phase.save(diagram, checks / FILE)
        for name, figure, _ in figures(read_phase(checks)):
            path = options.out / f"{name}.svg"
            write_text(path, to_svg(figure, name=name, ink="#808080"))
            print(f"wrote {path}")
    except OSError as error:
        raise BadUsage(
            f"{error.filename} cannot be written ({error.strerror}); choose another place"
        ) from None
    return 0
