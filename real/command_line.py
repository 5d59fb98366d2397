"""What every command line of the project shares: options read by tyro, and errors in one line on stderr.

Imports no engine, so that ``--help`` is there at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from real.errors import BadUsage, CannotRun, in_words
from real.interrupt import install

PROG = "lagfloor"
DEBUG = "LAGFLOOR_DEBUG"
"""Environment variable: set to 1, an error shows its traceback"""


def start(
    options: type[Any], prog: str, main: Callable[[Any], int], /, *, arguments: Sequence[str] | None = None
) -> int:
    """Run a command that is a module of its own, ``python -m ...``; its exit code, as in `guarded`.

    Parameters
    ----------
    options : dataclass
        What the command can be told; its docstring is shown by ``--help``.
    prog : str
        The command as it is typed.
    main : callable
        From options to an exit code.
    arguments : sequence of str, optional
        Those of this process if None.
    """
    if arguments is None:
        install()
    given = list(sys.argv[1:] if arguments is None else arguments)
    about = (options.__doc__ or "").strip()
    return guarded(lambda: main(parse(options, prog, given, about=about)))


def guarded(act: Callable[[], int], /) -> int:
    """Exit code of a command; what went wrong is one line on stderr.

    0: done; 1: could not run; 2: bad usage; 130: interrupted.
    """
    if sys.stdout is None:  # started without one (``>&-``): libraries that print do not expect that
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without a curve's blocks shows the rest
    try:
        code = act()
        sys.stdout.flush()  # a full disk shows here and not when Python ends
        return code
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
        try:
            sys.stdout.flush()
        except OSError:  # it is the output that cannot be written
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


def parse(options: type[Any], prog: str, arguments: Sequence[str], *, about: str) -> Any:
    """Read the options of a command; whatever is wrong with them comes as one line.

    Raises
    ------
    BadUsage
        Naming what was wrong.
    SystemExit
        With code 0 after ``--help``.
    """
    import tyro

    _refuse_empty(arguments)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(options, prog=prog, description=about, args=list(arguments))
    except SystemExit as stop:
        if stop.code in (0, None):
            sys.stdout.flush()
            raise
    # tyro draws a box around several lines; errors here are one line
    text = re.sub("[\u2500-\u257f]|-{4,}", " ", said.getvalue())
    words = (
        _one_line(text)
        .replace("Invalid choice invalid choice", "invalid choice")
        .removeprefix("Parsing error ")
        .removeprefix("Value error ")
        .replace("Error parsing ", "cannot read ")
        .removeprefix("Unrecognized options ")
        .removeprefix("Required options ")
        .removeprefix("Missing argument ")
    )
    words = re.split(r" (?:For full helptext|Argument helptext)", words)[0]
    words = re.sub(r" Perhaps you meant: (--\S+).*", r"; perhaps you meant \1", words)
    raise BadUsage(f"{words}; see {prog} --help") from None


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an empty text: as a path it would be the current folder, as a list everything."""
    for before, word in pairwise(("", *arguments)):
        joined = word.startswith("--") and word.endswith("=")
        if joined or not word:
            flag = word[:-1] if joined else before if before.startswith("--") else "an argument"
            raise BadUsage(f"{flag} must name something, got an empty text; leave it out")
