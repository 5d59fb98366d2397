"""What a user can be told in one line: the rule, what was got, what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager

from theory.faults import EngineFault


class BadUsage(Exception):
    """The command asks for something that cannot be: exit code 2."""


class CannotRun(Exception):
    """The command is fine and this machine, or its disk, cannot do it: exit code 1."""


@contextmanager
def usage() -> Iterator[None]:
    """Turn the ValueError of a setting, which the project's own classes word, into bad usage."""
    try:
        yield
    except ValueError as error:
        raise BadUsage(str(error)) from None


@contextmanager
def running() -> Iterator[None]:
    """Turn what an engine, the store or the disk refuses into one line."""
    try:
        yield
    except OSError as error:
        raise CannotRun(in_words(error)) from error
    except (ValueError, EngineFault) as error:
        raise CannotRun(str(error)) from error
    except BrokenExecutor as error:
        raise CannotRun(
            "a worker process was killed, or the machine ran out of memory; what is done is kept, run again"
        ) from error


ADVICE: Mapping[int, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "change its permission, or name another place",
    errno.EPERM: "change its permission, or name another place",
    errno.EROFS: "name another place",
    errno.ENOTDIR: "name a folder",
    errno.EISDIR: "name a file",
    errno.ENOENT: "see that it is there",
}
"""What to do, by the number of the error"""


def in_words(error: OSError, /) -> str:
    """Name the file that could not be used, the rule, and what to do; other errors speak for themselves."""
    if error.filename is None and error.errno not in ADVICE:  # of a network or a library, with its own words
        return " ".join(str(error).split()) or type(error).__name__
    where = error.filename or "a file of this command"
    what = error.strerror or str(error) or type(error).__name__
    todo = ADVICE.get(error.errno or 0, "see what holds it, or name another place")
    return f"{where} must be there to read and write, got {what.lower()!r}; {todo}"
