"""The figures of the report, from the runs the checks read: medians over worlds and seeds, runs behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theory.crossing import first_below, gaussian_kl, gaussian_var
from theory.resync import FAILURE_THRESHOLD
from validation.evidence import Evidence, World
from validation.floor import deviation
from validation.plan import DLC, DLC_FREE, IS, IS_RESYNC, IS_SC, PG, SC, SEQ_IS, SEQ_IS_RESYNC
from validation.report.style import COLORS, INK, new_figure

SHOWN = (PG, SC, IS, IS_RESYNC, SEQ_IS, SEQ_IS_RESYNC, IS_SC, DLC, DLC_FREE)
"""Cells the comparison figures draw, where the engine has them"""
NAMES = {"toy": "toy, setting S", "real": "mini-Qwen3 against vLLM"}


def _series(worlds: Sequence[World], cell: str, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (K) and one row a run (R, K) of a measure; runs that stopped early end in NaN."""
    traces = [t for w in worlds if cell in w.cells for t in w.cells[cell].traces if measure in t.steps]
    if not traces:
        return np.arange(0), np.empty((0, 0))
    last = max(int(t.steps["step"][-1]) for t in traces)
    rows = np.full((len(traces), last), np.nan)
    for row, trace in zip(rows, traces, strict=True):
        row[trace.steps["step"] - 1] = trace.steps[measure]
    return np.arange(1, last + 1), rows


def _bundle(axes: Axes, steps: np.ndarray, rows: np.ndarray, color: str, label: str) -> None:
    for row in rows:
        axes.plot(steps, row, color=color, alpha=0.18, linewidth=0.7)
    axes.plot(steps, np.nanmedian(rows, axis=0), color=color, label=label)


def ess_figure(evidence: Sequence[Evidence]) -> Figure:
    """ESS of the lag ratio under stale importance sampling with its Gaussian predictions and the crossing."""
    figure = new_figure(panels=len(evidence))
    for axes, engine in zip(figure.axes, evidence, strict=True):
        steps, ess = _series(engine.main, IS, "ess_token")
        axes.axhline(FAILURE_THRESHOLD, color=INK, linewidth=0.8, linestyle=":")
        axes.set(title=NAMES[engine.engine], xlabel="step", ylim=(0, 1.02))
        if not len(steps):
            continue
        _bundle(axes, steps, ess, COLORS[0], "ESS of pi/pi_s, tokens")
        for predictor, measure, color, label in (
            (gaussian_var, "k2", COLORS[1], "Gaussian, from the variance"),
            (gaussian_kl, "k1", COLORS[2], "Gaussian, from the KL"),
        ):
            _, cumulant = _series(engine.main, IS, measure)
            if cumulant.size:
                median = np.nanmedian(predictor(cumulant), axis=0)
                axes.plot(steps, median, color=color, label=label, linestyle="--")
        crossings = first_below(ess, steps=steps)
        crossed = crossings[np.isfinite(crossings)]
        if crossed.size:
            at = float(np.median(crossed))
            axes.axvline(at, color=COLORS[0], linewidth=0.8)
            axes.annotate(
                f"crosses at {at:g}", (at, 0.97), xytext=(4, 0), textcoords="offset points", fontsize=9
            )
    figure.axes[0].set_ylabel("ESS, share of the batch")
    figure.axes[0].legend(loc="lower left", fontsize=8.5)
    return figure


def deviation_figure(evidence: Sequence[Evidence]) -> Figure:
    """Deviation from on-policy training in noise floors, each correction with a stale sampler."""
    figure = new_figure(panels=len(evidence), height=3.8)
    for axes, engine in zip(figure.axes, evidence, strict=True):
        axes.axhspan(0.5, 2, color=COLORS[7], alpha=0.18, linewidth=0)
        axes.set(title=NAMES[engine.engine], xlabel="step", yscale="log")
        for color, cell in zip((*COLORS, INK), SHOWN, strict=True):
            worlds = [w for w in engine.main if cell in w.cells]
            if not worlds:
                continue
            steps = worlds[0].steps
            rows = np.stack([deviation(w, cell) for w in worlds])
            axes.plot(steps, np.nanmedian(rows, axis=0), color=color, label=cell)
        axes.legend(fontsize=8, ncols=2)
    figure.axes[0].set_ylabel("deviation, noise floors")
    return figure


def accuracy_figure(evidence: Sequence[Evidence]) -> Figure:
    """Held-out accuracy of the trainer, on-policy and under each correction with a stale sampler."""
    figure = new_figure(panels=len(evidence), height=3.8, sharey=False)
    for axes, engine in zip(figure.axes, evidence, strict=True):
        axes.set(title=NAMES[engine.engine], xlabel="step")
        shown = (engine.worlds[0].on_policy, *SHOWN)
        for color, cell in zip((INK, *COLORS, INK), shown, strict=True):
            rows = [w.cells[cell].accuracy.mean(axis=-1) for w in engine.main if cell in w.cells]
            if rows:
                style = "--" if cell == shown[0] else "-"
                axes.plot(
                    engine.main[0].steps, np.mean(rows, axis=0), color=color, label=cell, linestyle=style
                )
        axes.legend(fontsize=8, ncols=2)
    figure.axes[0].set_ylabel("accuracy, share")
    return figure


def resync_figure(evidence: Sequence[Evidence]) -> Figure:
    """ESS under DLC, and where its rule synced the sampler."""
    figure = new_figure(panels=len(evidence))
    for axes, engine in zip(figure.axes, evidence, strict=True):
        steps, ess = _series(engine.main, DLC, "ess_token")
        axes.axhline(FAILURE_THRESHOLD, color=INK, linewidth=0.8, linestyle=":")
        axes.set(title=NAMES[engine.engine], xlabel="step", ylim=(0, 1.02))
        if not len(steps):
            continue
        for i, row in enumerate(ess):
            axes.plot(steps, row, color=COLORS[i % len(COLORS)], alpha=0.5, linewidth=0.9)
        _, fired = _series(engine.main, DLC, "resynced")
        run, step = np.nonzero(fired == 1)
        axes.plot(step + 1, ess[run, step], "o", color=INK, markersize=3.5, label="resync")
        axes.legend(loc="lower left", fontsize=8.5)
    figure.axes[0].set_ylabel("ESS, share of the batch")
    return figure
