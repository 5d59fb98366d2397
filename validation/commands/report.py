"""``report``: one page from the last results of `check` and the curves they rest on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from validation.errors import BadUsage, usage
from validation.places import folder, writable


@dataclass(frozen=True, kw_only=True)
class Options:
    """Build the report from the last checks: verdict tables and figures in one HTML file."""

    runs: Path = Path("runs")
    """Folder of the stored runs"""
    out: Path = Path("report/index.html")
    """The page to write"""
    readme: Path | None = None
    """Also put the claims table between the markers of this README"""
    figure: Path | None = None
    """Also write the ESS figure alone to this SVG file"""


def main(options: Options) -> int:
    """Write the page; 0 when it was written."""
    from validation.report import phase
    from validation.report.curves import read_curves
    from validation.report.readme import write_readme
    from validation.report.results import CHECKS, read_results
    from validation.report.seeds import compare_seeds
    from validation.report.table_page import page_of, read_tables, render_table
    from validation.table.gather import FOLDER as TABLES

    folder(options.runs, "--runs")
    folder(options.out.parent, "--out's folder")
    for flag, path in (("--out", options.out), ("--figure", options.figure), ("--readme", options.readme)):
        writable(path, flag)
    with usage():
        results = read_results(options.runs)
        curves = [read_curves(options.runs / CHECKS, result.engine) for result in results]
        tables = read_tables(options.runs / TABLES)
        diagrams = phase.read_phase(options.runs / CHECKS)
        seeds = [compare_seeds(options.runs / CHECKS, result.engine) for result in results]
    for made in tables:
        _write(options.out.parent / page_of(made), render_table(made))
    if not results:
        if tables and options.readme is None and options.figure is None:
            return 0
        raise BadUsage(f"a report needs results, {options.runs} holds none; run `check toy` first")
    from validation.provenance import versions
    from validation.report import figures
    from validation.report.page import Shown, render
    from validation.report.style import to_svg

    engines = [c for c in curves if c is not None]
    shown = []
    if engines:
        command = " and ".join(r.command for r, c in zip(results, curves, strict=True) if c is not None)
        for name, (draw, caption) in _FIGURES.items():
            svg = to_svg(getattr(figures, draw)(engines), name=name)
            shown.append(Shown(svg=svg, caption=caption, command=command))
    for name, figure, caption in phase.figures(diagrams):
        shown.append(Shown(svg=to_svg(figure, name=name), caption=caption, command=phase.COMMAND))
    made = {
        "seeds": ", ".join(f"{r.engine} {r.seed}" for r in results),
        "seconds": ", ".join(f"{r.engine} {r.seconds:.0f}" for r in results),
        "versions": ", ".join(f"{k} {v}" for k, v in versions().items()),
        "machine": platform.platform(),
    }
    compared = [c for c in seeds if c is not None]
    _write(options.out, render(results, shown, made=made, compared=compared))
    if options.figure is not None and engines:
        # an image file has no page to take its ink from: a grey that reads on white and on black
        _write(options.figure, to_svg(figures.ess_figure(engines), name="ess", ink="#808080"))
    if options.readme is not None:
        with usage():
            write_readme(options.readme, results, tables)
    return 0


_FIGURES = {
    "ess": (
        "ess_figure",
        "ESS of the lag ratio with a stale sampler under importance sampling (thin: runs, thick: median), "
        "beside its two Gaussian predictions. The dotted line is one half.",
    ),
    "deviation": (
        "deviation_figure",
        "KL from on-policy training with a stale sampler, in units of the KL between two on-policy runs. "
        "The band ends at two floors.",
    ),
    "accuracy": ("accuracy_figure", "Held-out accuracy; the dashed line is on-policy training."),
    "resync": ("resync_figure", "ESS under DLC, run by run; a dot is a sync its rule asked for."),
}
"""Name to drawing function and caption"""


def _write(path: Path, text: str) -> None:
    from validation.atomic import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise BadUsage(f"{path} cannot be written ({error.strerror}); choose another place") from None
    print(f"wrote {path}")
