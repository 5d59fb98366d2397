"""The command line: a table of subcommands, each in a file that is imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from real.command_line import PROG, guarded, parse
from real.interrupt import install
from validation.errors import BadUsage


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
    if argv is None:
        install()
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
    return _subcommand(arguments[0], arguments[1:])


def _subcommand(name: str, arguments: Sequence[str]) -> int:
    if name not in SUBCOMMANDS:
        raise BadUsage(f"unknown subcommand {name!r}; known: {', '.join(SUBCOMMANDS)}")
    module = importlib.import_module(SUBCOMMANDS[name].module)
    return module.main(parse(module.Options, f"{PROG} {name}", arguments, about=SUBCOMMANDS[name].help))


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
