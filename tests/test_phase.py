"""The phase diagrams: drawn as vectors, read back as kept, and computed cell by cell from the toy."""

import dataclasses
import re

import numpy as np
import pytest

from validation.gather import phase as gathered
from validation.report import phase
from validation.report.style import to_svg


@pytest.fixture
def diagram():
    shape = (len(gathered.CORRECTIONS), len(gathered.LRS), len(gathered.PERIODS))
    grid = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    return gathered.Diagram(deviation=4 * grid, accuracy=1 - grid, off_support=grid / 5)


def test_a_diagram_is_drawn_as_it_was_kept(diagram, tmp_path):
    gathered.save(diagram, tmp_path / phase.FILE)
    table = phase.read_phase(tmp_path)
    assert table is not None
    drawn = phase.figures(table)
    assert [name for name, _, _ in drawn] == ["phase-deviation", "phase-accuracy", "phase-off_support"]
    for name, figure, _ in drawn:
        panels = figure.axes
        assert [axes.get_title(loc="left") for axes in panels] == list(gathered.CORRECTIONS)
        values = diagram._asdict()[name.removeprefix("phase-")]
        measure = phase.MEASURES[name.removeprefix("phase-")]
        for axes, grid in zip(panels, values, strict=True):
            assert [t.get_text() for t in axes.texts] == [measure.shown(v) for v in grid.ravel()]
            assert [t.get_text() for t in axes.get_xticklabels()][-1] == "never"
        svg = to_svg(figure, name=name)
        assert "<image" not in svg  # a bitmap would be an address in the page
        assert not re.search(r'(?:src|href)="(?!#)', svg)


def test_nothing_kept_is_nothing_drawn_and_another_file_is_one_line(tmp_path):
    assert phase.read_phase(tmp_path) is None
    assert phase.figures(None) == []
    (tmp_path / phase.FILE).write_bytes(b"no table")
    with pytest.raises(ValueError, match="run phase again"):
        phase.read_phase(tmp_path)


def test_cells_of_a_row_share_their_reference_and_a_second_call_runs_nothing(tmp_path, monkeypatch):
    ran = []
    whole = gathered.ensemble

    def small(experiment, *, seeds):
        ran.append(experiment)
        return whole(dataclasses.replace(experiment, steps=3, samples=4), seeds=seeds)

    monkeypatch.setattr(gathered, "ensemble", small)
    monkeypatch.setattr(gathered, "LRS", (2.0, 8.0))
    monkeypatch.setattr(gathered, "PERIODS", (1, 64))
    monkeypatch.setattr(gathered, "ENVIRONMENTS", 1)
    found = gathered.gather(tmp_path, 0)
    rules = gathered.CORRECTIONS
    assert len(ran) == 2 * (2 + 2 * len(rules))
    assert found.deviation.shape == (len(rules), 2, 2)
    # every cell stands where its correction, learning rate and period are
    for experiment in [e for e in ran if e.numerics.kind == "gaussian"]:
        place = (
            list(rules.values()).index(experiment.correction),
            (2.0, 8.0).index(experiment.lr),
            (1, 64).index(experiment.sync_every),
        )
        short = dataclasses.replace(experiment, steps=3, samples=4)
        share = whole(short, seeds=gathered.SEEDS).measures["off_support"][:, -1].mean()
        assert found.off_support[place] == pytest.approx(share)
    again = gathered.gather(tmp_path, 0)
    assert len(ran) == 2 * (2 + 2 * len(rules))
    np.testing.assert_array_equal(again.deviation, found.deviation)
