"""Which files an audit reads: each once, whatever names lead to it; and what --align leaves of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from audit_files import canonical
from audit_logs import build, engine

from validation.audit.command import main
from validation.audit.discovery import discover
from validation.audit.options import Options
from validation.audit.run import audit

LENGTH = 5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    made = build(np.random.default_rng(1), engine(0.042), rows=64, length=LENGTH, vocab=50)
    return canonical(made, folder / "log.jsonl")


def names(log: Path, how: str) -> list[str]:
    link = log.parent.parent / "link.jsonl"
    link.symlink_to(log)
    beside = log.with_name("a_link.jsonl")
    match how:
        case "twice":
            return [str(log), str(log)]
        case "a folder and a file in it":
            return [str(log.parent), str(log)]
        case "a file and its folder":
            return [str(log), str(log.parent)]
        case "a file and a link to it":
            return [str(log), str(link)]
        case "a link and the folder":
            return [str(link), str(log.parent)]
        case "another spelling":
            return [str(log), str(log.parent / ".." / log.parent.name / log.name)]
        case _:
            beside.symlink_to(log)
            return [str(log.parent)]


@pytest.mark.parametrize(
    "how",
    [
        "twice",
        "a folder and a file in it",
        "a file and its folder",
        "a file and a link to it",
        "a link and the folder",
        "another spelling",
        "a folder with a link in it",
    ],
)
def test_a_file_counts_once_and_is_said_to(log: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = names(log, how)
    said = audit(paths)
    assert said.numbers == audit([str(log)]).numbers
    assert [i.rows for i in said.inputs] == [64]
    (line,) = [line for line in said.cannot_know if "counts once" in line]
    assert line.startswith("1 name leads to a file that is read already (")
    assert main(paths) == 0
    assert "counts once" in " ".join(capsys.readouterr().out.split())


def test_files_of_the_same_content_count_each_and_nothing_is_said(log: Path) -> None:
    log.with_name("other.jsonl").write_bytes(log.read_bytes())
    said = audit([str(log.parent)])
    assert [i.rows for i in said.inputs] == [64, 64]
    assert "counts once" not in str(said.cannot_know)


def test_a_file_named_after_its_folder_is_still_one_that_was_named(log: Path) -> None:
    link = log.parent.parent / "link.jsonl"
    link.symlink_to(log)
    log.with_name("other.jsonl").write_text("{}\n")
    found = discover([str(log.parent), str(link), str(log)])
    assert found.files == [log, log.with_name("other.jsonl")]
    assert found.named == {log}
    assert found.again == [link, log]
    assert found.size == log.stat().st_size + 3


@pytest.mark.parametrize("by", [LENGTH, LENGTH + 3, -LENGTH])
def test_a_shift_that_leaves_nothing_is_named_and_not_called_a_log_without_log_probs(
    log: Path, by: int
) -> None:
    said = audit([str(log)], options=Options(align=by))
    assert said.numbers["counts"]["tokens_compared"] == 0
    (line,) = [line for line in said.cannot_know if "--align" in line]
    assert line.startswith(f"--align {by} moved the engine's log-probs out of all 64 responses")
    assert "not logged: no mismatch" not in str(said.cannot_know)
    assert "trainer's log-probs were not logged" not in str(said.cannot_know)


@pytest.mark.parametrize("by", [0, 1, 1 - LENGTH])
def test_a_shift_that_leaves_some_is_not_spoken_of(log: Path, by: int) -> None:
    assert "--align" not in str(audit([str(log)], options=Options(align=by)).cannot_know)


def test_a_log_that_is_masked_whole_is_not_laid_on_the_shift(tmp_path: Path) -> None:
    made = build(np.random.default_rng(1), engine(0.042), rows=64, length=LENGTH, vocab=50)
    made.mask[:] = 0
    path = canonical(made, tmp_path / "log.jsonl")
    assert "--align" not in str(audit([str(path)], options=Options(align=1)).cannot_know)


def test_a_column_that_is_not_there_is_still_said_to_be_missing(tmp_path: Path) -> None:
    made = build(np.random.default_rng(1), engine(0.042), rows=64, length=LENGTH, vocab=50)
    made.pi_s = None
    said = audit([str(canonical(made, tmp_path / "log.jsonl"))]).cannot_know
    assert [line for line in said if line.startswith("the trainer's log-probs were not logged")]
