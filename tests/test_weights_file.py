"""A file that is no model is refused from its head: before any run, with no torch, in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from real.model import load
from real.tasks import TASKS
from real.weights_file import check_weights
from validation.cli import main

TASK = TASKS["countdown"]
SHIPPED = TASK.checkpoint


def text(path: Path) -> None:
    path.write_text("no weights at all\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(SHIPPED.read_bytes()[:-100])


def another(path: Path) -> None:
    weights = load_file(SHIPPED)
    weights["model.norm.weight"] = np.zeros(3, dtype=np.float32)
    save_file(weights, path)


def other_task(path: Path) -> None:
    save_file(load_file(SHIPPED), path, metadata={"task": "search"})


def bare(path: Path) -> None:
    path.mkdir()


BAD = {
    text: "not a readable safetensors file",
    empty: "not a readable safetensors file",
    cut: "not a readable safetensors file",
    another: "holds another model: model.norm.weight should have shape (64,), got (3,)",
    other_task: "must hold a model of the task 'countdown', got one of 'search'",
    bare: "a checkpoint must be a safetensors file",
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["table --out runs", "run real --runs runs", "check real --runs runs"])
def test_a_file_that_is_no_model_is_refused_before_any_run(
    command: str,
    make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "bad")
    assert main([*command.split(), "--model", "bad"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lagfloor: ")
    assert said.err.count("\n") == 1
    assert BAD[make] in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["bad"]


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_the_loader_says_the_same(make, tmp_path: Path) -> None:
    make(tmp_path / "bad")
    with pytest.raises(ValueError, match=re.escape(BAD[make])) as at_once:
        check_weights(str(tmp_path / "bad"), TASK)
    with pytest.raises(ValueError, match=re.escape(str(at_once.value))):
        load(tmp_path / "bad", task=TASK)


def test_good_files_pass_with_their_folder_and_with_the_tied_head_in_them(tmp_path: Path) -> None:
    weights = load_file(SHIPPED)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    save_file(weights, tmp_path / "model.safetensors")
    for name in ("mini", str(SHIPPED), str(tmp_path)):
        check_weights(name, TASK)
    load(tmp_path)


def test_asking_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from real.tasks import TASKS; from real.weights_file import check_weights; "
        f"check_weights({str(SHIPPED)!r}, TASKS['countdown']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
