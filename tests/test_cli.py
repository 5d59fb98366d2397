"""The command line itself: help is fast and light, mistakes are one line, exit codes mean what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from validation import cli

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "validation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_lists_the_commands_and_loads_no_engine():
    code = (
        "import sys, validation.cli as c; c.main(['--help']); "
        "print(sorted({'jax', 'torch', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.rstrip().endswith("[]")
    for name in cli.commands():
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chekc"], "unknown command 'chekc'; known: "),
        (["report", "--stroe", "x"], "--stroe"),
        (["report", "--store", "/nonexistent"], "check toy"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_an_interrupt_says_that_work_is_kept(monkeypatch, capsys):
    class Interrupted:
        @staticmethod
        def main(argv):
            raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Interrupted)
    assert cli.main(["report"]) == 130
    assert "finished work is kept" in capsys.readouterr().err
