"""How figures look: inline SVG that takes its ink from the page, so that it is readable in light and dark."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

INK = "#010203"
"""Stand-in for the page's text colour, replaced by ``currentColor`` in the SVG"""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8b5cf6", "#7f7f7f")
"""Okabe-Ito, distinct for colour-blind readers; its yellow darkened to stand on white"""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.6,
}


def new_figure(*, panels: int = 1, width: float = 9.2, height: float = 3.4, sharey: bool = True) -> Figure:
    """Return a figure with a row of axes in the house style."""
    # for good and not in a context: titles and legends read the settings when they are drawn on later
    plt.rcParams.update(STYLE)
    figure, _ = plt.subplots(1, panels, figsize=(width, height), sharey=sharey, layout="constrained")
    return figure


def to_svg(figure: Figure, /, *, name: str, ink: str = "currentColor") -> str:
    """Render to SVG text for use inside HTML; ids are made from `name`, so figures do not collide."""
    buffer = io.StringIO()
    with plt.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, ink)
    # matplotlib counts its ids (figure_1, axes_1, ...) anew in every figure of a page
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
