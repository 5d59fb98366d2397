"""Commands that are modules of their own: a bad option is one line and exit code 2, Ctrl-C one and 130."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from real.command_line import start

MAINS = (
    "real.fullsize.__main__",
    "real.fullsize.smoke",
    "real.warmstart",
    "real.fp8.strength",
    "real.verl.launch",
    "real.verl.task",
    "real.hooks.prime_rl",
    "real.trl.countdown",
    "validation.report.invisible",
    "validation.long_responses",
    "validation.audit.command",
    "validation.dlc_default",
    "validation.monitor_trial",
)
"""All read their options by `real.command_line`"""


def as_typed(module: str) -> str:
    return f"python -m {module.removesuffix('.__main__')}"


def options_of(module: str):
    made = importlib.import_module(module)
    return next(getattr(made, n) for n in ("Settings", "Options", "Command") if n in vars(made))


BAD = {
    "--nonsense": "",  # a positional that is missing may be named instead
    "--seed x": "",  # not all have one: then it is an unknown option
    "--json ": "--json must name something, got an empty text; leave it out",
    "--json=": "--json must name something, got an empty text; leave it out",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.parametrize("module", MAINS)
def test_a_bad_option_is_one_line_and_exit_code_2(
    module: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(options: object) -> int:
        raise AssertionError("it ran")

    assert start(options_of(module), as_typed(module), never, arguments=line.split(" ")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lagfloor: ")
    assert said.err.count("\n") == 1
    assert BAD[line] in said.err
    assert not set("╭│╰─") & set(said.err)
    assert "----" not in said.err


@pytest.mark.parametrize("module", [m for m in MAINS if "__main__" in m or m.startswith("real.")])
def test_each_main_of_the_real_engine_refuses_by_itself(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert importlib.import_module(module).main(["--nonsense", "1"]) == 2
    said = capsys.readouterr().err
    # where something positional is missing, tyro tells that first
    assert re.match("lagfloor: (Unrecognized options: --nonsense, 1|Missing value for argument '.*); ", said)
    assert said.endswith(f"see {as_typed(module)} --help\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("module", ["validation.report.invisible", "validation.long_responses"])
def test_a_study_refuses_in_one_line_too(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--nonsense", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("lagfloor: ")
    assert done.stderr.count("\n") == 1


def test_settings_a_main_refuses_by_their_value_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from real.fullsize import __main__ as fullsize
    from real.fullsize import smoke

    for main, line, words in (
        (fullsize.main, "--plan --environment.top-k 0", "top_k"),
        (fullsize.main, "--plan --environment.precision nonsense", "precision"),
        (fullsize.main, "--plan --steps 0", "steps must be >= 1, got 0"),
        (smoke.main, "--model nonsense", "unknown model 'nonsense'; known: Qwen/Qwen3-0.6B"),
        (smoke.main, "--correction nonsense", "unknown correction 'nonsense'"),
    ):
        assert main(line.split()) == 2, line
        said = capsys.readouterr().err
        assert words in said
        assert said.startswith("lagfloor: ")
        assert said.count("\n") == 1, said


def test_what_the_two_small_mains_refuse_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from real.hooks import prime_rl
    from real.verl import task

    (tmp_path / "file").touch()
    file, out = str(tmp_path / "file"), tmp_path / "trace.jsonl"
    for main, line, code, words in (
        (prime_rl.main, [], 2, "Missing from python -m real.hooks.prime_rl: EXPORTS"),
        (prime_rl.main, [file, str(out), "more"], 2, "Unrecognized options: more; see"),
        (prime_rl.main, [file, str(out)], 2, "found none in .*; set trainer.enable_token_export"),
        (task.main, [], 2, "Missing from python -m real.verl.task: PATH"),
        (task.main, ["", "more"], 2, "an argument must name something, got an empty text; leave it out"),
        (task.main, [file], 1, "got 'file exists'; see what holds it, or name another place"),
    ):
        assert main(line) == code, line
        said = capsys.readouterr()
        assert said.out == ""
        assert re.search(words, said.err), said.err
        assert said.err.startswith("lagfloor: ")
        assert said.err.count("\n") == 1, said.err
    assert not out.exists()


def test_verls_task_loads_by_its_path_under_no_name() -> None:
    """So verl loads a reward function: the module never gets into `sys.modules`."""
    from real.verl import task

    spec = importlib.util.spec_from_file_location("custom_module_1", task.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    truth = {"numbers": [1, 2, 3], "target": 9}
    assert module.compute_score(task.SOURCE, "<answer>(1+2)*3</answer>", truth) == 1.0


def test_an_interrupted_full_size_run_is_a_line_that_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from real.fullsize import __main__ as fullsize
    from real.fullsize import loop

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "run", interrupted)
    assert fullsize.main([]) == 130
    assert "lagfloor: interrupted; nothing was written; with --checkpoint" in capsys.readouterr().err
    assert fullsize.main(["--checkpoint", str(tmp_path / "kept")]) == 130
    said = capsys.readouterr().err
    assert f"lagfloor: interrupted; {tmp_path / 'kept'} keeps the run" in said
    assert said.count("\n") == 2  # the first ends the line of the ^C


def test_a_signal_ends_a_running_main_with_130_and_no_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "real.warmstart",
        "--steps",
        "2000",
        "--out",
        str(tmp_path / "x.safetensors"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0)
    state = tmp_path / "x.safetensors.state"
    until = time.monotonic() + 120
    while not state.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert said.strip().startswith("lagfloor: interrupted; ")


@pytest.mark.parametrize("line", ["--help", "audit --help", "--version", "check theory --only split"])
def test_a_command_without_an_output_works_all_the_same(line: str) -> None:
    shell = f"{sys.executable} -m validation {line} >&-"
    done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["validation", "real.fp8.strength", "validation.monitor_trial"])
def test_a_full_disk_is_one_line_and_not_python_s_last_words(module: str) -> None:
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=buffered,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("lagfloor: ")
    assert done.stderr.count("\n") == 1


def test_what_was_printed_before_a_file_failed_is_not_lost() -> None:
    code = (
        "import sys; from real.command_line import guarded; "
        "sys.exit(guarded(lambda: print('results of minutes') or open('/no/such/file')))"
    )
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=buffered, check=False
    )
    assert (done.returncode, done.stdout) == (1, "results of minutes\n")
    assert done.stderr.startswith("lagfloor: /no/such/file")
