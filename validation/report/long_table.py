"""Printed table of the longer responses: every snapshot of every run, on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from theory.crossing import first_below

if TYPE_CHECKING:
    from validation.long_responses import Course

SHOWN = (
    ("accuracy", "acc", "{:.2f}"),
    ("length", "len", "{:.0f}"),
    ("unended", "cut", "{:.2f}"),
    ("off_support", "off", "{:.4f}"),
    ("any_off", "any", "{:.2f}"),
    ("exit_own", "exit own", "{:.4f}"),
    ("exit_sampler", "exit sampler", "{:.4f}"),
    ("kl_own", "KL own", "{:.3g}"),
    ("kl_sampler", "KL sampler", "{:.3g}"),
    ("kl_sampler_reverse", "reverse", "{:.3g}"),
    ("missing", "1 - mean w", "{:+.3f}"),
)
"""Columns of the printed table: name, heading, format"""


def print_courses(courses: Sequence[Course], /) -> None:
    """Print every snapshot of every run, and what its rule did."""
    console = Console(width=150)
    for c in courses:
        ess = first_below(c.trace.steps["ess_token"], steps=c.trace.steps["step"])
        resyncs = c.trace.steps["step"][c.trace.steps["resynced"] == 1].tolist()
        title = f"{c.cell}, seed {c.experiment.seed}: token ESS first below 1/2 at {ess:g}, resyncs {resyncs}"
        table = Table("step", *(heading for _, heading, _ in SHOWN), "off by quarter", title=title, box=None)
        for k, step in enumerate(c.found["step"]):
            parts = " ".join(
                f"{c.found[name][k]:.3f}" for name in sorted(c.found) if name.startswith("off_segments")
            )
            table.add_row(str(int(step)), *(form.format(float(c.found[n][k])) for n, _, form in SHOWN), parts)
        console.print(table)
        if c.stopped:
            console.print(f"stopped: {c.stopped}")
