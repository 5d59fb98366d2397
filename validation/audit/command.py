"""`audit PATH...`: what is wrong with my run, from its own logs."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from real.command_line import start
from validation.audit.discovery import discover
from validation.audit.document import write_json, write_text
from validation.audit.errors import BadLog, one_line
from validation.audit.options import Options
from validation.audit.readers import READERS
from validation.audit.run import Audit, audit
from validation.audit.terminal import show


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Audit a run from its own logs: name faults, split numerics from lag, say what cannot be known."""

    paths: tyro.conf.Positional[tuple[str, ...]]
    """files or folders a trainer wrote; gz and zst are read as they are"""
    json: Path | None = None
    """write inputs, provenance, numbers, findings and what cannot be known to this file"""
    html: Path | None = None
    """write a self-contained page with figures to this file"""
    format: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="NAME", help=f"name of the format, if its content does not tell: {', '.join(READERS)}"
        ),
    ] = None
    old_means: Literal["pi_s", "pi", "mu"] | None = None
    """what the recomputed (old, prev) log-probs are: the trainer at the sampler's weights, at others, a copy
    of mu"""
    align: int = 0
    """entry i of the engine's log-probs belongs to token i + ALIGN"""
    skip_bad: bool = False
    """pass over lines that cannot be read, and count them"""
    quiet: bool = False
    """no progress and no summary"""


def run(command: Command, /) -> int:
    """Audit and report; 0 when the audit ran.

    2 with one line on standard error when a file cannot be read.
    """
    try:
        if not command.paths:
            raise BadLog("audit needs at least one file or folder, got none; name what the trainer wrote")
        options = Options(
            format=command.format,
            old_means=command.old_means,
            align=command.align,
            skip_bad=command.skip_bad,
        )
        _spare_the_logs(command)
        told = _audited(command, options)
        if command.json is not None:
            write_json(told, command.json)
        if command.html is not None:
            from validation.audit.page import page  # matplotlib and jinja2 wait until a page is asked for

            write_text(page(told), command.html)
    except BadLog as error:
        print(f"lagfloor: {one_line(error, limit=600)}", file=sys.stderr)
        return 2
    if not command.quiet:
        show(told, Console())
    return 0


def _spare_the_logs(command: Command) -> None:
    """Refuse to write over what is read, or one output over the other."""
    read = {Path(p).resolve() for p in discover(list(command.paths)).files}
    written: set[Path] = set()
    for flag, path in (("--json", command.json), ("--html", command.html)):
        if path is None:
            continue
        place = Path(path).resolve()
        if place in read or place in written:
            what = "a log that is read" if place in read else "the file of --json"
            raise BadLog(f"{flag} must not be {what}, got {path}; name another file")
        written.add(place)


def _audited(command: Command, options: Options) -> Audit:
    """Run the audit with a bar of the bytes read, on a terminal only."""
    total = discover(list(command.paths)).size
    console = Console(stderr=True)
    if command.quiet or not console.is_terminal or total < 1 << 24:
        return audit(list(command.paths), options=options)
    columns = ("reading", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=total)
        return audit(list(command.paths), options=options, progress=lambda n: progress.advance(task, n))


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    return start(Command, "python -m validation.audit.command", run, arguments=arguments)


if __name__ == "__main__":
    raise SystemExit(main())
