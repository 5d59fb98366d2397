"""Ctrl-C of a command line: always one KeyboardInterrupt, raised where it can be told in a line.

Python raises it in whatever runs at that moment. Inside an import it can leave a native library half set up,
which ends in a crash; inside a callback of the garbage collector it is printed and forgotten. There it is put
off until that has ended.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

LATER = 0.05
"""Seconds after which it is tried again"""

FORGETTING = ("_xla_gc_callback", "__del__")
"""Functions whose exceptions Python prints and drops: JAX's callback of the collector, and finalisers"""


def install() -> None:
    """Handle Ctrl-C so from now on, unless someone ignores it; for the main thread of a command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    if _cannot_be_told(frame):
        again = threading.Timer(LATER, signal.raise_signal, (number,))
        again.daemon = True
        again.start()
        return
    raise KeyboardInterrupt


def _cannot_be_told(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name in FORGETTING:
            return True
        frame = frame.f_back
    return False
