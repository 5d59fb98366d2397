"""Numbers beyond what any log-prob or metric can be: counted and said, in no figure, without a warning."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
from audit_files import canonical, write
from audit_logs import Log, lagged
from rich.console import Console

from validation.audit.page import page
from validation.audit.run import Audit, audit
from validation.audit.sums import ess_of_sums
from validation.audit.terminal import show

SEED = 5
COLUMNS = ("mu", "pi_s", "pi", "entropy", "kept")
WHERE = {"one": (3, 4), "row": (3,), "all": (slice(None),)}


def log() -> Log:
    made = lagged(np.random.default_rng(SEED), rows=24, length=60, vocab=100)
    assert made.entropy is not None
    made.entropy, made.kept = made.entropy.astype(float), np.ones_like(made.mu)
    return made


def told(made: Log, folder) -> Audit:
    return audit([str(canonical(made, folder / "log.jsonl"))])


def shown(said: Audit) -> str:
    console = Console(width=200, file=io.StringIO())
    show(said, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [1e308, -1e308, 999.0, -999.0])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("column", COLUMNS)
def test_no_size_of_a_value_ends_in_a_warning(tmp_path, column, where, value):
    made = log()
    getattr(made, column)[WHERE[where]] = value
    text = shown(told(made, tmp_path))
    assert not re.search(r"\b(inf|nan)\b", text)


@pytest.mark.parametrize(
    ("value", "word"), [(1e308, "above 1000"), (1001.0, "above 1000"), (-1e308, "floor")]
)
@pytest.mark.parametrize("column", ["mu", "pi_s", "pi"])
def test_values_beyond_all_log_probs_are_counted_and_change_no_figure(tmp_path, column, value, word):
    whole, holed = log(), log()
    getattr(whole, column)[3, 4] = value
    getattr(holed, column)[3, 4] = math.nan
    said = told(whole, tmp_path)
    (found,) = [f for f in said.findings if f.kind == "non-finite"]
    assert f"no usable numbers (1 {word})" in found.fault
    assert "line 4 position 4" in found.figures[0].where
    assert said.numbers == told(holed, tmp_path).numbers


@pytest.mark.parametrize("column", ["mu", "pi_s"])
@pytest.mark.parametrize("value", [1e308, -1e308])
def test_a_column_of_nothing_usable_gives_no_figure_and_was_logged_all_the_same(tmp_path, value, column):
    made = log()
    made.pi = None
    getattr(made, column)[:] = value
    said = told(made, tmp_path)
    assert "not logged: no mismatch" not in str(said.cannot_know)
    assert "trainer's log-probs were not logged" not in str(said.cannot_know)
    assert [f.kind for f in said.findings] == ["non-finite"]
    assert "ESS tok" not in shown(said)
    assert said.numbers.keys() == {"counts"}


def test_weights_that_vanish_in_every_float_have_no_ess():
    assert math.isnan(ess_of_sums(5, 0.0, 0.0))
    assert math.isnan(ess_of_sums(5, 1e-200, 0.0))
    assert math.isnan(ess_of_sums(0, 0.0, 0.0))
    assert ess_of_sums(5, 5.0, 5.0) == pytest.approx(1.0)


@pytest.mark.parametrize("column", ["mu", "pi_s"])
def test_a_ratio_that_vanishes_everywhere_is_shown_as_a_dash(tmp_path, column):
    made = log()
    made.pi = None
    getattr(made, column)[:] = {"mu": 999.0, "pi_s": -999.0}[column]
    said = told(made, tmp_path)
    assert said.numbers["peers"]["verl rollout_corr/rollout_is_eff_sample_size"] is None
    assert "verl rollout_corr/rollout_is_eff_sample_size -;" in shown(said)


@pytest.mark.parametrize("value", [1e308, -1e308])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("metric", ["train/train_rollout_logprob_abs_diff", "mismatch_kl/all/mean"])
def test_a_metric_beyond_all_sums_is_one_that_is_infinite(tmp_path, metric, rows, value):
    values = 0.01 * np.exp(0.1 * np.random.default_rng(SEED).normal(size=40))
    values[:rows] = value
    said = audit([str(write("csv", {"step": np.arange(40), metric: values}, tmp_path))])
    (found,) = [f for f in said.findings if f.kind == "non-finite"]
    assert f"{rows} logged values of {metric} are NaN, infinite or beyond 1e+100" in found.fault
    assert "<svg" in page(said)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_advantage_is_called_what_it_is(tmp_path, value):
    path = canonical(log(), tmp_path / "log.jsonl")
    lines = path.read_text().splitlines()
    word = "Infinity" if value > 0 else "-Infinity"
    lines[2] = lines[2].replace('"run":', f'"advantage": {word}, "run":')
    path.write_text("\n".join(lines) + "\n")
    (found,) = [f for f in audit([str(path)]).findings if f.kind == "non-finite"]
    assert found.fault.startswith("1 rows have advantages that are no usable numbers (60 infinite)")
    assert "log-probs" not in found.fault
    assert "division by a spread of 0" in found.first
