"""Figure of the longer responses: how far own responses have left, against what the sampler's side sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from validation.atomic import write_text
from validation.plan import ON_POLICY
from validation.report.style import COLORS, INK, new_figure, to_svg

if TYPE_CHECKING:
    from validation.long_responses import Course

FLOOR = 1e-4
"""Shares of 0 are drawn here: of about 6,000 tokens, fewer than one"""
LEAST, MOST = 1e-3, 100.0
"""KLs are drawn within these, nats per token"""


def figure(courses: Sequence[Course], /) -> Figure:
    """One panel a method: off-support share on own responses over KL on the sampler's prefixes, by step.

    A line is a run from its start; the last snapshot is a dot. The band is the range of KL in on-policy
    training: an invisible collapse would rise inside it.
    """
    cells = list(dict.fromkeys(c.cell for c in courses))
    drawn = new_figure(panels=len(cells), width=2.3 * len(cells), height=2.9)
    reference = [c for c in courses if c.cell == ON_POLICY]
    top = max((float(np.max(c.found["kl_sampler"][1:])) for c in reference), default=np.nan)
    for axes, cell in zip(drawn.axes, cells, strict=True):
        axes.set(title=cell, xscale="log", yscale="log", xlabel="KL, sampler's prefixes")
        axes.axvspan(LEAST, top, color=COLORS[7], alpha=0.18, linewidth=0)
        for color, c in zip(COLORS, (c for c in courses if c.cell == cell), strict=False):
            x = np.clip(c.found["kl_sampler"][1:], LEAST, MOST)
            y = np.maximum(c.found["off_support"][1:], FLOOR)
            axes.plot(x, y, color=color, marker=".", markersize=4, linewidth=1, label=f"{c.experiment.seed}")
            axes.plot(x[-1:], y[-1:], "o", color=color, markersize=5)
        axes.axhline(FLOOR, color=INK, linewidth=0.5, linestyle=":")
        axes.set_xlim(LEAST, 1.5 * MOST)
        axes.set_ylim(FLOOR / 1.5, 1.2)
        axes.legend(fontsize=7, loc="lower right", title="seed", title_fontsize=7, ncols=2)
    drawn.axes[0].set_ylabel("off-support share of own tokens")
    return drawn


def draw(courses: Sequence[Course], path: Path, /) -> None:
    """Write the figure as SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_svg(figure(courses), name="long", ink="#808080"))
