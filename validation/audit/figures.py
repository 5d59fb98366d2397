"""Figures of the page, as SVG text.

Difference by position, probability and version, ratios, ESS over the steps.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from validation.audit.run import Audit
from validation.audit.sums import HISTOGRAM_BINS, HISTOGRAM_EDGE

SIZE = (5.2, 3.0)
"""Inches"""
MOST_FIGURES = 16


def figures(audit: Audit, /) -> dict[str, str]:
    """SVG by caption; a figure whose numbers were not measured is absent."""
    import matplotlib  # only the page needs it

    matplotlib.use("Agg")
    out: dict[str, str] = {}
    numbers = audit.numbers
    for caption, key, label in (
        ("|log mu - log reference| by position in the response", "by_position", "position, tokens"),
        ("|log mu - log reference| by the engine's probability", "by_probability", "probability"),
    ):
        rows = [r for r in numbers.get(key, []) if r["tokens"] >= 16]
        if len(rows) > 1:
            out[caption] = _bars([r["bucket"] for r in rows], [r["mean_abs_d"] for r in rows], label)
    for caption, key in (
        ("|log mu - log reference| by version gap", "by_version_gap"),
        ("|lag|, log pi_s - log pi, by version gap", "lag_by_version_gap"),
    ):
        gaps = numbers.get(key, [])
        if len(gaps) > 1:
            names = [str(r["version_gap"]) for r in gaps]
            values = [r["mean_abs_d"] for r in gaps]
            out[caption] = _bars(names, values, "updates between sampler and trainer")
    if audit.collected is not None:
        named = {
            "trainer over engine": audit.collected.discrepancy,
            "pi/pi_s": audit.collected.lag,
        }
        drawn = {k: v.histogram for k, v in named.items() if v.n}
        if drawn:
            out["Log ratios of tokens (log scale; what lies beyond 4 nats is in the outer bins)"] = (
                _histogram(drawn)
            )
    steps = numbers.get("lag_by_step") or numbers.get("by_step") or []
    if len(steps) > 1:
        out["Token ESS by step, raw, with the Gaussian prediction exp(-Var log w)"] = _ess(steps)
    for name in audit.curves:
        if name != "step" and len(out) < MOST_FIGURES:
            # the name stands in the caption, where it is escaped, and never in the drawing
            out[f"{name} by step, as logged"] = _line(audit.curves["step"], audit.curves[name])
    return out


def _svg(figure: Any) -> str:
    """Return the figure's SVG without what differs from run to run."""
    import matplotlib.pyplot as plt

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    svg = text.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)


def _axes(label: str, value: str) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=SIZE)
    axes.set_xlabel(label)
    axes.set_ylabel(value)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bars(names: list[str], values: list[float | None], label: str) -> str:
    figure, axes = _axes(label, "mean, nats")
    place = np.arange(len(names))
    axes.bar(place, [v or 0.0 for v in values], color="#3b6ea5")
    axes.set_xticks(
        place,
        names,
        rotation=60 if len(names) > 8 else 0,
        fontsize=7,
        ha="right" if len(names) > 8 else "center",
    )
    return _svg(figure)


def _histogram(drawn: dict[str, np.ndarray]) -> str:
    figure, axes = _axes("log ratio, nats", "tokens")
    centre = np.linspace(-HISTOGRAM_EDGE, HISTOGRAM_EDGE, HISTOGRAM_BINS)
    for (name, counts), colour in zip(drawn.items(), ("#3b6ea5", "#c0653a"), strict=False):
        axes.step(centre, np.maximum(counts, 0.5), where="mid", label=name, color=colour)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def _line(step: np.ndarray, value: np.ndarray) -> str:
    figure, axes = _axes("step", "as logged")
    good = np.isfinite(value)
    axes.plot(step[good], value[good], lw=1, color="#3b6ea5")
    return _svg(figure)


def _ess(steps: list[dict[str, Any]]) -> str:
    from theory.crossing import gaussian_var
    from theory.resync import FAILURE_THRESHOLD

    figure, axes = _axes("step", "ESS share")
    at = [r["step"] for r in steps]
    axes.plot(at, [r["ess_token"] for r in steps], marker="o", ms=3, label="raw", color="#3b6ea5")
    spread = np.array([(r["rms_d"] or 0.0) ** 2 - (r["mean_d"] or 0.0) ** 2 for r in steps])
    axes.plot(at, gaussian_var(spread), ls="--", label="Gaussian", color="#c0653a")
    axes.axhline(FAILURE_THRESHOLD, color="grey", lw=0.8)
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)
