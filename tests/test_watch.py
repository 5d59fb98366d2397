"""Watching a run: steps as they are committed or appended, verdicts that match the core, nothing twice."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from rich.console import Console
from rich.text import Text

from theory.corrections import correction
from theory.experiment import Experiment
from theory.forecast import forecast
from theory.records import StepRecord, Trace
from theory.token_measures import token_measures
from validation.audit.readers.base import Source
from validation.commands import watch as command
from validation.errors import BadUsage, CannotRun
from validation.store import Store
from validation.watch import Progress, RunFolder, TraceFiles, source_of
from validation.watch import response as reading


def response(step: int, rng: np.random.Generator, *, spread: float, version: int = 0, **changes: Any) -> dict:
    n = int(rng.integers(3, 9))
    pi_s = rng.normal(-6.0, 0.5, n)
    return {
        "step": step,
        "response_ids": list(range(n)),
        "mask": [1] * n,
        "logp_mu": (pi_s + rng.normal(0, 0.01, n)).tolist(),
        "logp_pi_s": pi_s.tolist(),
        "logp_pi": (pi_s + rng.normal(-0.5 * spread**2, spread, n)).tolist(),
        "reward": 1.0 if step % 2 else -1.0,
        "version": version,
        **changes,
    }


def write(file: Path, lines: list[dict]) -> None:
    with file.open("ab") as opened:
        opened.writelines(orjson.dumps(line) + b"\n" for line in lines)


def measures_of(lines: list[dict]) -> dict[str, float]:
    source = Source(Path("trace.jsonl"))
    return reading.measures_of([reading.response_of(line, source, n) for n, line in enumerate(lines, 1)])


def test_the_measures_of_a_step_are_the_cores(rng: np.random.Generator) -> None:
    lines = [response(3, rng, spread=0.6) for _ in range(40)]
    got = measures_of(lines)
    width = max(len(x["mask"]) for x in lines)

    def padded(name: str) -> np.ndarray:
        return np.array([x[name] + [0.0] * (width - len(x[name])) for x in lines])

    mask = padded("mask") > 0
    wanted = token_measures(padded("logp_mu"), padded("logp_pi_s"), padded("logp_pi"), mask=mask)
    assert got == pytest.approx(wanted | {"reward": 1.0})


def test_what_a_trace_lacks_is_absent_and_never_zero(rng: np.random.Generator) -> None:
    lines = [response(1, rng, spread=0.6) for _ in range(40)]
    whole = measures_of(lines)
    no_pi_s = measures_of([line | {"logp_pi_s": None} for line in lines])
    assert set(no_pi_s) == {"reward", "ess_total"}
    assert no_pi_s["ess_total"] == pytest.approx(whole["ess_total"])
    no_pi = measures_of([line | {"logp_pi": None} for line in lines])
    assert set(no_pi) == {"reward", "discrepancy_rms"}
    assert no_pi["discrepancy_rms"] == pytest.approx(whole["discrepancy_rms"])
    assert "discrepancy_rms" not in measures_of([line | {"logp_mu": None} for line in lines])
    assert measures_of([{"step": 1, "response_ids": [], "mask": []}]) == {}


def test_without_a_mask_every_response_token_counts_as_in_the_audit(rng: np.random.Generator) -> None:
    lines = [response(1, rng, spread=0.6) for _ in range(9)]
    assert measures_of([line | {"mask": None} for line in lines]) == measures_of(lines)


def test_an_infinite_log_prob_counts_and_a_missing_one_is_said(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    lines = [response(1, rng, spread=0.1) for _ in range(9)]
    tokens = sum(len(line["mask"]) for line in lines)
    lines[0]["logp_pi_s"][0] = -math.inf
    lines[1]["logp_pi_s"][:2] = [None, None]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    progress = TraceFiles([file]).poll()
    # the ratio of that token is infinite: it decides all the others
    assert progress.steps[0]["ess_token"] == pytest.approx(1 / (tokens - 2))
    assert progress.unread == ""
    assert progress.notes == (
        "2 response tokens have no number in a column of their step and do not count, the first at step 1",
    )


def test_a_growing_trace_is_read_once_and_its_last_step_anew(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    file = tmp_path / "trace.jsonl"
    first, second = ([response(s, rng, spread=0.2 * s) for _ in range(30)] for s in (1, 2))
    write(file, first + second[:10])
    source = TraceFiles([file])
    early = source.poll()
    assert [s["step"] for s in early.steps] == [1, 2]
    write(file, second[10:])
    with file.open("ab") as opened:
        opened.write(b'{"step": 3, "response_ids": [1')  # a line still being written
    late = source.poll()
    assert late.steps[0] == early.steps[0]
    assert late.steps[1] == measures_of(second) | {"step": 2.0}
    assert early.steps[1] != late.steps[1], "the control: half a step was another number"
    assert source.poll() == late, "nothing new, nothing changed"


def test_a_push_is_seen_from_the_versions(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "trace.jsonl"
    versions = [0, 0, 2, 2]
    for step, version in enumerate(versions, start=1):
        write(file, [response(step, rng, spread=0.1, version=version) for _ in range(5)])
    progress = TraceFiles([file]).poll()
    assert [bool(s.get("pushed")) for s in progress.steps] == [False, True, False, False]
    assert progress.lag().tolist() == [1, 2, 1, 2]


def test_of_a_step_with_several_versions_the_newest_says_what_was_pushed(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    file = tmp_path / "trace.jsonl"
    for step, versions in enumerate(([0], [0, 1, 0], [1, 0]), start=1):
        write(file, [response(step, rng, spread=0.1, version=version) for version in versions])
    steps = TraceFiles([file]).poll().steps
    assert [bool(s.get("pushed")) for s in steps] == [True, False, False]


def progress(*steps: dict[str, float]) -> Progress:
    numbered = tuple({"step": float(n), **step} for n, step in enumerate(steps, start=1))
    return Progress("a run", "growing", numbered, None)


def test_the_outlook_counts_from_the_last_push_and_needs_two_readings() -> None:
    ess = [0.95, 0.97, 0.93, 0.86]
    pushed = progress(
        {"ess_token": 0.9}, {"ess_token": 0.8, "pushed": 1.0}, *({"ess_token": share} for share in ess)
    )
    assert pushed.outlook() == forecast(ess)
    held = progress({"ess_token": 0.9, "pushed": 1.0}, {}, {"ess_token": 0.97}, {"ess_token": 0.93})
    assert held.outlook() == forecast([0.97, 0.93], lag=[2, 3])
    assert progress({}, {"ess_token": 0.9}).outlook() is None
    assert progress({"ess_token": 0.9}, {"ess_token": 0.4}).outlook() is None


def test_the_curve_and_the_table_mark_what_is_below_one_half_and_nothing_else() -> None:
    line = command.curve(progress(*({"ess_token": share} for share in (0.9, 0.5, 0.49, 0.1)), {}))
    assert isinstance(line, Text)
    assert [str(span.style) for span in line.spans] == ["green", "green", "red", "red", "dim"]
    for share, marked in ((0.5, False), (0.49, True)):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=True, width=200, color_system="standard")
        console.print(command.view(progress({"ess_token": share}), 5))
        assert (f"\x1b[1;31m{share:g}" in shown.getvalue()) == marked


def test_a_long_curve_shows_its_newest_steps() -> None:
    line = command.curve(progress(*[{"ess_token": 0.0}] * 10, *[{"ess_token": 1.0}] * command.BAR))
    assert isinstance(line, Text)
    assert line.plain == "ESS " + command.BLOCKS[-1] * command.BAR


def test_the_verdict_names_the_crossing_or_forecasts_it(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "trace.jsonl"
    for step in range(1, 6):
        write(file, [response(step, rng, spread=0.1 * step) for _ in range(400)])
    source = TraceFiles([file])
    calm = source.poll()
    assert math.isinf(calm.crossed)
    outlook = calm.outlook()
    assert outlook is not None
    # sigma grows by .1 a step: ESS is 1/2 where sigma^2 is ln 2, at step 8.3
    assert outlook.low <= 9 <= outlook.high
    assert "has not fallen" in command.verdict(calm)
    assert f"lag {outlook.step:.0f}" in command.verdict(calm)
    for step in range(6, 11):
        write(file, [response(step, rng, spread=0.1 * step) for _ in range(400)])
    late = source.poll()
    assert 8 <= late.crossed <= 10
    assert f"at step {late.crossed:.0f}" in command.verdict(late)


def test_a_trace_without_pi_s_is_told_so(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "trace.jsonl"
    write(file, [response(1, rng, spread=0.1, logp_pi_s=None) for _ in range(5)])
    assert "not measured" in command.verdict(TraceFiles([file]).poll())


def experiment() -> Experiment:
    from toy.settings import setting_s

    return setting_s(0, correction=correction("dlc"), steps=6)


def steps_of(count: int) -> dict[str, np.ndarray]:
    return {"step": np.arange(1, count + 1), "ess_token": np.linspace(0.9, 0.4, count)}


def test_a_finished_run_is_shown_whole_and_an_ensemble_as_its_mean(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one, other = steps_of(6), steps_of(6)
    other["ess_token"] = other["ess_token"] - 0.2
    with store.write("toy", experiment(), seeds=2) as writer:
        writer.finish([Trace(steps=one), Trace(steps=other)])
    source = source_of(writer.folder)
    progress = source.poll()
    assert source.poll() is progress, "what is done is read once"
    assert progress.state == "done"
    assert "mean of 2 seeds" in progress.title
    np.testing.assert_allclose(progress.series("ess_token"), one["ess_token"] - 0.1)
    assert progress.crossed == 5


def test_a_run_under_way_shows_the_steps_the_engine_has_committed(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("real.checkpoint")
    store = Store(tmp_path)
    with store.write("real", experiment()) as writer:
        source = source_of(writer.folder)
        assert isinstance(source, RunFolder)
        assert source.poll().steps == ()
        writer.state.mkdir()
        for step in (1, 2):
            record = StepRecord(
                step=step, measures={"ess_token": 1 - 0.3 * step, "resynced": float(step == 2)}
            )
            checkpoint.write_record(writer.state, record)
        progress = source.poll()
        assert (progress.state, progress.total) == ("running", 6)
        assert progress.series("ess_token").tolist() == pytest.approx([0.7, 0.4])
        assert progress.crossed == 2
        writer.finish([Trace(steps=steps_of(6))])
    assert source.poll().state == "done"


def show(path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    assert command.main(command.Options(run=path, once=True, **options)) == 0
    return capsys.readouterr().out


def test_the_view_has_a_curve_a_table_and_a_verdict(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    for step in range(1, 8):
        write(file, [response(step, rng, spread=0.25 * step, version=4 * (step > 4)) for _ in range(50)])
    text = show(file, capsys, rows=3)
    assert "step 7" in text
    assert "ESS" in text
    assert "first fell below 1/2" in text
    table = [line for line in text.splitlines() if line[:4].strip().isdigit()]
    assert [line[:4].strip() for line in table] == ["5", "6", "7"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1}\n', "no log-probs of a canonical trace"),
        (b"not json\n", "got no JSON; `lagfloor audit` reads other formats"),
        (b"[1]\n", "a JSON object, got a list"),
    ],
)
def test_a_file_of_another_format_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    with pytest.raises(CannotRun, match=said):
        command.main(command.Options(run=file, once=True))


def test_a_place_with_nothing_to_watch_is_bad_usage(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadUsage, match="watch needs"):
            command.main(command.Options(run=path))


@pytest.mark.parametrize("every", [0.0, -1.0, math.nan, math.inf, 1e10])
def test_a_wait_that_is_none_is_bad_usage(tmp_path: Path, every: float) -> None:
    with pytest.raises(BadUsage, match=r"--every must be > 0 and <= 86400 seconds, got"):
        command.main(command.Options(run=tmp_path, every=every))
    with pytest.raises(BadUsage, match=r"--rows must be >= 1, got 0"):
        command.main(command.Options(run=tmp_path, rows=0))


WHOLE = {
    "step": 2,
    "response_ids": [5, 6, 7],
    "logp_mu": [-1.0, -2.0, -3.0],
    "logp_pi_s": [-1.0, -2.1, -3.0],
    "logp_pi": [-1.1, -2.0, -3.0],
    "reward": 1.0,
}
BAD = {
    "ids that are no list": (
        json.dumps(WHOLE | {"response_ids": 5}),
        "must be a flat list of numbers, got 5",
    ),
    "a null step": (json.dumps(WHOLE | {"step": None}), "step must be an integer, got None"),
    "no step": (json.dumps({n: v for n, v in WHOLE.items() if n != "step"}), "an integer, got no step"),
    "a step beyond all floats": (json.dumps(WHOLE).replace('"step": 2', '"step": 1e400'), "line must be"),
    "an infinite step": (json.dumps(WHOLE | {"step": math.inf}), "step must be an integer, got inf"),
    "a step in words": (json.dumps(WHOLE | {"step": "a"}), "step must be an integer, got a"),
    "one number for a list": (json.dumps(WHOLE | {"logp_mu": -1}), "logmu must be a flat list of numbers"),
    "a reward in words": (json.dumps(WHOLE | {"reward": "x"}), "reward must be a finite number, got x"),
    "an endless reward": (json.dumps(WHOLE | {"reward": math.inf}), "a finite number, got inf"),
    "a list that is too short": (json.dumps(WHOLE | {"logp_pi": [-1.0]}), "one with 2 too few"),
    "a mask that is too long": (json.dumps(WHOLE | {"mask": [1] * 5}), "one with 2 too many"),
    "nested lists": (json.dumps(WHOLE | {"logp_mu": [[-1.0], [-2.0], [-3.0]]}), "must be a flat list"),
    "lists of words": (json.dumps(WHOLE | {"logp_pi": ["a", "b", "c"]}), "must be a flat list"),
    "a list": ("[1, 2]", "a line must be a JSON object, got a list"),
    "half a line with an end": (
        '{"step": 3, "response_ids": [1',
        "a line must be a JSON object, got no JSON",
    ),
    "a number for a list of ids": (json.dumps(WHOLE | {"trainer_ids": 5}), "second list of ids must be"),
    "probabilities": (json.dumps(WHOLE | {"logp_mu": [0.4, 0.9, 0.1]}), "log-probs are at most 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_cannot_be_read_is_counted_and_said_and_the_others_are_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, said = BAD[name]
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{json.dumps(WHOLE)}\n\n{line}\n{json.dumps(WHOLE | {'step': 3})}\n{line}\n")
    progress = TraceFiles([file]).poll()
    assert [s["step"] for s in progress.steps] == [2, 3]
    assert progress.unread.startswith("2 lines not read, the first at trace.jsonl line 3: ")
    assert said in progress.unread
    assert "\n" not in progress.unread
    with pytest.raises(CannotRun, match=r"2 lines not read, the first at .* line 3: "):
        command.main(command.Options(run=file, once=True))
    assert "step 3" in capsys.readouterr().out, "what can be read is shown"


def test_bad_lines_leave_the_command_line_as_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from validation.cli import main

    file = tmp_path / "trace.jsonl"
    file.write_text(f"{json.dumps(WHOLE)}\n{BAD['probabilities'][0]}\n")
    assert main(["watch", str(file), "--once"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("lagfloor: 1 line not read, at trace.jsonl line 2: log-probs are at most 0")


def test_the_last_line_is_read_when_it_ends_or_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    text = json.dumps(WHOLE)
    file.write_text(text[:-1])
    source = TraceFiles([file])
    assert (source.poll().steps, source.poll().unread) == ((), "")
    file.write_text(text)
    assert len(source.poll().steps) == 1, "an object that is whole cannot go on"
    file.write_text(f"{text}\n")
    assert source.poll().unread == ""
    file.write_text(f"{text}\n5\n")
    assert "trace.jsonl line 2: " in source.poll().unread, "lines are counted from the beginning of the file"


def test_a_truncated_last_line_is_said_until_it_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    line, after = json.dumps(WHOLE), json.dumps(WHOLE | {"step": 3})
    file.write_text(f"{line}\n{after[:40]}")
    assert command.main(command.Options(run=file, once=True)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step 2" in said
    assert "trace.jsonl ends in the middle of line 2, which does not count" in said
    source = TraceFiles([file])
    assert len(source.poll().notes) == 1
    file.write_text(f"{line}\n{after}\n")
    whole = source.poll()
    assert (len(whole.steps), whole.notes) == (2, ())
    file.write_text(f"{line}\n{after}\n  ")
    assert source.poll().notes == (), "blanks are no line"


def test_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{json.dumps(WHOLE)}\n{json.dumps(WHOLE | {'step': 3})}\n")
    source = TraceFiles([file])
    assert [s["step"] for s in source.poll().steps] == [2, 3]
    file.write_text(json.dumps(WHOLE | {"step": 1}) + "\n")
    assert [s["step"] for s in source.poll().steps] == [1]


def test_a_file_rotated_away_is_read_anew_though_the_new_one_is_longer(tmp_path: Path) -> None:
    """Going on at the old place would begin in the middle of a line of the new one."""
    file = tmp_path / "trace.jsonl"
    write(file, [WHOLE])
    source = TraceFiles([file])
    assert [s["step"] for s in source.poll().steps] == [2]
    file.rename(tmp_path / "trace.jsonl.1")
    write(file, [WHOLE | {"step": step} for step in (3, 4)])
    now = source.poll()
    assert [s["step"] for s in now.steps] == [3, 4]
    assert now.unread == ""


def test_files_that_turn_up_in_a_watched_folder_are_read_too(tmp_path: Path) -> None:
    """Also as TRL's hook names them where it has several processes."""
    write(tmp_path / "trace.jsonl.rank0", [WHOLE])
    source = source_of(tmp_path)
    alone = source.poll()
    assert alone.title == "trace.jsonl.rank0"
    assert [s["reward"] for s in alone.steps] == [WHOLE["reward"]]
    write(tmp_path / "trace.jsonl.rank1", [WHOLE | {"reward": WHOLE["reward"] - 2.0}])
    both = source.poll()
    assert both.title == "trace.jsonl.rank0, trace.jsonl.rank1"
    assert [s["reward"] for s in both.steps] == [WHOLE["reward"] - 1.0]


def test_workers_a_step_apart_are_put_together_and_a_straggler_is_said(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    files = [tmp_path / f"rank_{k}.jsonl" for k in range(2)]
    first, second = ([response(1, rng, spread=0.3) for _ in range(20)] for _ in files)
    later = [response(2, rng, spread=0.3) for _ in range(5)]
    write(files[0], first + later)
    write(files[1], second[:3])
    source = TraceFiles(files)
    source.poll()
    write(files[1], second[3:])
    assert source.poll().steps[0] == measures_of(first + second) | {"step": 1.0}
    for step in range(3, 8):
        write(files[0], [response(step, rng, spread=0.3)])
    source.poll()
    write(files[1], second[:1])
    late = source.poll()
    assert late.steps[0] == measures_of(first + second) | {"step": 1.0}
    assert "rank_1.jsonl line 21: it came after 4 later steps" in late.unread


def test_a_look_that_fails_keeps_what_was_seen_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(WHOLE) + "\n")
    source = TraceFiles([file])
    before = source.poll()
    file.rename(tmp_path / "away")
    during = command.look_again(source, before)
    assert during.steps == before.steps
    assert during.unread.startswith("not read at the last look: ")
    (tmp_path / "away").rename(file)
    assert command.look_again(source, during) == before


def test_what_could_not_be_read_stands_on_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{json.dumps(WHOLE)}\n{BAD['a list'][0]}\n")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(command.view(TraceFiles([file]).poll(), 3))
    assert "1 line not read, at trace.jsonl line 2: a line must be" in console.export_text()


COMPRESSORS = {"gz": gzip.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("how", COMPRESSORS)
def test_a_compressed_trace_is_refused_and_not_an_empty_one(tmp_path: Path, how: str) -> None:
    file = tmp_path / f"trace.jsonl.{how}"
    file.write_bytes(COMPRESSORS[how](b"{}"))
    with pytest.raises(ValueError, match="which is compressed; `lagfloor audit` reads it"):
        source_of(file)


@pytest.mark.parametrize("how", COMPRESSORS)
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_folder_of_compressed_traces_is_refused_like_one_of_them(
    tmp_path: Path, how: str, ending: str
) -> None:
    file = tmp_path / f"rank_1.{ending}"
    file.write_bytes(COMPRESSORS[how](json.dumps(WHOLE).encode()))
    with pytest.raises(ValueError, match=rf"got {file}, which is compressed; `lagfloor audit` reads it"):
        source_of(tmp_path)


def test_a_folder_of_plain_traces_is_read_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "rank_1.jsonl").write_text(json.dumps(WHOLE) + "\n")
    (tmp_path / "rank_1.jsonl.part").write_text("half")
    (tmp_path / "notes.txt").write_text("a")
    assert [s["step"] for s in source_of(tmp_path).poll().steps] == [2]
    (tmp_path / "rank_1.jsonl").unlink()
    with pytest.raises(ValueError, match="which is neither"):
        source_of(tmp_path)


def test_what_is_above_zero_beside_the_mask_is_no_fault_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = WHOLE | {"mask": [1, 1, 0], "logp_mu": [-1.0, -2.0, 5.0]}
    file.write_text(json.dumps(line) + "\n")
    progress = TraceFiles([file]).poll()
    assert (progress.unread, len(progress.steps)) == ("", 1)
    file.write_text(json.dumps(line | {"mask": [1, 1, 1]}) + "\n")
    assert "log-probs are at most 0" in TraceFiles([file]).poll().unread, "the control: under the mask it is"


def test_a_broken_step_of_a_run_under_way_is_named_and_other_files_are_not_read(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("real.checkpoint")
    with Store(tmp_path).write("real", experiment()) as writer:
        writer.state.mkdir()
        checkpoint.write_record(writer.state, StepRecord(step=1, measures={"ess_token": 0.9}))
        for name in ("step-x", "step-5x", "step-5", "step-00002 copy", "last-step-00002"):
            (writer.state / f"{name}.safetensors").write_bytes(b"no step of this run")
        source = source_of(writer.folder)
        assert [s["step"] for s in source.poll().steps] == [1]
        (writer.state / "step-00002.safetensors").write_bytes(b"broken")
        with pytest.raises(ValueError, match=r"whole safetensors files, got .*step-00002\.safetensors"):
            source.poll()


@pytest.mark.parametrize(
    "settings", ["{}", "[]", "{", '{"experiment": {"steps": 3}}', '{"experiment": {"correction": "dlc"}}']
)
def test_a_run_under_way_with_broken_settings_is_one_line(tmp_path: Path, settings: str) -> None:
    with Store(tmp_path).write("toy", experiment()) as writer:
        (writer.folder / "settings.json").write_text(settings)
        with pytest.raises(ValueError, match=r"has no whole settings.json; delete the folder"):
            source_of(writer.folder).poll()
