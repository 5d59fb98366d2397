"""What a run reports: known columns of one length, and "not measured" where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest

from theory.records import (
    MEASURED,
    NOT_MEASURED,
    OFF_SUPPORT_BELOW,
    SEQUENCE_COLUMNS,
    STEP_COLUMNS,
    TOKEN_COLUMNS,
    Provenance,
    StepRecord,
    Trace,
    trace_of,
)


def test_every_column_says_its_unit_and_what_it_is():
    for table in (TOKEN_COLUMNS, SEQUENCE_COLUMNS, STEP_COLUMNS):
        assert all(column.unit and column.what for column in table.values())
        with pytest.raises(TypeError):
            table["new"] = next(iter(table.values()))  # pyright: ignore[reportIndexIssue]
    assert OFF_SUPPORT_BELOW == 1e-3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: StepRecord(step=1, measures={"ess": 0.5}),
            "step table has no column 'ess'; known: step, rew",
        ),
        (
            lambda: StepRecord(step=1, measures={}, tokens={"logp": np.zeros(1)}),
            "token table has no column 'logp'; known: step, sequence, position, token, mask, logmu",
        ),
        (
            lambda: StepRecord(step=1, measures={}, sequences={"rewards": np.zeros(1)}),
            "sequence table has no column 'rewards'; known: step, sequence, group, reward",
        ),
        (
            lambda: StepRecord(step=1, measures={}, tokens={"logmu": np.zeros(3), "logpi": np.zeros(2)}),
            r"columns of the token table must have one length, got \{'logmu': 3, 'logpi': 2\}",
        ),
        (
            lambda: Trace(steps={"step": np.arange(2), "reward": np.zeros(3)}),
            r"columns of the step table must have one length, got \{'step': 2, 'reward': 3\}",
        ),
        (lambda: Trace(steps={}, tokens={"x": np.zeros(1)}), "token table has no column 'x'"),
        (lambda: Trace(steps={}, sequences={"x": np.zeros(1)}), "sequence table has no column 'x'"),
    ],
)
def test_what_nobody_has_defined_is_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_measure_some_steps_lack_is_nan_there_and_never_zero():
    trace = trace_of(
        [
            StepRecord(step=1, measures={"reward": 0.5, "ess_token": 0.9}),
            StepRecord(step=2, measures={"reward": 0.25}),
            StepRecord(step=4, measures={"ess_token": 0.0}),
        ]
    )
    np.testing.assert_array_equal(trace.steps["step"], [1, 2, 4])
    np.testing.assert_array_equal(trace.steps["reward"], [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(trace.steps["ess_token"], [0.9, np.nan, 0.0])
    assert set(trace.steps) == {"step", "reward", "ess_token"}


def test_tables_of_steps_are_joined_in_order():
    records = [
        StepRecord(
            step=step,
            measures={},
            tokens={"step": np.full(2, step), "logmu": np.array([-1.0, -2.0]) * step},
            sequences={"step": np.array([step]), "reward": np.array([float(step)])},
        )
        for step in (1, 2)
    ]
    trace = trace_of(records)
    np.testing.assert_array_equal(trace.tokens["step"], [1, 1, 2, 2])
    np.testing.assert_array_equal(trace.tokens["logmu"], [-1, -2, -2, -4])
    np.testing.assert_array_equal(trace.sequences["reward"], [1, 2])


def test_steps_without_tables_or_columns_do_not_break_the_join():
    records = [
        StepRecord(step=1, measures={}, tokens={"logmu": np.zeros(2), "entropy": np.zeros(2)}),
        StepRecord(step=2, measures={}),
        StepRecord(step=3, measures={}, tokens={"logmu": np.ones(1)}),
    ]
    trace = trace_of(records)
    np.testing.assert_array_equal(trace.tokens["logmu"], [0, 0, 1])
    assert "entropy" not in trace.tokens
    assert trace.provenance_of("entropy") == NOT_MEASURED
    assert dict(trace.sequences) == {}


def test_a_run_without_steps_is_an_empty_trace():
    trace = trace_of([])
    assert len(trace.steps["step"]) == 0
    assert trace.provenance_of("reward") == NOT_MEASURED


def test_columns_say_where_they_come_from():
    approximated = Provenance(kind="approximated", how="from the top 20 log-probs")
    trace = Trace(
        steps={"step": np.arange(2), "reward": np.zeros(2)},
        tokens={"entropy": np.zeros(3)},
        provenance={"entropy": approximated},
    )
    assert trace.provenance_of("reward") == MEASURED
    assert trace.provenance_of("entropy") == approximated
    assert trace.provenance_of("logmu") == NOT_MEASURED
