"""Probabilities or losses where log-probs belong: said first, and bf16, padding and fill values are not."""

from __future__ import annotations

import numpy as np
import pytest
from audit_files import canonical, write
from audit_logs import Log, build, engine

from theory.batch import ROUNDING
from validation.audit.command import main
from validation.audit.run import audit

KIND = "sampled-vs-reported"
SEED = 5


def log() -> Log:
    return build(np.random.default_rng(SEED), engine(0.042), rows=24, length=60, vocab=100)


def kinds(made: Log, folder) -> list[str]:
    return [f.kind for f in audit([str(canonical(made, folder / "log.jsonl"))]).findings]


LAWS = {"probabilities": np.exp, "losses": np.negative}


@pytest.mark.parametrize("column", ["mu", "pi_s", "pi"])
@pytest.mark.parametrize("law", LAWS)
def test_a_column_without_log_probs_is_the_one_finding(tmp_path, column, law):
    made = log()
    assert made.pi_s is not None
    made.pi = made.pi_s.copy() if column == "pi" else None
    values = LAWS[law](getattr(made, column))
    setattr(made, column, values)
    (found,) = audit([str(canonical(made, tmp_path / "log.jsonl"))]).findings
    assert found.kind == KIND
    assert found.fault.startswith({"mu": "logmu,", "pi_s": "logpi_s,", "pi": "logpi,"}[column])
    above = values > ROUNDING
    assert f"on {above.sum()} counted tokens in {above.any(1).sum()} rows" in found.fault
    assert f"the largest {values.max():.3g}" in found.fault
    assert f"it holds {law}" in found.fault
    assert found.first.startswith("pass logs of probabilities")


def test_both_sides_in_probabilities_agree_and_are_told_all_the_same(tmp_path, capsys):
    made = log()
    assert made.pi_s is not None
    made.mu, made.pi_s = np.exp(made.mu), np.exp(made.pi_s)
    path = canonical(made, tmp_path / "log.jsonl")
    assert [f.kind for f in audit([str(path)]).findings] == [KIND, KIND]
    assert main([str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.index(f"1. {KIND}") < said.index("raw, pooled")
    assert "nothing wrong" not in said
    assert "pass logs of probabilities" in said


def test_the_engine_s_probabilities_alone_are_told(tmp_path):
    made = log()
    made.mu, made.pi_s = np.exp(made.mu), None
    assert kinds(made, tmp_path) == [KIND]


def test_probabilities_that_saturate_at_one_are_no_fill_value(tmp_path):
    made = log()
    made.mu = np.exp(made.mu).round(1)
    assert (made.mu == 1).sum() > 3
    assert kinds(made, tmp_path) == [KIND]


def test_one_value_above_zero_among_log_probs_is_told_with_its_place(tmp_path):
    made = log()
    assert made.pi_s is not None
    made.pi_s[7, 11] = 2.5
    found = audit([str(canonical(made, tmp_path / "log.jsonl"))]).findings
    (first,) = [f for f in found if f.kind == KIND]
    assert found[0] is first
    assert "on 1 counted tokens in 1 rows, the largest 2.5" in first.fault
    assert "line 8 position 11" in first.figures[0].where


@pytest.mark.parametrize("column", ["mu", "pi_s"])
def test_what_a_column_s_noise_can_carry_above_zero_is_a_remark_and_no_fault(tmp_path, column):
    made = log()
    values = getattr(made, column)
    values[values > -0.05] += 0.2
    values[values < -1] -= 0.3
    told = audit([str(canonical(made, tmp_path / "log.jsonl"))])
    assert (values > ROUNDING).any()
    assert not [f for f in told.findings if "above 0" in f.fault]
    (remark,) = [line for line in told.cannot_know if "above 0" in line]
    assert f"on {(values > ROUNDING).sum()} counted tokens" in remark
    assert remark.endswith("-loss of a cross-entropy")


def test_fills_among_probabilities_do_not_make_log_probs_of_them(tmp_path):
    made = log()
    made.mu = np.exp(made.mu)
    made.mu[::8, 3] = -100.0
    assert kinds(made, tmp_path) == [KIND]


@pytest.mark.parametrize("form", ["canonical", "prime_rl", "nemo_rl"])
def test_rounding_and_what_stands_beside_the_mask_are_no_fault(tmp_path, form):
    made = log()
    assert made.pi_s is not None
    sure = made.mu > -0.05
    assert sure.any()
    rng = np.random.default_rng(SEED)
    for values in (made.mu, made.pi_s):
        values[sure] += rng.uniform(0, 0.1, int(sure.sum()))
    made.mask[:, 50:] = 0
    made.mu[:, 50:], made.pi_s[:, 50:] = 1.0, 0.7
    path = write(form, made, tmp_path)
    told = audit([str(path)])
    assert "above 0" not in str([f.fault for f in told.findings] + told.cannot_know)


def test_a_fill_value_keeps_its_own_name(tmp_path):
    made = log()
    made.mu[np.random.default_rng(SEED).random(made.mu.shape) < 0.02] = 1.0
    found = kinds(made, tmp_path)
    assert found[0] == "alignment-tokens-masks"
    assert KIND not in found
