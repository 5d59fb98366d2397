"""The figures of the report: medians over worlds and seeds, single runs behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theory.crossing import first_below, gaussian_kl, gaussian_var
from theory.resync import FAILURE_THRESHOLD
from validation.plan import DLC, DLC_FREE, IS, IS_RESYNC, IS_SC, ON_POLICY, PG, SC, SEQ_IS, SEQ_IS_RESYNC
from validation.report.curves import Curves
from validation.report.style import COLORS, INK, new_figure

SHOWN = (PG, SC, IS, IS_RESYNC, SEQ_IS, SEQ_IS_RESYNC, IS_SC, DLC, DLC_FREE)
"""Cells the comparison figures draw, where the engine has them"""
NAMES = {"toy": "toy, setting S", "real": "mini-Qwen3 against vLLM"}


def _threshold(axes: Axes, engine: Curves) -> None:
    axes.axhline(FAILURE_THRESHOLD, color=INK, linewidth=0.8, linestyle=":")
    axes.set(title=NAMES[engine.engine], xlabel="step", ylim=(0, 1.02))


def ess_figure(engines: Sequence[Curves], /) -> Figure:
    """ESS of the lag ratio under stale importance sampling with its Gaussian predictions and the crossing."""
    figure = new_figure(panels=len(engines))
    for axes, engine in zip(figure.axes, engines, strict=True):
        _threshold(axes, engine)
        steps, ess = engine.series(IS, "ess_token")
        if not len(steps):
            continue
        for row in ess:
            axes.plot(steps, row, color=COLORS[0], alpha=0.18, linewidth=0.7)
        axes.plot(steps, np.nanmedian(ess, axis=0), color=COLORS[0], label="ESS of pi/pi_s, tokens")
        for predictor, column, color, label in (
            (gaussian_var, "k2", COLORS[1], "Gaussian, from the variance"),
            (gaussian_kl, "k1", COLORS[2], "Gaussian, from the KL"),
        ):
            at, cumulant = engine.series(IS, column)
            if len(at):
                median = np.nanmedian(predictor(cumulant), axis=0)
                axes.plot(at, median, color=color, label=label, linestyle="--")
        crossings = first_below(ess, steps=steps)
        crossed = crossings[np.isfinite(crossings)]
        if crossed.size:
            at = float(np.median(crossed))
            axes.axvline(at, color=COLORS[0], linewidth=0.8)
            text = f"crosses at {at:g}"
            axes.annotate(text, (at, 0.97), xytext=(4, 0), textcoords="offset points", fontsize=9)
    figure.axes[0].set_ylabel("ESS, share of the batch")
    figure.axes[0].legend(loc="lower left", fontsize=8.5)
    return figure


def deviation_figure(engines: Sequence[Curves], /) -> Figure:
    """Deviation from on-policy training in noise floors, each correction with a stale sampler."""
    figure = new_figure(panels=len(engines), height=3.8)
    for axes, engine in zip(figure.axes, engines, strict=True):
        axes.axhspan(0.5, 2, color=COLORS[7], alpha=0.18, linewidth=0)
        axes.set(title=NAMES[engine.engine], xlabel="step", yscale="log")
        _curves(axes, engine, "floors", SHOWN)
    figure.axes[0].set_ylabel("deviation, noise floors")
    return figure


def accuracy_figure(engines: Sequence[Curves], /) -> Figure:
    """Held-out accuracy of the trainer, on-policy and under each correction with a stale sampler."""
    figure = new_figure(panels=len(engines), height=3.8, sharey=False)
    for axes, engine in zip(figure.axes, engines, strict=True):
        axes.set(title=NAMES[engine.engine], xlabel="step")
        steps, rows = engine.series(ON_POLICY, "accuracy")
        if len(steps):
            axes.plot(steps, rows.mean(axis=0), color=INK, linestyle="--", label=ON_POLICY)
        _curves(axes, engine, "accuracy", SHOWN)
    figure.axes[0].set_ylabel("accuracy, share")
    return figure


def _curves(axes: Axes, engine: Curves, column: str, cells: Sequence[str]) -> None:
    for color, cell in zip((*COLORS, INK), cells, strict=True):
        steps, rows = engine.series(cell, column)
        if len(steps):
            axes.plot(steps, np.nanmedian(rows, axis=0), color=color, label=cell)
    axes.legend(fontsize=8, ncols=2)


def resync_figure(engines: Sequence[Curves], /) -> Figure:
    """ESS under DLC, and where its rule synced the sampler."""
    figure = new_figure(panels=len(engines))
    for axes, engine in zip(figure.axes, engines, strict=True):
        _threshold(axes, engine)
        steps, ess = engine.series(DLC, "ess_token")
        if not len(steps):
            continue
        for i, row in enumerate(ess):
            axes.plot(steps, row, color=COLORS[i % len(COLORS)], alpha=0.5, linewidth=0.9)
        _, fired = engine.series(DLC, "resynced")
        run, place = np.nonzero(fired == 1)
        axes.plot(steps[place], ess[run, place], "o", color=INK, markersize=3.5, label="resync")
        axes.legend(loc="lower left", fontsize=8.5)
    figure.axes[0].set_ylabel("ESS, share of the batch")
    return figure
