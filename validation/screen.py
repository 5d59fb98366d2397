"""What the terminal shows: progress with the time left, and the verdict table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from validation.check import Check, Verdict, conclude
from validation.claims import CLAIMS
from validation.results import Results, bound, shown, verdict_counts

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.FAILS: "red",
    Verdict.UNDECIDED: "yellow",
    Verdict.NOT_RUN: "dim",
}
WIDTH = 140
"""Columns of the table where the output is no terminal"""


@dataclass
class Stage:
    """One bar."""

    _progress: Progress
    _task: TaskID

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def at(self, done: int, total: int) -> None:
        """So many of so many are done."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def stages() -> Iterator[Callable[..., Stage]]:
    """Show bars on stderr while the block runs; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with progress:
        yield lambda text, *, total: Stage(progress, progress.add_task(text, total=total))


def _cells(check: Check) -> tuple[str, ...]:
    outcome = conclude(check)
    return (
        f"[{STYLES[outcome.verdict]}]{outcome.verdict}[/]",
        escape(check.reading),
        escape(bound(check)),
        escape(shown(check.measured)),
        f"{escape(shown(check.control.measured))} [{STYLES[outcome.control]}]{outcome.control}[/]",
    )


def print_verdicts(results: Results, /) -> None:
    """Print the verdict table, then why a check is undecided or could not be run."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for number, (claim, group) in enumerate(groupby(results.checks, key=lambda check: check.claim)):
        console.print(f"\n[bold]{claim}[/]  {escape(CLAIMS[claim].statement)}")
        # one table a claim, with the same widths in all of them
        table = Table(box=None, pad_edge=False, expand=True, header_style="dim", show_header=number == 0)
        table.add_column("verdict", no_wrap=True, width=9)
        for name, ratio in (("reading", 5), ("predicted", 3), ("measured [95%]", 4), ("control", 5)):
            table.add_column(escape(name), overflow="fold", ratio=ratio)
        for check in group:
            table.add_row(*_cells(check))
        console.print(table)
    console.print()
    for check in results.checks:
        outcome = conclude(check)
        said = "; ".join(s for s in (outcome.reason, check.note) if s)
        if outcome.verdict is not Verdict.HOLDS and said:
            console.print(f"[{STYLES[outcome.verdict]}]{outcome.verdict}[/] {check.reading}: {escape(said)}")
    counts = ", ".join(f"{n} {word}" for word, n in verdict_counts(results.checks).items() if n)
    console.print(f"{results.engine}, seed {results.seed}: {counts}; {results.seconds:.0f} s")
