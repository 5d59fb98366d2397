"""Trackers get each measured number, are closed on errors, and are refused by name where they are absent."""

from __future__ import annotations

import math
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from real import trackers
from real.trackers import TRACKERS, present, tracked
from theory.records import StepRecord

STEPS = [
    StepRecord(step=1, measures={"ess_token": 0.9, "reward": -0.5, "k_hat": math.nan, "lag_rms": math.inf}),
    StepRecord(step=2, measures={"ess_token": 0.4, "reward": -0.25}),
]


def run(names: list[str], folder: Path) -> None:
    with tracked(names, project="lagfloor", run="one", settings={"lr": 0.1}, folder=folder) as on_step:
        for record in STEPS:
            on_step(record)


@pytest.mark.filterwarnings("ignore")  # tensorboard's protobuf
def test_tensorboard_reads_back_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed here")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(["tensorboard"], tmp_path)
    events = EventAccumulator(str(tmp_path / "lagfloor" / "one"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["lag/ess_token", "lag/reward"]
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("lag/ess_token")] == [(1, 0.9), (2, 0.4)]


@pytest.mark.filterwarnings("ignore")  # wandb's own dependencies
def test_wandb_takes_a_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed here")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(["wandb"], tmp_path)
    (stored,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = b""
    for _ in range(100):  # its service writes the file on its own time
        content = stored.read_bytes()
        if b"lag/ess_token" in content:
            break
        time.sleep(0.1)
    assert b"lag/ess_token" in content
    assert b"lag/k_hat" not in content, "not measured is not sent"


@pytest.mark.filterwarnings("ignore")  # trackio's own dependencies
def test_trackio_keeps_the_run_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="trackio is not installed here")
    # trackio reads its folder when it is imported, which another library may have done in this process
    alone = get_context("spawn").Process(target=run, args=(["trackio"], tmp_path))
    alone.start()
    alone.join()
    assert alone.exitcode == 0
    stored = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    assert b"lag/ess_token" in stored


def test_several_trackers_get_the_same_numbers_and_all_are_closed_on_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, list[Any]] = {"a": [], "b": []}

    def opener(name: str) -> Any:
        opened = trackers._Open(
            lambda values, step: got[name].append((step, dict(values))), lambda: got[name].append("closed")
        )
        return trackers._Tracker("math", lambda project, run, settings, folder: opened)

    monkeypatch.setattr(trackers, "TRACKERS", {"a": opener("a"), "b": opener("b")})

    def dying_loop() -> None:
        with tracked(["a", "b", "a"], project="p", run="r", folder=tmp_path) as on_step:
            on_step(STEPS[0])
            raise RuntimeError("the loop died")

    with pytest.raises(RuntimeError, match="died"):
        dying_loop()
    assert got["a"] == got["b"] == [(1, {"lag/ess_token": 0.9, "lag/reward": -0.5}), "closed"]


def test_no_tracker_is_fine_and_a_wrong_one_is_refused_by_name(tmp_path: Path) -> None:
    run([], tmp_path)
    with pytest.raises(ValueError, match="known: tensorboard, wandb, trackio"):
        run(["mlflow"], tmp_path)
    with pytest.raises(ValueError, match=r"a list of names, got the text 'wandb'; write \['wandb'\]"):
        run("wandb", tmp_path)  # pyright: ignore[reportArgumentType]
    for absent in set(TRACKERS) - set(present()):
        with pytest.raises(ValueError, match=f"pip install {absent}"):
            run([absent], tmp_path)


def test_settings_that_cannot_be_kept_are_refused_before_a_tracker_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    fake = trackers._Tracker("math", lambda *settings: opened.append(settings))  # type: ignore[arg-type]
    monkeypatch.setattr(trackers, "TRACKERS", {"a": fake})
    endless: dict[str, Any] = {}
    endless["again"] = endless
    for settings in ({"folder": tmp_path}, endless):
        with (
            pytest.raises(ValueError, match="settings of a tracker are plain values, got"),
            tracked(["a"], project="p", run="r", settings=settings, folder=tmp_path),
        ):
            pass
    assert opened == []
