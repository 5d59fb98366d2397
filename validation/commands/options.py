"""Options of a subcommand from its arguments: tyro reads them, a mistake is one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import TypeVar

import tyro

Options = TypeVar("Options")
BAD_USAGE = 2


def read_options(kind: type[Options], argv: list[str], /, *, command: str) -> Options:
    """Parse `argv` into the dataclass `kind`.

    Parameters
    ----------
    kind : type
        A dataclass; its docstring and those of its fields are the help text.
    argv : list of str
        What stands behind the subcommand's name.
    command : str
        Name of the subcommand.

    Raises
    ------
    SystemExit
        Code 0 after ``--help``; 2 with one line on standard error for arguments that do not parse.
    """
    prog = f"python -m validation {command}"
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.cli(kind, args=argv, prog=prog, description=kind.__doc__)
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        print(f"{prog}: {_one_line(caught.getvalue())}; see {prog} --help", file=sys.stderr)
        raise SystemExit(BAD_USAGE) from None


def _one_line(box: str) -> str:
    """Words of tyro's framed message, without the frame and without its pointer to the help."""
    rows = [re.sub(r"[\u2500-\u257f]", "", row).strip() for row in box.splitlines()]
    words: list[str] = []
    for row in rows:
        if row.startswith(("For full helptext", "See ")):
            break
        if row and row not in ("Parsing error", "Unrecognized options", "Required options"):
            words.append(row)
    return re.sub(r"\s+", " ", " ".join(words)) or "these arguments do not parse"
