"""The page and the README block: whole, self-contained, and safe against what logs and names may hold."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from validation.claims import CLAIMS
from validation.commands import report
from validation.errors import BadUsage
from validation.plan import IS, ON_POLICY
from validation.report.curves import read_curves
from validation.report.figures import SHOWN
from validation.report.page import Shown, render
from validation.report.readme import BEGIN, END, claims_table, write_readme
from validation.report.results import CHECKS, read_results
from validation.report.seeds import compare_seeds
from validation.report.style import new_figure, to_svg
from validation.results import Results, save

HOSTILE = '<script>alert("x")</script>&{{ 7*7 }}'


def row(**changes):
    control = {"what": "resync off", "measured": "not measured", "verdict": "not run"}
    words = {"predicted": "at most 2 floors", "measured": "1.3 floors [1.1, 1.5]", "verdict": "holds"}
    rest = {"claim": "dlc", "reading": "end point", "reason": "", "source": "article 1", "note": ""}
    return {**rest, **words, "control": control, **changes}


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    (folder / CHECKS).mkdir(parents=True)

    def put(engine, *rows):
        data = {
            "engine": engine,
            "seed": 0,
            "seconds": 1.5,
            "checks": [],
            "command": "c",
            "details": list(rows),
        }
        (folder / CHECKS / f"{engine}.json").write_text(json.dumps(data), encoding="utf-8")
        return folder

    return put


@pytest.fixture
def curves(runs):
    """Two runs of each cell the figures draw: a lag that grows, and a sync."""
    steps = np.arange(1, 9)
    parts = []
    for cell in (ON_POLICY, *SHOWN):
        for run in (-1, 0, 1):
            columns = (
                {"floors": steps / 4, "accuracy": steps / 10}
                if run < 0
                else {
                    "ess_token": np.exp(-0.03 * steps**2),
                    "k1": -0.01 * steps**2,
                    "k2": 0.02 * steps**2,
                    "resynced": (steps == 5).astype(float),
                }
            )
            for column, values in columns.items():
                n = len(steps)
                parts.append(
                    pa.table(
                        {
                            "world": ["w"] * n,
                            "main": [True] * n,
                            "cell": [cell] * n,
                            "run": np.full(n, run, np.int16),
                            "column": [column] * n,
                            "step": steps.astype(np.int32),
                            "value": np.asarray(values, float),
                        }
                    )
                )
    folder = runs("toy", row())
    pq.write_table(pa.concat_tables(parts), folder / CHECKS / "toy-curves.parquet")
    return folder


def test_hostile_text_is_escaped_everywhere(runs):
    folder = runs("toy", row(reading=HOSTILE, claim=HOSTILE, source=HOSTILE))
    page = render(
        read_results(folder),
        [Shown(svg="<svg></svg>", caption=HOSTILE, command=HOSTILE)],
        made={HOSTILE: HOSTILE},
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "49" not in page.split("<body>")[1]  # the template language in a value is text, not a template


def test_the_page_needs_nothing_from_outside(runs):
    figure = new_figure(panels=2)
    figure.axes[0].plot([0, 1], [0, 1], label="a & b")
    page = render(
        read_results(runs("toy", row())), [Shown(svg=to_svg(figure, name="f"), caption="c", command="d")]
    )
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "@import" not in page
    assert "currentColor" in page


def test_two_figures_share_no_id():
    svgs = []
    for name in ("one", "two"):
        figure = new_figure()
        figure.axes[0].plot([0, 1], [0, 1])
        svgs.append(to_svg(figure, name=name))
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in svgs]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip(svgs, ids, strict=True):
        assert set(re.findall(r'href="#([^"]+)"', svg)) <= own


def test_verdicts_that_disagree_are_counted_not_averaged(runs):
    folder = runs("toy", row(), row(verdict="fails"), row(verdict="holds"))
    table = claims_table(read_results(folder))
    assert f"| `dlc` | {CLAIMS['dlc'].statement} | - | 2 holds, 1 fails | - |" in table


def test_a_table_has_a_column_of_its_own_and_may_judge_claims_that_no_engine_did(runs):
    made = {
        "preset": "mini",
        "point": "B",
        "checks": [
            {"claim": c, "verdict": v} for c, v in (("rank", "fails"), ("rank", "holds"), ("dlc", "holds"))
        ],
    }
    lines = claims_table(read_results(runs("toy", row(verdict="fails"))), [made]).splitlines()
    assert lines[0].endswith("| toy | mini-Qwen3 | table mini, B |")
    assert f"| `dlc` | {CLAIMS['dlc'].statement} | - | fails | - | holds |" in lines
    assert f"| `rank` | {CLAIMS['rank'].statement} | - | - | - | 1 holds, 1 fails |" in lines


def test_the_readme_block_is_replaced_and_the_rest_kept(runs, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nstale table\n{END}\nafter\n", encoding="utf-8")
    results = read_results(runs("toy", row()))
    write_readme(readme, results)
    once = readme.read_text(encoding="utf-8")
    write_readme(readme, results)
    assert readme.read_text(encoding="utf-8") == once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "stale table" not in once


def test_a_readme_without_markers_is_left_alone(runs, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("no markers\n", encoding="utf-8")
    with pytest.raises(ValueError, match="once each"):
        write_readme(readme, read_results(runs("toy", row())))
    assert readme.read_text(encoding="utf-8") == "no markers\n"


def test_the_report_draws_every_figure_from_the_kept_curves(curves, tmp_path):
    out, alone = tmp_path / "page" / "index.html", tmp_path / "ess.svg"
    assert report.main(report.Options(runs=curves, out=out, figure=alone)) == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "crosses at 5" in page  # exp(-.03 * 25) is the first below one half
    assert alone.read_text(encoding="utf-8").startswith("<svg")


def test_verdicts_that_change_with_the_seed_are_shown_and_the_rest_counted(runs, tmp_path):
    folder = runs("toy", row())
    rows = [row(verdict="holds"), row(reading="worst step", verdict="fails")]
    for seed, last in ((0, "fails"), (1, "undecided"), (12, "fails")):
        data = json.loads((folder / CHECKS / "toy.json").read_text(encoding="utf-8"))
        data |= {"seed": seed, "details": [rows[0], row(reading="worst step", verdict=last)]}
        (folder / CHECKS / f"toy-seed-{seed}.json").write_text(json.dumps(data), encoding="utf-8")
    compared = compare_seeds(folder / CHECKS, "toy")
    assert compared is not None
    assert compared.seeds == [0, 1, 12]
    assert compared.alike == 1
    assert compared.changed == [("dlc", "worst step", {0: "fails", 1: "undecided", 12: "fails"})]
    out = tmp_path / "index.html"
    report.main(report.Options(runs=folder, out=out))
    page = out.read_text(encoding="utf-8")
    assert "Verdicts under seeds 0, 1, 12: 1 alike, 1 changed." in page
    assert compare_seeds(folder / CHECKS, "real") is None


def test_results_are_kept_as_the_last_and_under_their_seed(tmp_path):
    for seed in (0, 4):
        save(Results(engine="theory", seed=seed, seconds=1.0, command="c", checks=()), None, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "theory.json",
        "theory-seed-0.json",
        "theory-seed-4.json",
    }
    assert json.loads((tmp_path / "theory.json").read_text(encoding="utf-8"))["seed"] == 4


def test_a_crossing_is_read_at_the_step_it_happened(curves):
    kept = read_curves(curves / CHECKS, "toy")
    assert kept is not None
    steps, ess = kept.series(IS, "ess_token")
    assert ess.shape == (2, 8)
    np.testing.assert_array_equal(steps, np.arange(1, 9))
    assert kept.series("unknown", "ess_token")[0].size == 0


def test_no_results_and_broken_results_are_one_line_each(tmp_path):
    options = report.Options(runs=tmp_path, out=tmp_path / "page.html")
    with pytest.raises(BadUsage, match="check toy"):
        report.main(options)
    (tmp_path / CHECKS).mkdir()
    (tmp_path / CHECKS / "toy.json").write_text('{"engine": "toy"}', encoding="utf-8")
    with pytest.raises(BadUsage, match="run the check again"):
        report.main(options)
    assert not options.out.exists()
