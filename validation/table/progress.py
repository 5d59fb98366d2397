"""Progress with the time left: bars on a terminal, a line a minute where the output is a file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from validation.screen import stages

LINE_EVERY = 60.0
"""Seconds between lines; the first comes with the first look"""
LOOK_EVERY = 1.0


class Pace:
    """Estimates the time left from what was done since it was made: what was there before is not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.started = clock, clock()
        self.before: int | None = None

    def left(self, done: int, total: int) -> float:
        """Seconds left; infinite before anything is done."""
        if self.before is None:
            self.before = done
        made, spent = done - self.before, self.clock() - self.started
        if done >= total:
            return 0.0
        return spent / made * (total - done) if made > 0 else float("inf")


@contextmanager
def watched(text: str, count: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show how far a count is while the block runs.

    Parameters
    ----------
    text : str
        What is counted.
    count : callable
        Returns done and total; called from a thread, once a second or less often if it is slow.
    """
    stop = threading.Event()
    pace = Pace()
    with stages() as stage:
        bar = stage(text, total=count()[1])
        spoken = [-LINE_EVERY]

        def look() -> None:
            done, total = count()
            bar.at(done, total)
            left, now = pace.left(done, total), time.monotonic()
            if not sys.stderr.isatty() and now - spoken[0] >= LINE_EVERY:
                spoken[0] = now
                when = "time left unknown" if left == float("inf") else f"{left / 60:.0f} min left"
                print(f"{text}: {done} of {total}, {when}", file=sys.stderr, flush=True)

        def loop() -> None:
            while not stop.wait(LOOK_EVERY):
                look()

        look()
        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            look()
