"""Phase diagrams in the house style: a row of panels, one a correction, learning rate against sync period."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toy.settings import STALE
from validation.report.style import INK, new_figure

FILE = "toy-phase.parquet"
"""What `phase` leaves among the results of `check`"""
COMMAND = "python -m validation phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity of the diagrams."""

    title: str
    ends: tuple[float, float]
    """Values at the two ends of the colours"""
    shown: Callable[[float], str]
    """How a value is written in its cell"""
    caption: str


def _floors(value: float) -> str:
    floors = math.exp(min(value, 700.0))
    return f"{floors:.1f}" if floors < 9.95 else f"{floors:.0f}"


_WHERE = "Setting S with logit noise of .3 nats, after 40 steps, mean over two environments."
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "deviation": Measure(
            title="deviation, noise floors",
            ends=(0.0, math.log(100)),
            shown=_floors,
            caption=f"Deviation from on-policy training in noise floors. {_WHERE}",
        ),
        "accuracy": Measure(
            title="accuracy over that of on-policy training",
            ends=(1.0, 0.2),
            shown=lambda value: f"{value:.2f}",
            caption=f"Accuracy over that of on-policy training at the same learning rate. {_WHERE}",
        ),
        "off_support": Measure(
            title="off-support share",
            ends=(0.0, 0.2),
            shown=lambda value: f"{value:.3f}".removeprefix("0"),
            caption=f"Share of the trainer's own tokens with initial probability below 1e-3. {_WHERE}",
        ),
    }
)


def read_phase(folder: Path, /) -> pa.Table | None:
    """Read what the last `phase` kept; None where it kept nothing.

    Raises
    ------
    ValueError
        If the file is not such a table.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return pq.read_table(path, columns=["correction", "lr", "sync_every", *MEASURES])
    except (pa.ArrowInvalid, KeyError):
        raise ValueError(f"{path} is not a table of phase diagrams; delete it and run phase again") from None


def phase_figure(table: pa.Table, name: str, /) -> Figure:
    """Draw one measure for all corrections."""
    measure = MEASURES[name]
    columns = {key: table.column(key).to_numpy(zero_copy_only=False) for key in table.column_names}
    corrections = list(dict.fromkeys(columns["correction"]))
    lrs, periods = (np.unique(columns[key]) for key in ("lr", "sync_every"))
    figure = new_figure(panels=len(corrections), width=11.5, height=2.9)
    for axes, correction in zip(figure.axes, corrections, strict=True):
        mine = columns["correction"] == correction
        grid = np.full((len(lrs), len(periods)), np.nan)
        row = np.searchsorted(lrs, columns["lr"][mine])
        column = np.searchsorted(periods, columns["sync_every"][mine])
        grid[row, column] = columns[name][mine]
        _panel(axes, grid, measure)
        axes.set(title=correction, xlabel="sync every")
        axes.set_xticks(
            np.arange(len(periods)) + 0.5, ["never" if p == STALE else f"{p:g}" for p in periods], fontsize=8
        )
        axes.set_yticks(np.arange(len(lrs)) + 0.5, [f"{lr:g}" for lr in lrs], fontsize=8)
    figure.axes[0].set_ylabel("learning rate")
    figure.suptitle(measure.title, x=0.01, ha="left", fontsize=11, color=INK)
    return figure


def _panel(axes: Axes, grid: np.ndarray, measure: Measure) -> None:
    low, high = measure.ends
    shade = np.clip((grid - low) / (high - low), 0, 1)
    # cells and not an image: an image would be a bitmap in the SVG
    axes.pcolormesh(shade, cmap="cividis_r", vmin=0, vmax=1, edgecolors="none")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    colors = colormaps["cividis_r"]
    for (i, j), value in np.ndenumerate(grid):
        if np.isnan(value):
            continue
        red, green, blue, _ = colors(shade[i, j])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            j + 0.5,
            i + 0.5,
            measure.shown(float(value)),
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if dark else "black",
        )


def figures(table: pa.Table | None, /) -> Sequence[tuple[str, Figure, str]]:
    """Name, figure and caption of every measure; nothing for no table."""
    if table is None:
        return []
    return [
        (f"phase-{name}", phase_figure(table, name), measure.caption) for name, measure in MEASURES.items()
    ]
