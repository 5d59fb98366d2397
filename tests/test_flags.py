"""Flags that would be ignored and places that cannot be written: refused in one line, before any run."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.cli import main


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Line on stderr of a command that must be refused."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("lagfloor: ")
    return said.err


LEFT_OUT = "leave it out"
FLAGS: dict[str, tuple[str, ...]] = {
    "table --preset mini --response-tokens 8": ("--response-tokens", "preset 'mini'", LEFT_OUT),
    "table --preset mini --prompt-tokens 8": ("--prompt-tokens", "preset 'mini'", LEFT_OUT),
    "table --preset mini --precision fp32": ("--precision", "preset 'mini'", LEFT_OUT),
    "table --preset mini --precision bf16": ("--precision", "preset 'mini'", LEFT_OUT),
    "table --preset 0.6b --lr .1 --point B": ("--point", "preset '0.6b'", LEFT_OUT),
    "table --preset 0.6b --plan --point A": ("--point", "preset '0.6b'", LEFT_OUT),
    "table --preset 1.7b --plan --engine torch": ("--engine", "preset '1.7b'", LEFT_OUT),
    "table --preset 1.7b --plan --jobs 2": ("--jobs", "preset '1.7b'", LEFT_OUT),
    "table --preset 1.7b --plan --backend dask": ("--backend", "preset '1.7b'", LEFT_OUT),
    "table --samplers ,": ("--samplers", "names separated by commas", "','", LEFT_OUT),
    "table --corrections ,,": ("--corrections", "names separated by commas", "',,'", LEFT_OUT),
    "table --seeds ,": ("--seeds", "separated by commas", "','", LEFT_OUT),
    "table --samplers reference,reference": ("--samplers", "'reference' again", "name it once"),
    "table --corrections pg,sc,pg": ("--corrections", "'pg' again", "name it once"),
    "run toy --model mini": ("--model", "toy engine", LEFT_OUT),
    "run toy --sampler vllm": ("--sampler", "toy engine", LEFT_OUT),
    "run real --environment 1": ("--environment", "real engine", LEFT_OUT),
    "run real --environment 0": ("--environment", "real engine", LEFT_OUT),
    "run real --quantile .9": ("--quantile", "real engine", LEFT_OUT),
    "run toy --scale 1": ("--scale", "numerics 'exact'", "got 1.0", LEFT_OUT),
    "run real --numerics fp8 --scale .1": ("--scale", "numerics 'fp8'", LEFT_OUT),
    "run toy --resync-level token": ("--resync-level", "never resyncs", "--resync-below", LEFT_OUT),
    "run toy --correction dlc --resync-below 0 --resync-level sequence": ("never resyncs", "'sequence'"),
    "check theory --only ,": ("--only", "names separated by commas", "','", LEFT_OUT),
    "check toy --only ,,": ("--only", "names separated by commas", "',,'", LEFT_OUT),
    "check real --only=": ("--only", "got an empty text", LEFT_OUT),
    "run toy --environment -1": ("environment must be >= 0", "got -1", "any number from 0 up"),
    "check theory --seed -1": ("seed must be >= 0", "got -1", "any whole number from 0 up"),
    "check toy --seed -1": ("seed must be >= 0", "got -1", "any whole number from 0 up"),
    "check real --workers -1": ("workers must be >= 1", "got -1", LEFT_OUT),
    "check real --workers 0": ("workers must be >= 1", "got 0", LEFT_OUT),
    "check toy --sampler torch": ("--sampler", "'toy'", LEFT_OUT),
    "check toy --model mini": ("--model", "'toy'", LEFT_OUT),
    "check theory --workers 1": ("--workers", "'theory'", LEFT_OUT),
    "check theory --fresh": ("--fresh", "closed forms store no run", LEFT_OUT),
}


@pytest.mark.parametrize("line", FLAGS)
def test_a_flag_that_would_be_ignored_is_refused_with_what_to_do(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(line.split(), capsys)
    for words in FLAGS[line]:
        assert words in said
    assert not list(tmp_path.iterdir())  # nothing was begun


JSON = ("check theory --json", "check toy --json", "table --json")


@pytest.mark.parametrize("line", JSON)
def test_json_must_name_a_file_that_can_be_written(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    places = {
        "/dev/full": "it is no regular file",
        "file/table.json": "not a directory",
        "folder": "it is a folder",
    }
    for place, why in places.items():
        said = refused([*line.split(), place], capsys)
        assert f"--json must name a file that can be written, got {place} (" in said
        assert why in said or "file exists" in said
    assert (tmp_path / "file").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}
    assert not list((tmp_path / "folder").iterdir())


FOLDERS = {
    "table --out": "--out",
    "table --preset 0.6b --plan --out": "--out",
    "run toy --runs": "--runs",
    "run real --runs": "--runs",
    "check theory --runs": "--runs",
    "check toy --runs": "--runs",
    "report --runs": "--runs",
    "phase --runs": "--runs",
    "phase --out": "--out",
}


@pytest.mark.parametrize("line", FOLDERS)
def test_a_folder_that_is_a_file_or_lies_below_one_is_refused(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    places = {
        file: f"{file} is a file",
        file / "below" / "it": f"{file} is a file",
        link: "is a link to nothing",
    }
    for place, why in places.items():
        said = refused([*line.split(), str(place)], capsys)
        assert f"{FOLDERS[line]} must name a folder, got {place}, and " in said
        assert f"{why}; name another" in said
    assert file.read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link"}


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(["phase", "--out", "/proc/nowhere"], capsys)
    assert "--out must name a folder that can be made, got /proc/nowhere (" in said


def test_a_report_below_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert "--out's folder must name a folder" in refused(["report", "--out", "file/index.html"], capsys)
