"""``lagfloor watch RUN``: a run as it goes, in the terminal."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from validation.errors import CannotRun, in_words, running, usage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from validation.watch import Progress, Source

SHOWN = ("reward", "accuracy", "ess_token", "ess_sequence", "discrepancy_rms", "lag_rms", "k_hat")
HEADS = ("reward", "accuracy", "ESS token", "ESS response", "numerics rms", "lag rms", "k-hat")
BLOCKS = " ▁▂▃▄▅▆▇█"
LONGEST_WAIT = 86_400.0
"""Seconds between looks"""
BAR = 60
"""Widest curve, in characters: one a step, the newest on the right"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show a run folder, or the canonical trace a trainer is writing, as it grows."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder of the store, canonical trace, or a folder of traces"""
    every: float = 2.0
    """Seconds between looks"""
    rows: int = 15
    """Steps in the table"""
    once: bool = False
    """Print what there is and leave"""


def main(options: Options) -> int:
    """Show until the run is done or the user has seen enough; 0.

    With ``once`` an exit code of 1 where a line could not be read.
    """
    from rich.console import Console
    from rich.live import Live

    from validation.watch import source_of

    with usage():
        if not 0 < options.every <= LONGEST_WAIT:  # NaN is no wait either
            raise ValueError(
                f"--every must be > 0 and <= {LONGEST_WAIT:g} seconds, got {options.every:g}; leave it out "
                "for 2"
            )
        if options.rows < 1:
            raise ValueError(f"--rows must be >= 1, got {options.rows}; leave it out for 15")
        source = source_of(options.run)
    console = Console()
    with running():
        now = source.poll()
        if options.once:
            if now.steps or not now.unread:
                console.print(view(now._replace(unread=""), options.rows))
            if now.unread:
                raise CannotRun(now.unread)  # on stderr: nobody may take the table for the whole
            return 0
        with Live(view(now, options.rows), console=console, auto_refresh=False) as live:
            try:
                while now.state != "done":
                    time.sleep(options.every)
                    now = look_again(source, now)
                    live.update(view(now, options.rows), refresh=True)
            except KeyboardInterrupt:
                pass  # watching ends when one stops watching
    return 0


def look_again(source: Source, last: Progress, /) -> Progress:
    """Poll; where what is there cannot be read just now, keep what was seen and say so."""
    try:
        return source.poll()
    except OSError as error:
        return last._replace(unread=f"not read at the last look: {in_words(error)}")
    except ValueError as error:
        return last._replace(unread=f"not read at the last look: {error}")


def view(now: Progress, rows: int, /) -> RenderableType:
    """Draw the state: a line on what runs, the curve of the ESS, a table of the last steps, a verdict."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text(now.title, style="bold")
    total = "" if now.total is None else f" of {now.total}"
    head.append(f"\n{now.state}, step {int(now.steps[-1]['step']) if now.steps else 0}{total}", style="dim")
    warnings = [Text(words, style="yellow") for words in (now.unread, *now.notes) if words]
    if not now.steps:
        return Group(head, Text("no step yet", style="dim"), *warnings)
    table = Table(box=None, pad_edge=False)
    for name in ("step", *HEADS, "pushed"):
        table.add_column(name, justify="right")
    for step in now.steps[-rows:]:
        cells = [Text(_number(step.get(name))) for name in SHOWN]
        if step.get("ess_token", 1.0) < 0.5:
            cells[SHOWN.index("ess_token")].stylize("bold red")
        pushed = step.get("pushed") or step.get("resynced")
        table.add_row(str(int(step["step"])), *cells, "yes" if pushed else "")
    return Group(head, curve(now), table, Text(verdict(now)), *warnings)


def curve(now: Progress, /) -> RenderableType:
    """ESS of the lag by step, 0 to 1 in eighths; red below one half, a dot where it was not measured."""
    from rich.text import Text

    line = Text("ESS ")
    for value in now.series("ess_token")[-BAR:]:
        if math.isnan(value):
            line.append("·", style="dim")
        else:
            line.append(
                BLOCKS[round(min(max(value, 0.0), 1.0) * 8)], style="green" if value >= 0.5 else "red"
            )
    return line


def verdict(now: Progress, /) -> str:
    """Say what the curve means so far."""
    crossed = now.crossed
    pushes = sum(1 for s in now.steps if s.get("pushed") or s.get("resynced"))
    pushed = f"; {pushes} pushes asked for by the lag or seen" if pushes else ""
    if math.isnan(crossed):
        return "the lag is not measured: the trace lacks the trainer's log-probs at the sampler's weights"
    if math.isfinite(crossed):
        return f"the token ESS of the lag first fell below 1/2 at step {crossed:.0f}{pushed}"
    outlook = now.outlook()
    if outlook is None or not math.isfinite(outlook.step):
        return f"the token ESS of the lag has not fallen below 1/2{pushed}"
    high = f"{outlook.high:.0f}" if math.isfinite(outlook.high) else "later"
    return (
        f"the token ESS of the lag has not fallen below 1/2{pushed}; without a push it is expected to at lag "
        f"{outlook.step:.0f} ({outlook.level:.0%}: {outlook.low:.0f} to {high}), now {outlook.at:.0f}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"
