"""The command line: a table of subcommands, each in a file that is imported when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from validation.errors import BadUsage, CannotRun, in_words

PROG = "lagfloor"
DEBUG = "LAGFLOOR_DEBUG"
"""Environment variable: set to 1, an error shows its traceback"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A line of ``lagfloor --help``."""

    module: str
    """Has a dataclass `Options`, read by tyro, and ``main(options) -> int``"""
    help: str


_TABLE = {
    "check": ("check", "the claims, predicted beside measured, with verdicts"),
    "run": ("run", "one experiment into a run folder; resumable"),
    "report": ("report", "one HTML page from the last checks; README block"),
    "phase": ("phase", "where each correction holds on the toy: lr x sync period, drawn"),
    "table": ("table", "samplers x corrections x seeds on mini-Qwen3; resumable"),
    "audit": ("audit", "what is wrong with a run, from its own logs"),
    "watch": ("watch", "a run as it goes, in the terminal"),
    "doctor": ("doctor", "which optional parts work on this machine"),
}


def _subcommands() -> Mapping[str, Subcommand]:
    """Return those this checkout has."""
    rows = {n: Subcommand(module=f"validation.commands.{m}", help=h) for n, (m, h) in _TABLE.items()}
    return MappingProxyType({n: row for n, row in rows.items() if importlib.util.find_spec(row.module)})


SUBCOMMANDS: Mapping[str, Subcommand] = _subcommands()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0: done; 1: could not run; 2: bad usage; 130: interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"{PROG} {version('lagfloor')}")
        return 0
    code = _subcommand(arguments[0], arguments[1:])
    sys.stdout.flush()  # a full disk shows here and not when Python ends
    return code


def _subcommand(name: str, arguments: Sequence[str]) -> int:
    if name not in SUBCOMMANDS:
        raise BadUsage(f"unknown subcommand {name!r}; known: {', '.join(SUBCOMMANDS)}")
    module = importlib.import_module(SUBCOMMANDS[name].module)
    return module.main(parse(module.Options, f"{PROG} {name}", arguments, about=SUBCOMMANDS[name].help))


def guarded(act: Callable[[], int], /) -> int:
    """Exit code of a command; what went wrong is one line on stderr."""
    try:
        return act()
    except BadUsage as error:
        return _fail(error, 2)
    except CannotRun as error:
        return _fail(error, 1)
    except KeyboardInterrupt as interrupt:
        kept = str(interrupt) or "nothing was left half-written; the same command starts again"
        print(f"\n{PROG}: interrupted; {kept}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output has left (`| head`): nothing to report, and nothing more to flush
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        return _fail(CannotRun(in_words(error)), 1)


def _drop_output() -> None:
    """Let nothing that is still to be printed fail when Python ends."""
    with contextlib.suppress(OSError, ValueError):  # an output that is no file, as under a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, code: int) -> int:
    if os.environ.get(DEBUG) == "1":
        raise error
    print(f"{PROG}: {_one_line(str(error))}", file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in SUBCOMMANDS.items())
    return (
        f"usage: {PROG} SUBCOMMAND [options]    (or: python -m validation SUBCOMMAND ...)\n\n"
        "Is an RL run still on-policy? Splits sampler/trainer mismatch into numerics and lag,\n"
        "predicts where importance weighting fails, and checks it on a toy and on a real Qwen3.\n\n"
        f"subcommands:\n{rows}\n\n"
        f"{PROG} SUBCOMMAND --help lists the options of one."
    )


def parse(options: type[Any], prog: str, arguments: Sequence[str], *, about: str) -> Any:
    """Read the options of a command; whatever is wrong with them comes as one line.

    Raises
    ------
    BadUsage
        Naming what was wrong.
    SystemExit
        With code 0 after ``--help``.
    """
    import io
    import re

    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(options, prog=prog, description=about, args=list(arguments))
    except SystemExit as stop:
        if stop.code in (0, None):
            sys.stdout.flush()
            raise
    # tyro draws a box around several lines; errors here are one line
    text = "".join(c for c in said.getvalue() if not "\u2500" <= c <= "\u257f")
    words = (
        _one_line(text)
        .replace("Invalid choice invalid choice", "invalid choice")
        .removeprefix("Parsing error ")
        .removeprefix("Value error ")
        .replace("Error parsing ", "cannot read ")
        .removeprefix("Unrecognized options ")
    )
    words = re.split(r" (?:For full helptext|Argument helptext)", words)[0]
    words = re.sub(r" Perhaps you meant: (--\S+).*", r"; perhaps you meant \1", words)
    raise BadUsage(f"{words}; see {prog} --help") from None
