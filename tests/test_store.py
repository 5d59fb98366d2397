"""The store: what is read back is what was written, whole, or it is refused in one line."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from theory.corrections import correction
from theory.experiment import Experiment
from theory.records import Provenance, Trace
from validation.atomic import write_file, write_json
from validation.derived import derived
from validation.manifest import STATUS, CorruptRun
from validation.store import LOCK, RunBusy, Store, load

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Nothing:
    """An environment without settings."""


def experiment(seed=0):
    return Experiment(environment=Nothing(), correction=correction("dlc"), lr=1.0, steps=3, seed=seed)


def trace(seed=0, steps=3):
    n = np.arange(1, steps + 1)
    return Trace(
        steps={"step": n, "ess_token": 1 / (n + seed), "accuracy": np.where(n == steps, 0.5, np.nan)},
        tokens={"step": np.repeat(n, 2), "logmu": np.linspace(-3, -1, 2 * steps)},
        sequences={"step": n, "finish_reason": np.full(steps, "stop")},
        provenance={"accuracy": Provenance(kind="approximated", how="512 draws")},
    )


def same(a, b):
    for table in ("steps", "tokens", "sequences"):
        first, second = getattr(a, table), getattr(b, table)
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])
    assert dict(a.provenance) == dict(b.provenance)


def put(store, seed=0, traces=None):
    with store.write("toy", experiment(seed)) as writer:
        writer.attach("weights.bin", lambda path: path.write_bytes(bytes(range(256))))
        return writer.finish(traces or [trace(seed)], notes={"stopped": None, "nan": float("nan")})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def test_a_run_comes_back_as_it_was(store):
    stored = put(store)
    again = store.find("toy", experiment())
    assert again is not None
    same(again.traces[0], trace())
    assert again.settings["experiment"] == experiment().to_dict()
    assert again.notes == {"stopped": None, "nan": None}
    assert again.files["weights.bin"].read_bytes() == bytes(range(256))
    assert again.digest == stored.digest


def test_an_ensemble_keeps_its_traces_apart(store):
    with store.write("toy", experiment(), seeds=2) as writer:
        writer.finish([trace(0), trace(1)])
    found = store.find("toy", experiment(), seeds=2)
    assert found is not None
    for seed in (0, 1):
        same(found.traces[seed], trace(seed))
    assert store.find("toy", experiment()) is None


def test_runs_are_found_by_all_their_settings(store):
    put(store)
    assert store.find("toy", experiment(seed=1)) is None
    assert store.find("real", experiment()) is None


def test_a_run_of_other_code_is_not_reused(store, monkeypatch):
    put(store)
    monkeypatch.setattr("validation.store.code_digest", lambda engine: "changed")
    assert store.find("toy", experiment()) is None
    put(store)
    assert store.find("toy", experiment()) is not None


def test_an_unfinished_run_keeps_the_engines_state_and_nothing_else(store):
    given_up = store.write("toy", experiment())
    with given_up as writer:
        writer.state.mkdir()
        (writer.state / "step-1").write_text("1")
        writer.attach("half.bin", lambda path: path.write_bytes(b"half"))
    assert store.find("toy", experiment()) is None
    with store.write("toy", experiment()) as writer:
        assert (writer.state / "step-1").read_text() == "1"
        assert not (writer.folder / "half.bin").exists()
        writer.finish([trace()])
        assert not writer.state.exists()


def test_two_writers_do_not_meet(store):
    with store.write("toy", experiment()), pytest.raises(RunBusy, match="another process"):
        store.write("toy", experiment()).__enter__()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def changed(folder, change):
    """A manifest damaged by hand: JSON still, and not what the store writes."""
    status = json.loads((folder / STATUS).read_text())
    (folder / STATUS).write_text(json.dumps(status | change))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: cut(f / "steps.parquet"), "steps.parquet has "),
        (lambda f: flip(f / "tokens.parquet"), "tokens.parquet has been changed"),
        (lambda f: (f / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda f: cut(f / "settings.json"), "settings.json has "),
        (lambda f: (f / STATUS).write_text("{"), "status.json is not JSON"),
        (lambda f: (f / STATUS).write_bytes(b"\xff\xfe"), "status.json is not JSON"),
        (lambda f: (f / STATUS).write_text("[]"), "status.json is not of format 1"),
        (lambda f: (f / STATUS).write_text('{"format": 1}'), "status.json lacks "),
        *(
            (lambda f, change=change: changed(f, change), "status.json ")
            for change in (
                {"files": []},
                {"files": {}},
                {"files": {"steps.parquet": None}},
                {"provenance": 5},
                {"provenance": {"k_hat": "x"}},
                {"seconds": "x"},
                {"seconds": None},
                {"notes": None},
                {"state": "over"},
                {"state": None},
                {"code": 3},
            )
        ),
    ],
)
def test_a_corrupt_folder_is_named_with_what_to_do(store, spoil, words):
    folder = put(store).folder
    spoil(folder)
    with pytest.raises(CorruptRun) as caught:
        store.find("toy", experiment())
    text = str(caught.value)
    assert str(folder) in text
    assert words in text
    assert "delete the folder and run again" in text
    assert "\n" not in text


def test_writing_anew_repairs_a_folder_whose_status_is_broken(store):
    folder = put(store).folder
    (folder / STATUS).write_text("{")
    put(store)
    assert store.find("toy", experiment()) is not None


def test_a_folder_without_a_finished_run_cannot_be_loaded(tmp_path):
    with pytest.raises(CorruptRun, match="holds no status"):
        load(tmp_path)


def test_a_failing_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def broken(temporary):
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_file(path, broken)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_null_for_what_it_cannot_hold(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [float("nan"), float("inf"), 1.5], "b": {"c": (-float("inf"),)}})
    assert json.loads(path.read_text()) == {"a": [None, None, 1.5], "b": {"c": [None]}}


def test_derived_numbers_are_computed_once_per_input(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"kl": np.array([0.1, 0.2])}

    for inputs in (("a",), ("a",), ("b",)):
        np.testing.assert_array_equal(derived(tmp_path, "kl", *inputs, compute=compute)["kl"], [0.1, 0.2])
    assert len(calls) == 2
    broken = next((tmp_path / "derived").glob("*.parquet"))
    cut(broken)
    with pytest.raises(ValueError, match="delete it"):
        [derived(tmp_path, "kl", name, compute=compute) for name in ("a", "b")]


WRITER = """
import sys
import numpy as np
sys.path[:0] = ["tests", "."]
from test_store import Store, experiment, put, trace
store = Store(__import__("pathlib").Path(sys.argv[1]))
print("ready", flush=True)
for seed in range(10_000):
    put(store, seed % 7, [trace(seed % 7, steps=200)])
"""


def test_a_writer_killed_at_any_moment_leaves_whole_runs_or_none(tmp_path):
    """SIGKILL at random moments: every run that is found is whole, every other can be written again."""
    store = Store(tmp_path)
    seed = int(os.environ.get("LAGFLOOR_TEST_SEED", "0"))
    moments = random.Random(seed)
    print(f"seed {seed}")
    whole = 0
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.05, 0.6))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        for run in range(7):
            found = store.find("toy", experiment(run))
            if found is not None:
                same(found.traces[0], trace(run, steps=200))
                whole += 1
    assert whole > 0
    for run in range(7):
        put(store, run)
        folder = store.folder("toy", experiment(run))
        names = {p.name for p in folder.iterdir()}
        assert names == {LOCK, STATUS, "settings.json", "weights.bin"} | {
            f"{t}.parquet" for t in ("steps", "tokens", "sequences")
        }
