"""Watching a run: steps as they are committed or appended, verdicts that match the core, nothing twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from theory.corrections import correction
from theory.experiment import Experiment
from theory.records import StepRecord, Trace
from theory.token_measures import token_measures
from validation.commands import watch as command
from validation.store import Store
from validation.watch import RunFolder, TraceFiles, measures_of, source_of


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
    progress = source_of(writer.folder).poll()
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
    [(b'{"a": 1}\n', "no step"), (b"not json\n", "canonical trace"), (b"[1]\n", "no step")],
)
def test_a_file_of_another_format_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    from validation.errors import CannotRun

    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    with pytest.raises(CannotRun, match=said):
        command.main(command.Options(run=file, once=True))


def test_a_place_with_nothing_to_watch_is_bad_usage(tmp_path: Path) -> None:
    from validation.errors import BadUsage

    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadUsage, match="watch needs"):
            command.main(command.Options(run=path))
    with pytest.raises(BadUsage, match="every"):
        command.main(command.Options(run=tmp_path, every=0))
