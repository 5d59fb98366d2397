"""What an engine, a disk or a lost worker says at the command line: one line each, with its exit code."""

from __future__ import annotations

import errno
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from theory.faults import EngineFault
from validation.errors import BadUsage, CannotRun, in_words, running, usage


@pytest.mark.parametrize("error", [ValueError("a rule"), OSError("a rule"), EngineFault("a rule")])
def test_what_an_engine_or_the_disk_refuses_cannot_run(error):
    with pytest.raises(CannotRun, match="a rule"), running():
        raise error


def test_a_library_s_own_words_are_kept_and_a_file_is_named():
    assert in_words(OSError("Qwen/Mini is no local folder.\nGive a hub id")) == (
        "Qwen/Mini is no local folder. Give a hub id"
    )
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    assert in_words(full).startswith("runs/x must be")
    assert in_words(full).endswith("free some space")


def test_a_setting_no_engine_takes_is_bad_usage():
    with pytest.raises(BadUsage, match="a rule"), usage():
        raise ValueError("a rule")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_named_and_not_a_traceback():
    with (
        pytest.raises(CannotRun, match="a worker process was killed"),
        running(),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        pool.submit(_die).result()
