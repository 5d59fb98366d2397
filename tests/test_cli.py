"""The command line: help is fast and light, a mistake is one line, exit codes mean what they say."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from validation import cli
from validation.claims import CLAIMS
from validation.commands.run import Options, experiment_of
from validation.store import Store

ROOT = Path(__file__).resolve().parent.parent


def command(*arguments):
    return [sys.executable, "-m", "validation", *map(str, arguments)]


def run(*arguments, **environment):
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def one_line(done, code, *words):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_help_lists_the_subcommands_and_loads_no_engine():
    code = (
        "import sys, validation.cli as c; c.main(['--help']); "
        "print(sorted({'jax', 'torch', 'vllm', 'matplotlib', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.rstrip().endswith("[]")
    for name in cli.SUBCOMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", ["check", "run", "report"])
def test_help_of_a_subcommand_loads_no_engine(name):
    code = f"""
import sys, validation.cli as c
try:
    c.main(['{name}', '--help'])
finally:
    print(sorted({{'jax', 'torch', 'vllm', 'transformers'}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("[]")


BAD = [
    (["chekc"], "unknown subcommand 'chekc'; known: check, run, report"),
    (["check"], "toy,real,theory"),
    (["check", "moon"], "'moon'"),
    (["check", "toy", "--sed", "3"], "perhaps you meant --seed"),
    (["check", "toy", "--seed", "three"], "lagfloor: cannot read --seed: invalid literal"),
    (["check", "toy", "--seed", "-1"], "seed must be >= 0, got -1"),
    (["check", "toy", "--only", "splitt"], f"unknown claim 'splitt'; known: {', '.join(CLAIMS)}"),
    (["check", "real", "--only", "rank"], "has no check here yet"),
    (["phase", "--seed", "-1"], "seed must be >= 0, got -1"),
    (["check", "toy", "--json", "/"], "--json must name a file that can be written, got / (it is a folder)"),
    (["check", "toy", "--json", "/proc/no/where.json"], "--json must name a file that can be written"),
    (["check", "real", "--model", "/no/model"], "'/no/model'"),
    (["run", "toy", "--correction", "dcl"], "unknown correction 'dcl'; known: "),
    (["run", "toy", "--sync-every", "0"], "sync_every must be >= 1, got 0"),
    (["run", "toy", "--lr", "-1"], "lr must be finite and >= 0, got -1.0"),
    (["run", "toy", "--resync-below", "2"], "resync_below is an ESS share in [0, 1], got 2.0"),
    (["run", "toy", "--numerics", "fp8"], "got 'fp8'"),
    (["run", "toy", "--correction", "is", "--ppo-ref", "synced"], "ppo_ref belongs to the correction 'ppo'"),
    (["run", "real", "--model", "/no/model"], "'/no/model'"),
    (["run", "toy", "--numerics", "gaussian"], "'gaussian' is noise of a size, got --scale 0"),
    (["run", "toy", "--minibatches", "3"], "got 128 samples in 3; choose a divisor"),
    (["run", "real", "--minibatches", "65"], "minibatches must be <= prompts (64), got 65"),
    (["report", "--runs", "/no/runs"], "check toy"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_usage_is_one_line_and_exit_code_2(arguments, words, tmp_path):
    if arguments[0] in ("check", "run") and len(arguments) > 2:
        arguments = [*arguments, "--runs", str(tmp_path / "runs")]
    one_line(run(*arguments), 2, "lagfloor: ", words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_json_path_without_permission_is_refused_before_any_run(tmp_path):
    tmp_path.chmod(0o500)
    one_line(run("check", "toy", "--json", tmp_path / "a.json"), 2, "permission denied")


def test_a_corrupt_run_folder_is_one_line_and_exit_code_1(tmp_path):
    options = Options(engine="toy", correction="dlc")
    folder = Store(tmp_path).folder("toy", experiment_of(options))
    folder.mkdir(parents=True)
    (folder / "status.json").write_text("{ not json")
    done = run("run", "toy", "--correction", "dlc", "--runs", tmp_path)
    one_line(done, 1, str(folder), "status.json is not JSON", "delete the folder and run again")


def test_a_missing_vllm_is_one_line_and_exit_code_1(tmp_path):
    (tmp_path / "vllm.py").write_text("raise ImportError('no such engine')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("run", "real", "--steps", 1, "--runs", tmp_path / "runs", PYTHONPATH=path)
    one_line(done, 1, "needs the package vllm", "sampler='torch'")


def test_the_closed_forms_are_checked_and_written_as_json(tmp_path):
    path = tmp_path / "new" / "theory.json"
    done = run("check", "theory", "--json", path, "--runs", tmp_path / "runs", "--only", "split,dlc")
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert list(document) == ["engine", "seed", "seconds", "checks"]
    assert {row["claim"] for row in document["checks"]} == {"split", "dlc"}
    assert {row["verdict"] for row in document["checks"]} == {"holds"}
    assert {row["control"]["verdict"] for row in document["checks"]} == {"fails"}


def test_an_interrupt_says_what_is_kept(monkeypatch, capsys):
    class Interrupted:
        class Options:
            pass

        @staticmethod
        def main(options):
            raise KeyboardInterrupt("runs/ keeps everything")

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Interrupted)
    monkeypatch.setattr(cli, "parse", lambda *arguments, about: None)
    assert cli.main(["report"]) == 130
    said = capsys.readouterr().err
    assert "interrupted; runs/ keeps everything" in said


def wait_for(path, pattern, count, process):
    """Until a running command has left so many files."""
    for _ in range(1200):
        if len(list(path.glob(pattern))) >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    pytest.fail(f"{count} files {pattern} did not appear in {path}")


@pytest.mark.slow
def test_a_run_killed_and_interrupted_ends_as_if_it_had_not_been(tmp_path):
    """SIGKILL, then Ctrl-C, then to the end: the trace is that of an undisturbed run, bit for bit."""
    flags = {"steps": 80, "samples": 2, "sync_every": 64, "correction": "dlc", "seed": 5}
    words = [w for name, value in flags.items() for w in (f"--{name.replace('_', '-')}", value)]
    arguments = ["run", "real", "--sampler", "torch", *words, "--runs"]
    experiment = experiment_of(Options(engine="real", sampler="torch", **flags))
    state = Store(tmp_path / "disturbed").folder("real", experiment) / "state"

    # a test run started in the background ignores Ctrl-C, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, steps in ((signal.SIGKILL, 2), (signal.SIGINT, 5)):
        process = subprocess.Popen(
            command(*arguments, tmp_path / "disturbed"), cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        wait_for(state, "step-*.safetensors", steps, process)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert said.strip().startswith("lagfloor: interrupted; ")
            assert "the same command goes on from there" in said
            assert said.strip().count("\n") == 0

    for where in ("disturbed", "whole"):
        done = run(*arguments, tmp_path / where)
        assert done.returncode == 0, done.stderr
        assert "80 steps" in done.stdout
    found = [Store(tmp_path / where).find("real", experiment) for where in ("disturbed", "whole")]
    first, second = (run.traces[0] for run in found if run is not None)
    for table in ("tokens", "sequences", "steps"):
        a, b = getattr(first, table), getattr(second, table)
        assert a.keys() == b.keys()
        for name in a:
            if not name.startswith("seconds"):
                np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_cannot_show_a_curve_shows_the_numbers(tmp_path, encoding):
    trace = tmp_path / "trace.jsonl"
    line = {"step": 1, "response_ids": [1, 2], "mask": [1, 1], "logp_pi_s": [-1, -2], "logp_pi": [-1, -2]}
    trace.write_text(json.dumps(line) + "\n")
    done = run("watch", trace, "--once", PYTHONIOENCODING=encoding, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "ESS ?\n" in done.stdout
    assert "ESS token" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["--help"], ["watch", "--help"], ["--version"]])
def test_a_full_disk_behind_the_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "validation", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "free some space" in done.stderr


def test_a_seed_beyond_what_can_be_counted_is_refused(capsys):
    assert cli.main(["check", "toy", "--seed", "9" * 20]) == 2
    assert "seed must be at most 1000000" in capsys.readouterr().err
