"""Figure of claim ``invisible``: what the trainer does beside what the sampler's side shows of it.

    python -m validation.report.invisible docs/invisible.svg [--env 3]

Makes its own runs, seconds once the setting is compiled. Suffixes: S training seeds, K steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from real.command_line import start
from validation.atomic import write_file
from validation.report.style import COLORS, INK, new_figure, to_svg

PANELS = {
    "off_support": "off-support share of the trainer's tokens",
    "accuracy": "accuracy",
    "kl_sampler": "KL, sampler's prefixes, nats/token",
    "ess_token": "ESS of the sampled tokens",
    "kl_own": "KL, trainer's own prefixes, nats/token",
}


def invisible_figure(curves: Mapping[str, Mapping[str, np.ndarray]], /) -> Figure:
    """Draw one panel a measure, one line a cell.

    Parameters
    ----------
    curves : mapping
        Cell to measure to array (S, K).
    """
    figure = new_figure(panels=len(PANELS), width=15.0, height=3.2, sharey=False)
    for axes, (measure, title) in zip(figure.axes, PANELS.items(), strict=True):
        for (cell, measures), color in zip(curves.items(), COLORS, strict=False):
            values_SK = measures[measure]
            steps = np.arange(1, values_SK.shape[1] + 1)
            for run in values_SK:
                axes.plot(steps, run, color=color, alpha=0.25, linewidth=0.7)
            axes.plot(steps, np.median(values_SK, axis=0), color=color, label=cell)
        axes.set(title=title, xlabel="step")
        axes.set_ylim(bottom=0)
    figure.axes[0].axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def curves_of(env: int, /) -> dict[str, dict[str, np.ndarray]]:
    """Run the cells of one environment and return what the panels draw."""
    from toy.measure import own_prefix_kl
    from validation.gather.invisible import runs

    found = {}
    for name, e in runs(env).items():
        measures = {k: np.asarray(e.measures[k], dtype=float) for k in PANELS if k != "kl_own"}
        found[name] = measures | {"kl_own": own_prefix_kl(e)}
    return found


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draw the invisible collapse of one environment."""

    out: Annotated[Path, tyro.conf.Positional]
    """SVG file to write"""
    env: int = 3
    """Seed of the environment; 0 is the one the setting was found in"""


def main(options: Options) -> int:
    """Write the figure; 0 when it was written."""
    svg = to_svg(invisible_figure(curves_of(options.env)), name="invisible", ink="#808080")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(options.out, lambda path: path.write_text(svg, encoding="utf-8"))
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(start(Options, "python -m validation.report.invisible", main))
