"""What a user can be told in one line: the rule, what was got, what to do."""

from __future__ import annotations

from collections.abc import Iterator
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
    except (ValueError, OSError, EngineFault) as error:
        raise CannotRun(str(error)) from error
    except BrokenExecutor as error:
        raise CannotRun(
            "a worker process was killed, or the machine ran out of memory; what is done is kept, run again"
        ) from error
