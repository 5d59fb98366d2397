"""The command line: a table of subcommands, each loaded only when it is called.

Exit codes: 0 done; 1 something asked for could not be run; 2 bad usage or bad input, with one line on
standard error; 130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "check": (
            "validation.commands.check",
            "check the claims: theory, toy or real; predicted beside measured",
        ),
        "run": ("validation.commands.run", "run one experiment into the store, resumable"),
        "table": ("validation.commands.table", "samplers x corrections x seeds on mini-Qwen3, resumable"),
        "report": ("validation.commands.report", "build report/index.html from everything run so far"),
        "audit": ("validation.commands.audit", "what is wrong with a run, from its own logs"),
        "watch": ("validation.commands.watch", "live view of a run in the terminal"),
        "doctor": ("validation.commands.doctor", "say which optional parts work on this machine"),
    }
)
"""Name, module with ``main(argv) -> int``, one line of help"""

PROG = "python -m validation"
BAD_INPUT, INTERRUPTED = 2, 130


def commands() -> dict[str, tuple[str, str]]:
    """Return the subcommands this checkout has."""
    return {name: row for name, row in COMMANDS.items() if importlib.util.find_spec(row[0]) is not None}


def usage() -> str:
    """Help text: one line a subcommand."""
    known = commands()
    rows = "\n".join(f"  {name:<8} {text}" for name, (_, text) in known.items())
    return (
        f"usage: {PROG} COMMAND [OPTIONS]\n\nlagfloor: is an RL run still on-policy?\n\ncommands:\n{rows}\n\n"
        f"{PROG} COMMAND --help explains one of them."
    )


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else BAD_INPUT
    name, *rest = arguments
    known = commands()
    if name not in known:
        print(f"{PROG}: unknown command {name!r}; known: {', '.join(known)}", file=sys.stderr)
        return BAD_INPUT
    try:
        return importlib.import_module(known[name][0]).main(rest)
    except KeyboardInterrupt:
        print(
            f"{PROG} {name}: interrupted; finished work is kept, the same command goes on from there",
            file=sys.stderr,
        )
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output (head, a pager) has gone: not a fault; keep the exit quiet
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"{PROG} {name}: {_first_line(error)}", file=sys.stderr)
        return BAD_INPUT


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
