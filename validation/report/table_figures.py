"""The figures of the table's page: curves with floors, ESS, and what ranks the accuracy drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theory.resync import FAILURE_THRESHOLD
from validation.report.style import COLORS, INK, new_figure
from validation.table.rows import SAMPLERS

Document = Mapping[str, Any]
LIGHT = "#8c8c8c"
"""Of the corrections that are not named: reads on white and on black"""
NAMED = ("pg", "sc", "is", "is+resync", "tis", "ppo-engine", "dlc-free", "dlc")
"""Corrections drawn in colour; the others are drawn thin behind them"""


def samplers_of(made: Document) -> list[str]:
    """Samplers in the order of the document."""
    return list(dict.fromkeys(cell["sampler"] for cell in made["cells"]))


def _shown(made: Document, sampler: str) -> list[Mapping[str, Any]]:
    """Measured cells of a sampler, those that are another's runs left out."""
    return [c for c in made["cells"] if c["sampler"] == sampler and c["measured"] and c["same"] is None]


def _row(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _mean(cell: Mapping[str, Any], key: str) -> np.ndarray:
    return np.mean([_row(run[key]) for run in cell["runs"]], axis=0)


def _curves(axes: Axes, made: Document, sampler: str, key: str) -> None:
    cells = {c["correction"]: _mean(c, key) for c in _shown(made, sampler)}
    for cell in made["cells"]:
        # a named one that shares the runs of one that has no colour lends them its own
        name, same = cell["correction"], cell["same"]
        if cell["sampler"] == sampler and same and name in NAMED and same["row"] not in NAMED:
            cells[name] = cells.pop(same["row"], _mean(cell, key))
    for name, values in cells.items():
        if name not in NAMED:
            axes.plot(made["steps"], values, color=LIGHT, linewidth=0.8, alpha=0.6)
    for color, name in zip(COLORS, NAMED, strict=True):
        if name in cells:
            axes.plot(made["steps"], cells[name], color=color, label=name)
    axes.set(title=sampler, xlabel="step")


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them: what a panel lacks, another has."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    order = [name for name in ("on-policy", *NAMED) if name in found]
    figure.legend([found[n] for n in order], order, loc="outside lower center", ncols=9, fontsize=9)


def deviation_figure(made: Document, /) -> Figure:
    """Mean deviation of each cell in floors over the compared steps, a panel a sampler."""
    figure = new_figure(panels=len(samplers_of(made)), width=11.5, height=3.9)
    for axes, sampler in zip(figure.axes, samplers_of(made), strict=True):
        axes.axhspan(0.5, 2, color=LIGHT, alpha=0.18, linewidth=0)
        axes.set(yscale="log")
        _curves(axes, made, sampler, "floors")
    figure.axes[0].set_ylabel("deviation, noise floors")
    _legend(figure)
    return figure


def accuracy_figure(made: Document, /) -> Figure:
    """Mean held-out accuracy of each cell, with that of the on-policy runs."""
    figure = new_figure(panels=len(samplers_of(made)), width=11.5, height=3.9)
    for axes, sampler in zip(figure.axes, samplers_of(made), strict=True):
        axes.plot(made["steps"], made["on_policy"]["accuracy"], color=INK, linestyle="--", label="on-policy")
        _curves(axes, made, sampler, "accuracy")
        axes.set_ylim(bottom=0)
    figure.axes[0].set_ylabel("accuracy, share")
    _legend(figure)
    return figure


def stale_samplers(made: Document, /) -> list[str]:
    """Samplers of the document that lag."""
    return [s for s in samplers_of(made) if s in SAMPLERS and SAMPLERS[s].stale and _shown(made, s)]


def ess_figure(made: Document, /) -> Figure | None:
    """ESS of the lag ratio over tokens under each stale sampler, runs and median; None without one."""
    shown = stale_samplers(made)
    if not shown:
        return None
    figure = new_figure(panels=len(shown), width=11.5, height=3.7)
    for axes, sampler in zip(figure.axes, shown, strict=True):
        axes.axhline(FAILURE_THRESHOLD, color=INK, linewidth=0.8, linestyle=":")
        cells = {c["correction"]: c for c in _shown(made, sampler)}
        for color, name in zip(COLORS, NAMED, strict=True):
            if name not in cells or name == "tis":
                continue
            rows = [_row(run["series"]["ess_token"]) for run in cells[name]["runs"]]
            for row in rows:
                axes.plot(np.arange(1, len(row) + 1), row, color=color, alpha=0.22, linewidth=0.7)
            length = min(map(len, rows))
            median = np.median([row[:length] for row in rows], axis=0)
            axes.plot(np.arange(1, length + 1), median, color=color, label=name)
        axes.set(title=sampler, xlabel="step", ylim=(0, 1.02))
    figure.axes[0].set_ylabel("ESS of pi/pi_s, tokens")
    _legend(figure)
    return figure


def rank_figure(made: Document, /) -> Figure:
    """Every checkpoint: accuracy drop against off-support share, deviation, and the sampler's side."""
    figure = new_figure(panels=3, width=11.5, height=3.5)
    reference = _row(made["on_policy"]["accuracy"])
    columns = (
        ("off_support", "off-support share", "off-support"),
        ("floors", "deviation, floors", "deviation"),
        ("prefixes", "KL on the sampler's prefixes, floors", "KL on the sampler's prefixes"),
    )
    for axes, (key, label, name) in zip(figure.axes, columns, strict=True):
        for color, sampler in zip(COLORS, samplers_of(made), strict=False):
            cells = _shown(made, sampler)
            x = np.concatenate([_row(r[key]) for c in cells for r in c["runs"]] or [np.empty(0)])
            drop = [reference - _row(r["accuracy"]) for c in cells for r in c["runs"]]
            y = np.concatenate(drop or [np.empty(0)])
            axes.plot(np.maximum(x, 1e-4), y, "o", color=color, markersize=3, alpha=0.5, label=sampler)
        value = made["ranks"]["measures"][name]["value"]
        title = "not measured" if value is None or np.isnan(value) else f"Spearman {value:.2f}"
        axes.set(xscale="log", xlabel=label, title=title)
    figure.axes[0].set_ylabel("accuracy lost, share")
    figure.axes[0].legend(fontsize=8.5, loc="upper left")
    return figure


FIGURES = {
    "table-deviation": (
        deviation_figure,
        "Deviation from on-policy training, mean over seeds, in units of the KL between two on-policy runs. "
        "The band ends at two floors; thin grey: the other corrections.",
    ),
    "table-accuracy": (
        accuracy_figure,
        "Held-out accuracy of the trainer, mean over seeds; dashed: on-policy runs with seeds of their own.",
    ),
    "table-ess": (
        ess_figure,
        "Effective sample size of the lag ratio over the tokens of a batch; thin: runs, thick: median. "
        "Resyncs bring it back to 1.",
    ),
    "table-rank": (
        rank_figure,
        "Every compared checkpoint of every run: accuracy lost against three numbers one could watch.",
    ),
}
"""Name to drawing function and caption"""
