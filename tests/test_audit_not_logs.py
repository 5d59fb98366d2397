"""Probabilities or losses where log-probs belong: said first, and bf16, padding and fill values are not."""

from __future__ import annotations

import numpy as np
import pytest
from audit_files import canonical, write
from audit_logs import Log, build, engine

from theory.batch import ROUNDING
from validation.audit import thinning
from validation.audit.command import main
from validation.audit.run import Audit, audit
from validation.audit.signs import STRAY

KIND = "sampled-vs-reported"
SEED = 5


def log() -> Log:
    return build(np.random.default_rng(SEED), engine(0.042), rows=24, length=60, vocab=100)


def told(made: Log, folder) -> Audit:
    return audit([str(canonical(made, folder / "log.jsonl"))])


def kinds(made: Log, folder) -> list[str]:
    return [f.kind for f in told(made, folder).findings]


def is_no_column(made: Log, folder) -> bool:
    """Whether a whole column is said to hold no log-probs."""
    return any("no log-probs" in f.fault for f in told(made, folder).findings)


LAWS = {"probabilities": np.exp, "losses": np.negative}


@pytest.mark.parametrize("column", ["mu", "pi_s", "pi"])
@pytest.mark.parametrize("law", LAWS)
def test_a_column_without_log_probs_is_the_one_finding(tmp_path, column, law):
    made = log()
    assert made.pi_s is not None
    made.pi = made.pi_s.copy() if column == "pi" else None
    values = LAWS[law](getattr(made, column))
    setattr(made, column, values)
    (found,) = told(made, tmp_path).findings
    assert found.kind == KIND
    assert found.side == ("engine" if column == "mu" else "trainer")
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
    found = told(made, tmp_path).findings
    (first,) = [f for f in found if f.kind == KIND]
    assert found[0] is first
    assert "on 1 counted tokens in 1 rows, the largest 2.5" in first.fault
    assert "line 8 position 11" in first.figures[0].where
    assert first.side == "trainer"


def test_the_engine_is_accused_of_its_own_value_above_zero(tmp_path):
    made = log()
    made.mu[7, 11] = 2.5
    (found,) = [f for f in told(made, tmp_path).findings if f.kind == KIND]
    assert found.side == "engine"


@pytest.mark.parametrize(("outliers", "above"), [(1, 1), (3, 3), (3, 5)])
def test_outliers_elsewhere_do_not_excuse_as_many_values_above_zero(tmp_path, outliers, above):
    made = log()
    assert made.pi_s is not None
    made.pi_s[3, 4 : 4 + outliers] -= 9
    made.pi_s[7 + np.arange(above), 11 + 3 * np.arange(above)] = 5.0 - 0.17 * np.arange(above)
    said = told(made, tmp_path)
    assert f"on {above} counted tokens in {above} rows, the largest 5" in str(
        [f.fault for f in said.findings]
    )
    assert "above 0" not in str(said.cannot_know)
    made.pi_s[3, 4 : 5 + above] -= 9
    assert "above 0" in str(told(made, tmp_path).cannot_know), "the control: more tokens differ by as much"


def test_one_outlier_does_not_excuse_one_value_where_only_a_sample_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(thinning, "SAMPLE_TOKENS", 2000)
    made = build(np.random.default_rng(SEED), engine(0.042), rows=96, length=60, vocab=100)
    assert made.pi_s is not None
    made.pi_s[3, 4] -= 9
    made.pi_s[7, 11] = 5.0
    said = told(made, tmp_path)
    assert said.collected is not None
    assert said.collected.sample().size < made.mu.size / 2
    assert "the largest 5" in str([f.fault for f in said.findings])


@pytest.mark.parametrize("column", ["mu", "pi_s"])
def test_what_a_column_s_noise_can_carry_above_zero_is_a_remark_and_no_fault(tmp_path, column):
    made = log()
    values = getattr(made, column)
    values[values > -0.05] += 0.2
    values[values < -1] -= 0.3
    said = told(made, tmp_path)
    assert (values > ROUNDING).any()
    assert not [f for f in said.findings if "above 0" in f.fault]
    (remark,) = [line for line in said.cannot_know if "above 0" in line]
    assert f"on {(values > ROUNDING).sum()} counted tokens" in remark
    assert remark.endswith("-loss of a cross-entropy")


def test_noise_excuses_no_value_that_is_further_above_zero_than_it_reaches(tmp_path):
    made = log()
    made.mu[made.mu > -0.05] += 0.2
    made.mu[made.mu < -1] -= 0.3
    made.mu[7, 11] = 5.0
    said = told(made, tmp_path)
    assert [f for f in said.findings if "the largest 5" in f.fault]
    assert "above 0" not in str(said.cannot_know)


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
    said = audit([str(path)])
    assert "above 0" not in str([f.fault for f in said.findings] + said.cannot_know)


def test_a_fill_value_keeps_its_own_name(tmp_path):
    made = log()
    made.mu[np.random.default_rng(SEED).random(made.mu.shape) < 0.02] = 1.0
    found = kinds(made, tmp_path)
    assert found[0] == "alignment-tokens-masks"
    assert KIND not in found


SMALL = {
    "of a large vocabulary": lambda mu: np.exp(mu) * 1e-3,
    "up to .12": lambda mu: np.minimum(np.exp(mu - 3), 0.12),
    "with 1% of zeros": lambda mu: np.where(np.arange(mu.size).reshape(mu.shape) % 100, np.exp(mu) * 1e-3, 0),
}


@pytest.mark.parametrize("column", ["mu", "pi_s"])
@pytest.mark.parametrize("law", SMALL)
def test_probabilities_within_what_rounding_may_be_are_told_by_their_number(tmp_path, column, law):
    made = log()
    values = SMALL[law](getattr(made, column))
    assert values.max() < ROUNDING
    setattr(made, column, values)
    made.mask[:, 50:] = 0
    (found,) = told(made, tmp_path).findings
    values = values[:, :50]
    above = values > 0
    assert found.kind == KIND
    assert f"on {above.sum()} of {above.size} counted tokens in {above.any(1).sum()} rows" in found.fault
    assert f"from {values[above].min():.3g} to {values.max():.3g};" in found.fault
    assert found.fault.endswith("it holds probabilities, or losses, no log-probs")
    assert found.figures[0].value == above.sum()
    first = np.flatnonzero(above[0])[:3]
    assert found.figures[0].where == "; ".join(f"step 1, line 1 position {at}" for at in first)
    assert found.figures[2].value == 0


def test_a_sure_policy_whose_log_probs_round_to_zero_or_above_is_no_such_column(tmp_path):
    made = log()
    assert made.pi_s is not None
    rng = np.random.default_rng(SEED)
    for share in (0.0, 0.5, 0.97):
        for values in (made.mu, made.pi_s):
            values[:] = -rng.exponential(1e-4, values.shape)
            values[rng.random(values.shape) < 0.9] = 0.0
            values[rng.random(values.shape) < share] = 2.0**-9
        assert not is_no_column(made, tmp_path), share


def test_one_value_above_among_the_log_probs_of_a_sure_policy_makes_no_such_column(tmp_path):
    made = log()
    assert made.pi_s is not None
    made.mu[:], made.pi_s[:] = -1e-3, -1.1e-3
    made.pi_s[7, 11] = 2.5
    (found,) = [f for f in told(made, tmp_path).findings if f.kind == KIND]
    assert "on 1 counted tokens in 1 rows, the largest 2.5" in found.fault
    assert "no log-probs" not in found.fault


def test_the_share_above_zero_must_be_larger_than_what_strays_leave(tmp_path):
    made = build(np.random.default_rng(SEED), engine(0.042), rows=25, length=60, vocab=100)
    strays = round(STRAY * made.mu.size)
    assert strays == STRAY * made.mu.size
    made.mu[:] = 1e-3
    made.mu.ravel()[:strays] = -1.0
    assert not is_no_column(made, tmp_path)
    made.mu[0, 0] = 1e-3
    assert is_no_column(made, tmp_path)


def test_a_sure_policy_with_a_tenth_of_unsure_tokens_and_one_value_above_is_one_of_log_probs(tmp_path):
    made = log()
    assert made.pi_s is not None
    for values in (made.mu, made.pi_s):
        unsure = np.arange(values.size).reshape(values.shape) % 10 == 0
        values[:] = np.where(unsure, np.minimum(values, -0.2), 2.0**-9)
    made.pi_s[7, 11] = 2.5
    (found,) = [f for f in told(made, tmp_path).findings if f.kind == KIND]
    assert "on 1 counted tokens" in found.fault
    assert "no log-probs" not in found.fault


def test_losses_a_rounding_below_zero_where_the_policy_is_sure_are_still_losses(tmp_path):
    made = log()
    sure = made.mu > -0.05
    assert 0.1 < sure.mean() < 0.9
    made.mu = -made.mu
    made.mu.ravel()[np.flatnonzero(sure)[::3]] = -(2.0**-9)
    (found,) = told(made, tmp_path).findings
    assert "it holds losses" in found.fault


def test_losses_that_stay_below_two_are_no_probabilities(tmp_path):
    made = log()
    made.mu = np.minimum(-made.mu, 1.5)
    (found,) = told(made, tmp_path).findings
    assert "it holds losses" in found.fault


def test_what_is_above_zero_beside_the_mask_is_not_counted_with_what_is_under_it(tmp_path):
    made = log()
    assert made.pi_s is not None
    made.mask[:, 50:] = 0
    made.pi_s[:, 50:] = 0.7
    made.pi_s[7, 11] = 2.5
    (found,) = [f for f in told(made, tmp_path).findings if f.kind == KIND]
    assert "on 1 counted tokens in 1 rows, the largest 2.5" in found.fault
    assert found.figures[0].where == "step 1, line 8 position 11"


def test_a_column_of_something_else_is_not_also_a_matter_of_noise(tmp_path):
    made = log()
    made.mu = np.exp(made.mu)
    made.mu[:20] /= 10
    said = told(made, tmp_path)
    assert [f.kind for f in said.findings] == [KIND]
    assert "normalised log-probs" not in str(said.cannot_know)
