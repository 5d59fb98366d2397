"""The table: which cells are one run, ranks against scipy, a small table end to end, kills, bad input."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tolerances import library

from real.command_line import parse
from theory.experiment import Experiment
from theory.records import Trace
from validation.cli import main
from validation.commands.table import Options, plan_of
from validation.derived import FOLDER
from validation.gather.compare import distances, held
from validation.report.spark import spark
from validation.report.table_page import heat, page_of, read_tables, render_table
from validation.store import Store
from validation.table import fullsize
from validation.table.articles import beside
from validation.table.plan import mini_plan
from validation.table.progress import Pace
from validation.table.ranks import Checkpoints, correlations, spearman
from validation.table.rows import CORRECTIONS, SAMPLERS, chosen
from validation.table.same import Same, representatives
from validation.table.variant import file_stem, variant_of
from validation.table.work import check_backend, parallel

SIZES = ["--engine", "torch", "--steps", "2", "--prompts", "4", "--seeds", "20", "--references", "10,11"]
CELLS = ["--samplers", "reference,stale-64", "--corrections", "pg,sc"]


def same_of(sampler: str, *, rounding: bool = True) -> dict[str, Same | None]:
    return representatives(CORRECTIONS, SAMPLERS[sampler], rounding=rounding)


# ---- which cells are one run


def test_on_policy_every_correction_is_the_policy_gradient_up_to_rounding() -> None:
    found = same_of("reference")
    assert found["pg"] is None
    assert {s.row for s in found.values() if s is not None} == {"pg"}
    assert [n for n, s in found.items() if s is None] == ["pg"]


def test_without_rounding_only_what_is_the_same_arithmetic_is_shared() -> None:
    found = same_of("reference", rounding=False)
    assert found["ppo"] == Same("pg", "exact")
    assert found["is"] is None
    assert found["dlc"] == found["is-sc"] == Same("sc", "exact")
    assert found["decoupled-ppo"] == Same("is", "exact")


def test_a_rounding_engine_tells_total_ratios_from_none_and_syncs_make_lag_ratios_one() -> None:
    found = same_of("fp8")
    assert found["is"] is None
    assert found["dlc"] == Same("sc", "exact")
    assert found["is+resync"] == Same("is", "exact")
    assert found["ppo-synced"] == Same("pg", "exact")


def test_a_stale_engine_keeps_clips_and_resyncs_apart() -> None:
    exact, rounding = same_of("stale-64"), same_of("fp8+stale")
    assert exact["is-sc"] == Same("is", "rounding")
    assert exact["ppo-engine"] == Same("ppo-synced", "rounding")
    for name in ("tis", "mis", "sc", "is+resync", "dlc", "dlc-free"):
        assert exact[name] is None
        assert rounding[name] is None
    assert rounding["is-sc"] is None


@pytest.mark.parametrize(
    ("sampler", "one", "other"), [("stale-64", "pg", "ppo"), ("fp8", "sc", "dlc"), ("fp8", "is", "is+resync")]
)
def test_cells_called_the_same_arithmetic_are_so_to_the_bit(sampler: str, one: str, other: str) -> None:
    from dataclasses import replace

    from real.loop import run

    assert same_of(sampler)[other] == Same(one, "exact")
    plan = mini_plan(
        samplers=(sampler,), corrections=(one,), seeds=(20,), references=(10, 11), engine="torch",
        steps=2, prompts=4, eval_prompts=4,
    )  # fmt: skip
    experiment = plan.cells[0].experiments[0]
    first = run(experiment)
    second = run(replace(experiment, correction=CORRECTIONS[other]))
    for name, tensor in first.snapshots[2].weights.items():
        assert (tensor == second.snapshots[2].weights[name]).all(), name
    assert (first.trace.tokens["logpi"] == second.trace.tokens["logpi"]).all()


def test_a_part_of_the_table_shares_its_runs_with_the_whole() -> None:
    whole = mini_plan(samplers=("stale-64",), corrections=tuple(CORRECTIONS))
    part = mini_plan(samplers=("stale-64",), corrections=("ppo-engine", "is-sc"))
    assert [c.same for c in part.cells] == [None, None]  # what they share with is not there to name
    stored = {e.fingerprint() for e in whole.runs()}
    assert {e.fingerprint() for e in part.runs()} <= stored


def test_runs_come_seed_by_seed_and_each_once() -> None:
    plan = mini_plan(samplers=("reference", "fp8"), corrections=("pg", "sc", "dlc"), seeds=(20, 21))
    runs = list(plan.runs())
    assert len(runs) == len({e.fingerprint() for e in runs})
    assert [e.seed for e in runs[len(plan.references) :]] == [20, 20, 20, 21, 21, 21]


# ---- ranks


def test_spearman_is_scipys_with_ties_and_infinities() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        x, y = generator.integers(0, 6, size=40).astype(float), generator.normal(size=40)
        y = np.where(generator.random(40) < 0.1, np.inf, y)
        oracle: Any = stats.spearmanr(x, np.where(np.isinf(y), 1e9, y))
        assert spearman(x, y) == pytest.approx(oracle.statistic, rel=library(np.float64))
    assert math.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert math.isnan(spearman(np.array([1.0, np.nan]), np.arange(2.0)))


def test_the_bootstrap_resamples_whole_runs() -> None:
    generator = np.random.default_rng(4)
    level = generator.normal(size=12)
    run = np.repeat(np.arange(12), 8)
    # checkpoints of a run are copies of each other up to a hair: 96 of them are 12 values
    x = np.repeat(level, 8) + generator.normal(scale=1e-3, size=96)
    y = np.repeat(level + generator.normal(size=12), 8)
    whole, _ = correlations(Checkpoints(run=run, drop=y, measures={"x": x}), resamples=300)
    apart, _ = correlations(Checkpoints(run=np.arange(96), drop=y, measures={"x": x}), resamples=300)
    assert whole["x"].value == apart["x"].value
    assert whole["x"].stderr > 2 * apart["x"].stderr
    assert whole["x"].low < whole["x"].value < whole["x"].high


def test_no_checkpoint_gives_no_correlation() -> None:
    nothing = Checkpoints(run=np.zeros(2), drop=np.full(2, np.nan), measures={"x": np.zeros(2)})
    found, draws = correlations(nothing)
    assert math.isnan(found["x"].value)
    assert np.isnan(draws).all()


# ---- workers, progress


def _third_fails(number: int) -> str:
    if number == 2:
        raise ValueError("two is\nrefused")
    return f"did {number}"


def test_a_task_that_fails_leaves_the_others_alone() -> None:
    seen: list[int] = []
    found = parallel(_third_fails, [(0,), (1,), (2,), (3,)], jobs=1, on_done=lambda o: seen.append(o.number))
    assert [o.error for o in found] == [None, None, "two is refused", None]
    assert [o.note for o in found] == ["did 0", "did 1", "", "did 3"]
    assert seen == [0, 1, 2, 3]


def test_time_left_counts_what_was_done_since_the_start_alone() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    assert pace.left(100, 200) == math.inf  # there from an earlier sitting: says nothing about speed
    now[0] = 10.0
    assert pace.left(120, 200) == 40.0
    assert pace.left(200, 200) == 0.0


def test_a_run_that_ended_early_keeps_what_it_last_measured() -> None:
    trace = Trace(steps={"step": np.arange(1, 5), "accuracy": np.array([np.nan, 0.3, np.nan, 0.1])})
    got = held(trace, "accuracy", np.array([1, 2, 3, 4, 9]))
    np.testing.assert_array_equal(got, [np.nan, 0.3, 0.3, 0.1, 0.1])
    assert np.isnan(held(trace, "off_support", np.array([1, 2]))).all()


# ---- a small table, end to end


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("table")
    document = root / "table.json"
    arguments = [*SIZES, *CELLS, "--jobs", "1", "--out", str(root / "runs"), "--json", str(document)]
    assert main(["table", *arguments]) == 0
    return root, json.loads(document.read_text())


def test_every_cell_is_measured_and_shared_cells_are_run_once(made: tuple[Path, dict[str, Any]]) -> None:
    root, document = made
    cells = {(c["sampler"], c["correction"]): c for c in document["cells"]}
    assert set(cells) == {(s, c) for s in ("reference", "stale-64") for c in ("pg", "sc")}
    assert all(c["measured"] for c in cells.values())
    assert cells["reference", "sc"]["same"] == {"row": "pg", "kind": "rounding"}
    assert cells["reference", "sc"]["runs"] == cells["reference", "pg"]["runs"]
    assert cells["stale-64", "pg"]["runs"] != cells["reference", "pg"]["runs"]
    # two on-policy runs, on-policy pg with a seed of its own, stale pg, stale sc
    assert len(list((root / "runs" / "real").glob("*/status.json"))) == 5


OTHERS = (
    "--engine torch", "--steps 12", "--prompts 8", "--seeds 30", "--references 40,41", "--every-cell",
    "--samplers reference", "--corrections pg", "--model a/x.safetensors", "--model b/x.safetensors",
)  # fmt: skip


def test_a_table_of_other_settings_never_takes_the_place_of_the_whole_one() -> None:
    def stem(line: str) -> str:
        options = parse(Options, "table", line.split(), about="")
        return file_stem({"preset": "mini", "point": options.point or "A", "variant": variant_of(options)})

    same = ("", "--point A", "--jobs 1 --out elsewhere", "--engine vllm", "--seeds 20,21,22", "--steps 40")
    assert {stem(line) for line in same} == {"mini-A"}
    assert stem("--point B") == "mini-B"
    others = [stem(line) for line in OTHERS]
    assert len(set(others)) == len(OTHERS)
    assert others[:6] == [
        "mini-A-engine-torch", "mini-A-steps-12", "mini-A-prompts-8", "mini-A-seeds-30",
        "mini-A-references-40-41", "mini-A-every-cell",
    ]  # fmt: skip
    many = [*CORRECTIONS]
    long = [stem(f"--corrections {','.join(names)}") for names in (many, many[:-1])]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 80


def test_the_variant_reaches_the_plan_of_either_kind() -> None:
    for line in ("--steps 12", "--preset 0.6b --lr .1 --steps 12"):
        options = parse(Options, "table", line.split(), about="")
        plan = plan_of(options) if options.preset == "mini" else fullsize.plan_of(options)
        assert plan.variant == "steps 12"


def test_deviations_are_counted_in_the_floor_of_the_on_policy_runs(made: tuple[Path, dict[str, Any]]) -> None:
    root, document = made[0] / "runs", made[1]
    plan = mini_plan(
        samplers=("reference", "stale-64"), corrections=("pg", "sc"), seeds=(20,), references=(10, 11),
        engine="torch", steps=2, prompts=4,
    )  # fmt: skip
    stored = {e.fingerprint(): Store(root).find("real", e, tables=("steps",)) for e in plan.runs()}
    references = [(run.folder, run.digest) for e in plan.references if (run := stored[e.fingerprint()])]
    before = sorted((root / "real" / FOLDER).glob("kl-*.parquet"))
    assert len(before) == 2 * 5  # on own prefixes and on the sampler's, each run

    def kept(experiment: Experiment) -> np.ndarray:
        run = stored[experiment.fingerprint()]
        assert run is not None
        return distances(root, experiment, (run.folder, run.digest), references)["kl"]

    among = [kept(e) for e in plan.references]
    unit = np.mean([kl[kl > 0].mean() for kl in among])  # 0 to themselves
    assert [len(kl) for kl in among] == [2, 2]
    assert document["on_policy"]["floor"][-1] == pytest.approx(unit, rel=library(np.float64))
    found = {r["fingerprint"]: r["floors"][-1] for c in document["cells"] for r in c["runs"]}
    expected = {e.fingerprint(): kept(e).mean() / unit for cell in plan.cells for e in cell.experiments}
    assert len(expected) == 3
    assert found == pytest.approx(expected, rel=library(np.float64))
    assert sorted((root / "real" / FOLDER).glob("kl-*.parquet")) == before  # what the table had kept


def test_a_second_call_recomputes_nothing(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, document = made
    before = {p: p.stat().st_mtime_ns for p in (root / "runs" / "real").rglob("*.parquet")}
    again = tmp_path / "again.json"
    out = ["--out", str(root / "runs"), "--json", str(again)]
    assert main(["table", *SIZES, *CELLS, "--jobs", "1", *out]) == 0
    assert {p: p.stat().st_mtime_ns for p in (root / "runs" / "real").rglob("*.parquet")} == before
    assert timeless(json.loads(again.read_text())) == timeless(document)


def timeless(document: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in ("command", "seconds", "run_seconds")}


def table_process(out: Path, document: Path) -> subprocess.Popen[str]:
    arguments = [*SIZES, *CELLS, "--jobs", "2", "--out", str(out), "--json", str(document)]
    return subprocess.Popen(
        [sys.executable, "-m", "validation", "table", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killed_in_the_middle_of_a_cell_it_goes_on_to_the_same_table(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, document = tmp_path / "runs", tmp_path / "table.json"
    process = table_process(out, document)
    deadline = time.monotonic() + 300
    while not list(out.glob("real/*/state/step-*.safetensors")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)  # the workers too, which would end their cells first
    process.communicate()
    assert list(out.glob("real/*/state"))  # something was begun and not finished
    process = table_process(out, document)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert timeless(json.loads(document.read_text())) == timeless(made[1])


def test_a_changed_file_is_told_of_and_its_run_made_again(
    made: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    out = tmp_path / "runs"
    shutil.copytree(made[0] / "runs", out)
    stale = next(c for c in made[1]["cells"] if c["sampler"] == "stale-64")["runs"][0]["fingerprint"]
    file = out / "real" / stale / "snapshot-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    document = tmp_path / "table.json"
    assert main(["table", *SIZES, *CELLS, "--jobs", "1", "--out", str(out), "--json", str(document)]) == 0
    said = capsys.readouterr().err
    assert f"{stale}: snapshot-00002.safetensors has been changed since it was written: made again" in said
    assert timeless(json.loads(document.read_text())) == timeless(made[1])


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samplers", "fp9"], "unknown sampler 'fp9'; known: reference, fp8"),
        (["--corrections", "pg,pgg"], "unknown correction 'pgg'; known: pg, ppo"),
        (["--seeds", "2x"], "--seeds takes whole numbers from 0 up, separated by commas, got '2x'"),
        (["--seeds", "10"], "must share no draws, got seed 10 in both"),
        (["--references", "10"], "needs at least two different on-policy seeds"),
        (["--steps", "0"], "steps must be >= 1, got 0"),
        (["--jobs", "-1"], "jobs must be >= 0, got -1"),
        (["--lr", ".1"], "fix the learning rate"),
        (["--point", "C"], "invalid choice"),
        (["--preset", "0.6b"], "the articles do not state their learning rate"),
        (["--preset", "1.7b", "--plan", "--every-cell"], "--every-cell is not for preset '1.7b'"),
        (["--json", "/"], "--json must name a file"),
        (["--model", "nowhere.safetensors"], "model must be 'mini' or an existing file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_flags_are_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", "--out", str(tmp_path / "runs"), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words in said.err
    assert not (tmp_path / "runs").exists()


def test_a_backend_that_is_not_installed_is_refused_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"backend 'ray' needs the package ray.*pip install 'ray'"):
        check_backend("ray")
    with pytest.raises(ValueError, match=r"needs the package distributed.*dask\[distributed\]"):
        check_backend("dask")
    check_backend("loky")


def test_the_plan_says_what_there_is_to_run_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", "--plan", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert f"{4 * len(CORRECTIONS)} cells, 129 different runs, 0 of them in" in " ".join(said.split())
    assert "= sc" in said
    assert not (tmp_path / "runs").exists()


def test_the_full_size_plan_names_the_engines_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["table", "--preset", "0.6b", "--plan", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    for words in (
        "596.0 M parameters",
        "dtype='bfloat16'",
        "quantization='fp8_per_block'",
        "kv_cache_dtype='fp8'",
    ):
        assert words in said


def test_chosen_names_come_in_the_order_of_the_table() -> None:
    assert chosen("sc, pg", CORRECTIONS, "correction", CORRECTIONS) == ("pg", "sc")
    assert chosen("", SAMPLERS, "sampler", ["fp8"]) == ("fp8",)


# ---- the page


def test_the_page_escapes_every_text_and_names_no_outside_address(made: tuple[Path, dict[str, Any]]) -> None:
    document = copy.deepcopy(made[1])
    evil = "<script>alert('x')</script>"
    document["command"] = f"python -m validation table {evil!r}"
    document["versions"] = {evil: evil}
    document["cells"][0]["runs"][0]["stopped"] = evil
    document["checks"] = [
        {
            "claim": evil, "reading": evil, "predicted": evil, "measured": evil, "verdict": "holds",
            "reason": evil, "source": evil, "note": evil,
            "control": {"what": evil, "measured": evil, "verdict": "fails"},
        }
    ]  # fmt: skip
    page = render_table(document, draw=False)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)


def test_the_page_has_a_section_a_cell_and_a_link_to_it(made: tuple[Path, dict[str, Any]]) -> None:
    page = render_table(made[1])
    links = set(re.findall(r'href="#([\w-]+--[\w-]+)"', page))
    sections = set(re.findall(r'<details id="([\w-]+)"', page))
    assert links == sections == {"reference--pg", "stale-64--pg", "stale-64--sc"}
    assert page.count("<figure>") == 4
    assert "--samplers stale-64 --corrections sc" in page
    assert "#010203" not in page  # the ink's stand-in
    document = copy.deepcopy(made[1])
    document["cells"] = [c for c in document["cells"] if c["sampler"] == "reference"]
    assert render_table(document).count("<figure>") == 3  # no sampler lags: no ESS to draw


def test_the_report_writes_the_tables_it_finds(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    (found,) = read_tables(made[0] / "runs" / "tables")
    assert page_of(found).startswith("table-mini-A-samplers-reference-stale-64-corrections-pg-sc")
    assert main(["report", "--runs", str(made[0] / "runs"), "--out", str(tmp_path / "index.html")]) == 0
    assert (tmp_path / page_of(found)).read_text().startswith("<!doctype html>")
    (made[0] / "runs" / "tables" / "broken.json").write_text("{")
    try:
        with pytest.raises(ValueError, match="is not JSON; delete it"):
            read_tables(made[0] / "runs" / "tables")
    finally:
        (made[0] / "runs" / "tables" / "broken.json").unlink()


def test_figures_of_the_articles_stand_beside_what_was_measured_and_what_was_not(
    made: tuple[Path, dict[str, Any]],
) -> None:
    rows = {row["what"]: row for row in beside(made[1])}
    assert re.fullmatch(r"[\d.]+x, accuracy [\d.]+%", rows["stale sampler, SC"]["ours"])
    assert rows["stale sampler, SC"]["article"] == "32x, accuracy 12.2%"
    assert rows["FP8 sampler, PG, end"]["ours"] == "not measured"


def test_the_colour_scale_is_a_logarithm_from_one_floor_to_three_hundred() -> None:
    assert [heat(x) for x in (None, math.nan, 0.5, 1.0, 300.0, 1e9)] == [0, 0, 0, 0, 100, 100]
    assert heat(math.sqrt(300)) == 50


def test_a_spark_has_gaps_where_nothing_was_measured_and_stays_inside() -> None:
    svg = str(spark([[1.0, None, 2.0, 1e9]], low=0.1, high=100.0, log=True, line=2.0, marks=[[0, 1]]))
    assert svg.count("M") == 2  # the gap lifts the pen
    assert svg.count("<circle") == 1
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", svg)]
    assert all(0 <= y <= 56 for y in heights)


# ---- full size


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, inside vLLM's import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # swig types, inside vLLM's import
@pytest.mark.filterwarnings("ignore::UserWarning")  # vLLM's import; and rows of a random model are flat
def test_the_full_size_table_runs_on_random_weights_and_is_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm")
    from test_fullsize import SMALL

    from real.fullsize.smoke import byte_tokenizer, write_random

    model, document = tmp_path / "model", tmp_path / "table.json"
    write_random(model, SMALL)
    byte_tokenizer().save_pretrained(model)
    arguments = [
        "--preset", "0.6b", "--model", str(model), "--precision", "fp32", "--lr", "0.5", "--steps", "2",
        "--prompts", "2", "--seeds", "20", "--references", "10,11", "--samplers", "stale-64", "--corrections",
        "dlc", "--response-tokens", "8", "--prompt-tokens", "330", "--out", str(tmp_path / "runs"), "--json",
        str(document),
    ]  # fmt: skip
    assert main(["table", *arguments]) == 0
    made = json.loads(document.read_text())
    (cell,) = made["cells"]
    assert cell["measured"]
    assert cell["end"] is None  # needs the weights of two runs at once: not measured
    assert len(cell["runs"][0]["series"]["ess_token"]) == 2
    assert len(list((tmp_path / "runs" / "fullsize").glob("*/status.json"))) == 3
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "fullsize").rglob("*.parquet")}
    assert main(["table", *arguments]) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "fullsize").rglob("*.parquet")} == before
    assert "not measured" in render_table(made, draw=False)
