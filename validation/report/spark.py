"""Small curves drawn as plain SVG: one path a run, in the page's own ink."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 168, 56


def spark(
    runs: Sequence[Sequence[float | None]],
    *,
    low: float,
    high: float,
    log: bool = False,
    line: float | None = None,
    marks: Sequence[Sequence[int]] = (),
) -> Markup:
    """Draw runs of one length over a fixed range.

    Parameters
    ----------
    runs : sequence of sequences
        Values in order; None, NaN and infinities leave a gap.
    low, high : float
        Range of the axis; what lies outside is drawn at its edge.
    log : bool
        Logarithmic axis.
    line : float, optional
        Value of a dashed line across.
    marks : sequence of sequences
        For each run the places (from 0) that get a dot.

    Returns
    -------
    Markup
        SVG; made of numbers alone, so nothing in it needs escaping.
    """

    def y(value: float) -> float:
        value = min(max(value, low), high)
        share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        return round(HEIGHT - 3 - share * (HEIGHT - 6), 1)

    def x(place: int, count: int) -> float:
        return round(2 + place * (WIDTH - 4) / max(count - 1, 1), 1)

    parts = [f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    if line is not None:
        parts.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{y(line)}" y2="{y(line)}"/>')
    for i, run in enumerate(runs):
        path, pen = [], "M"
        for place, value in enumerate(run):
            if value is None or not math.isfinite(value):
                pen = "M"
                continue
            path.append(f"{pen}{x(place, len(run))} {y(value)}")
            pen = "L"
        parts.append(f'<path class="run r{i % 6}" d="{" ".join(path)}"/>')
        for place in marks[i] if i < len(marks) else ():
            value = run[place] if 0 <= place < len(run) else None
            if value is not None and math.isfinite(value):
                parts.append(f'<circle class="mark" cx="{x(place, len(run))}" cy="{y(value)}" r="2.4"/>')
    parts.append("</svg>")
    return Markup("".join(parts))
