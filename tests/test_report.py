"""The page and the README block: whole, self-contained, and safe against what logs and names may hold."""

import json
import re

import pytest

from validation.claims import CLAIMS
from validation.commands import report
from validation.report.page import Shown, render
from validation.report.readme import BEGIN, END, claims_table, write_readme
from validation.report.results import read_results, results_path, words
from validation.report.style import new_figure, to_svg

HOSTILE = '<script>alert("x")</script>&{{ 7*7 }}'


def check(**changes):
    estimate = {"value": 1.25, "stderr": 0.125, "unit": "floors"}
    row = {
        "claim": "dlc",
        "reading": "end point",
        "predicted": estimate,
        "measured": estimate,
        "margin": 0.5,
        "verdict": "holds",
        "control": {"what": "resync off", "measured": None, "verdict": "not run"},
        "source": "article 1",
    }
    return row | changes


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()

    def put(engine, *checks):
        data = {"engine": engine, "seed": 0, "seconds": 1.5, "checks": list(checks)}
        results_path(folder, engine).write_text(json.dumps(data), encoding="utf-8")
        return folder

    return put


def test_a_number_is_shown_with_its_error_and_unit_and_none_is_not_zero():
    assert words({"value": 1.25, "stderr": 0.125, "unit": "floors"}) == "1.25 \u00b1 0.12 floors"
    assert words({"value": 3.0, "stderr": 0.0, "unit": "steps"}) == "3 steps"
    assert words({"value": None, "stderr": None, "unit": "nats"}) == "not measured"
    assert words(None) == "not measured"


def test_hostile_text_is_escaped_everywhere(store):
    folder = store("toy", check(reading=HOSTILE, claim=HOSTILE, source=HOSTILE))
    page = render(
        read_results(folder),
        [Shown(svg="<svg></svg>", caption=HOSTILE, command=HOSTILE)],
        missing=[HOSTILE],
        made={HOSTILE: HOSTILE},
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "49" not in page.split("<body>")[1]  # the template language in a value is text, not a template


def test_the_page_needs_nothing_from_outside(store):
    figure = new_figure(panels=2)
    figure.axes[0].plot([0, 1], [0, 1], label="a & b")
    page = render(
        read_results(store("toy", check())), [Shown(svg=to_svg(figure, name="f"), caption="c", command="d")]
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


def test_verdicts_that_disagree_are_counted_not_averaged(store):
    folder = store("toy", check(), check(verdict="fails"), check(verdict="holds"))
    table = claims_table(read_results(folder))
    assert f"| `dlc` | {CLAIMS['dlc'].statement} | - | 2 holds, 1 fails | - |" in table


def test_the_readme_block_is_replaced_and_the_rest_kept(store, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nstale table\n{END}\nafter\n", encoding="utf-8")
    results = read_results(store("toy", check()))
    write_readme(readme, results)
    once = readme.read_text(encoding="utf-8")
    write_readme(readme, results)
    assert readme.read_text(encoding="utf-8") == once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "stale table" not in once


def test_a_readme_without_markers_is_left_alone(store, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("no markers\n", encoding="utf-8")
    with pytest.raises(ValueError, match="once each"):
        write_readme(readme, read_results(store("toy", check())))
    assert readme.read_text(encoding="utf-8") == "no markers\n"


def test_a_report_without_runs_says_which_figures_are_missing(store, tmp_path, capsys):
    folder = store("toy", check())
    out = tmp_path / "page" / "index.html"
    assert report.main(["--store", str(folder), "--out", str(out)]) == 0
    assert "No figures for toy" in out.read_text(encoding="utf-8")
    assert str(out) in capsys.readouterr().out


def test_no_results_and_broken_results_are_one_line_each(tmp_path):
    with pytest.raises(ValueError, match="check toy"):
        report.main(["--store", str(tmp_path)])
    results_path(tmp_path, "toy").write_text('{"engine": "toy"}', encoding="utf-8")
    with pytest.raises(ValueError, match="delete it and run check toy again"):
        report.main(["--store", str(tmp_path)])
