"""Ranks of the table: Spearman's coefficients over checkpoints of a made-up one, and their verdicts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import COMPARED, GOOD, RUN, changed, judged, keep_references, plan_of, table_of
from scipy import stats
from tolerances import library

from validation.check import Check, Verdict, conclude
from validation.gather.compare import held
from validation.table.claims import rank
from validation.table.gather import Table
from validation.table.ranks import correlations
from validation.table.rows import CORRECTIONS
from validation.table.summary import checkpoints
from validation.table.worlds import worlds


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the on-policy runs are kept."""
    found = tmp_path_factory.mktemp("runs")
    keep_references(found, plan_of(samplers=("reference",), corrections=("pg",)))
    return found


RANKED = tuple(CORRECTIONS)[:10]
SWAPPED = (9, 1, 2, 7, 4, 5, 6, 3, 8, 0)
"""Order of their deviations: by accuracy but for four that trade places"""


def ranked(root: Path, *, told: bool) -> tuple[Table, list[Check]]:
    """Ten cells by accuracy: the share tells it and the deviation less so, or the share says the reverse."""
    changes: dict[tuple[str, str], dict[str, Any]] = {}
    for place, name in enumerate(RANKED):
        order = SWAPPED[place] if told else place
        changes["stale-64", name] = {"accuracy": 0.66 - 0.06 * place, "end": 1.5 ** (1 + order), "at": {}}
        changes["stale-64", name]["share"] = None if told else 0.9 - 0.08 * place
    table = table_of(root, changed(changes), plan=plan_of(samplers=("stale-64",), corrections=RANKED))
    return table, judged(table, checkpoints(table, worlds(table)["stale-64"]))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the resamples."""
    monkeypatch.setattr(rank, "correlations", partial(correlations, resamples=200))


@pytest.mark.usefixtures("quick")
def test_ranks_are_spearmans_over_all_checkpoints(root: Path) -> None:
    table, checks = ranked(root, told=True)
    references = [table.runs[e.fingerprint()].trace for e in table.plan.references]
    learnt = np.mean([held(trace, "accuracy", COMPARED) for trace in references], axis=0)
    drops, shares, floors = [], [], []
    for cell, order in zip(table.plan.cells, SWAPPED, strict=True):
        for i, experiment in enumerate(cell.experiments):
            steps = table.runs[experiment.fingerprint()].trace.steps
            drops += list(learnt - steps["accuracy"][COMPARED - 1])
            shares += list(steps["off_support"][COMPARED - 1])
            tag = GOOD["stale-64", cell.correction].tag
            floors += list(tag * 1.5 ** ((1 + order) * COMPARED / 40) * (1 + RUN[i]))
    oracles: list[Any] = [stats.spearmanr(x, drops) for x in (shares, floors)]
    share, deviation = (oracle.statistic for oracle in oracles)
    found = [c for c in checks if c.claim == "rank"]
    values = [c.measured.value for c in found if c.measured is not None]
    assert values == pytest.approx([share, share - deviation], rel=library(np.float64))
    # the error of the difference is that of whole runs drawn once for both
    drawn, draws = correlations(checkpoints(table, worlds(table)["stale-64"]), seed=rank.SEED, resamples=200)
    column = {name: draws[:, place] for place, name in enumerate(drawn)}
    errors = [c.measured.stderr for c in found if c.measured is not None]
    gaps = column["off-support"] - column["deviation"]
    assert errors == pytest.approx([column["off-support"].std(), gaps.std()], rel=library(np.float64))
    assert min(errors) > 0
    for check in found:
        assert conclude(check)[::2] == (Verdict.HOLDS, Verdict.FAILS), check
        assert f"{8 * 30} checkpoints of 30 runs" in check.note


@pytest.mark.usefixtures("quick")
def test_ranks_fail_where_the_deviation_tells_the_loss_and_the_share_does_not(root: Path) -> None:
    found = [conclude(c) for c in ranked(root, told=False)[1] if c.claim == "rank"]
    assert {o.verdict for o in found} == {o.control for o in found} == {Verdict.FAILS}


@pytest.mark.usefixtures("quick")
def test_ranks_need_five_runs(root: Path) -> None:
    corrections = ("pg", "sc")
    for seeds, verdicts in (
        ((20, 21), {Verdict.NOT_RUN}),
        ((20, 21, 22), {Verdict.HOLDS, Verdict.UNDECIDED}),
    ):
        table = table_of(root, plan=plan_of(samplers=("stale-64",), corrections=corrections, seeds=seeds))
        points = checkpoints(table, worlds(table)["stale-64"])
        assert len(np.unique(points.run)) == 2 * len(seeds)
        found = [conclude(c).verdict for c in judged(table, points) if c.claim == "rank"]
        assert len(found) == 2
        assert set(found) <= verdicts
