"""Ctrl-C in places where Python would drop it, or where it would cut a library's import in two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import os, signal, sys, time; from real.interrupt import install; install(); "
FINALISER = """
class Left:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

try:
    Left()
    time.sleep(5)
except KeyboardInterrupt:
    print("told")
"""
IMPORT = """
try:
    import cut
    time.sleep(5)
except KeyboardInterrupt:
    print("told", sys.modules["cut"].whole)
"""
MODULE = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0.2)
whole = True
"""


@pytest.mark.parametrize(("body", "said"), [(FINALISER, "told"), (IMPORT, "told True")])
def test_an_interrupt_is_put_off_until_it_can_be_told(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "cut.py").write_text(MODULE)
    code = f"{BEGIN}sys.path.append({str(tmp_path)!r})\n{body}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_a_command_that_was_started_to_ignore_interrupts_goes_on_ignoring_them() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from real.interrupt import install; "
        "install(); signal.raise_signal(signal.SIGINT); print('there')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "there"
