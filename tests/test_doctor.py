"""The doctor says what is absent, what fits, and what verl swallowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from validation import doctor
from validation.commands import doctor as command
from validation.errors import BadUsage


@pytest.fixture(autouse=True)
def a_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the tests of verl set for a machine without a GPU, in whichever order they run."""
    for name in [n for n in os.environ if n.startswith("VERL_")]:
        monkeypatch.delenv(name)


def test_what_is_not_installed_is_absent_and_only_broken_if_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    assert command.main(command.Options(only="trl,verl")) == 0
    assert capsys.readouterr().out.count("absent") == 2
    assert command.main(command.Options(only="trl,verl", require="verl")) == 1
    said = capsys.readouterr()
    assert "BROKEN  real.verl" in said.out
    assert "1 of 2" in said.err


def test_an_unknown_part_is_bad_usage() -> None:
    with pytest.raises(BadUsage, match="known: packages, trl, verl"):
        command.main(command.Options(only="slime"))
    with pytest.raises(BadUsage, match="can be required"):
        command.main(command.Options(require="slime"))


def test_what_is_required_and_not_looked_at_is_no_success() -> None:
    with pytest.raises(BadUsage, match="required must be examined, got 'verl' beside --only trl"):
        command.main(command.Options(only="trl", require="verl"))
    with pytest.raises(BadUsage, match="--only names parts, got ','"):
        command.main(command.Options(only=","))


@pytest.mark.parametrize(
    ("answer", "health", "said"),
    [
        ({"found": ["lagfloor-is"], "missing": [], "why": ""}, "fine", "lagfloor-is"),
        ({"found": [], "missing": ["lagfloor-is"], "why": ""}, "broken", "did not register lagfloor-is"),
        ({"found": [], "missing": ["x"], "why": "ImportError: no"}, "broken", "swallowed"),
        ("SyntaxError: invalid syntax", "broken", "SyntaxError"),
    ],
)
def test_what_verls_registry_answers_is_judged(answer: Any, health: str, said: str) -> None:
    finding = doctor._losses(answer)
    assert finding.health == health
    assert said in finding.detail


def test_trl_without_a_method_we_override_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "9.9")
    monkeypatch.setattr(doctor, "_probe", lambda *words: {"gone": ["_compute_loss"], "overridden": []})
    (finding,) = doctor.trl()
    assert finding.health == "broken"
    assert "_compute_loss" in finding.detail


def test_a_probe_that_dies_is_one_line() -> None:
    assert "No module named" in str(doctor._probe("no.such.module"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('{\"gone\": []}'); print('bye')", {"gone": []}),
        ("print('[1]'); print(1)", "the probe ended with code 0 and no word"),
        ("import sys; sys.stdout.buffer.write(bytes([255, 10]) + b'{}')", {}),
        ("raise SystemExit('a line\\n  its last ')", "its last"),
        ("print('{}'); raise SystemExit(3)", "the probe ended with code 3 and no word"),
        ("raise SystemExit(3)", "the probe ended with code 3 and no word"),
    ],
)
def test_whatever_a_probe_prints_is_an_answer_or_one_line(tmp_path: Path, body: str, said: Any) -> None:
    (tmp_path / "talks.py").write_text(body)
    assert doctor._probe("talks", cwd=tmp_path) == said
    assert "could not be started" in str(doctor._probe("talks", cwd=tmp_path / "gone"))


@pytest.mark.slow
def test_the_installed_verl_found_us_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="verl is not installed here; `make test-integrations` installs it")
    findings = doctor.verl()
    assert [f.health for f in findings] == ["fine"] * 3, findings


@pytest.mark.slow
def test_a_plugin_that_raises_is_reported_though_verl_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="verl is not installed here; `make test-integrations` installs it")
    # the core cannot be imported: verl logs that at level DEBUG and goes on without our losses
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory" / "__init__.py").write_text("raise ImportError('the core is broken')\n")
    (tmp_path / "real").symlink_to(Path(doctor.__file__).parents[1] / "real")
    findings = {f.name: f for f in doctor.verl(cwd=tmp_path, env=dict(os.environ))}
    assert findings["verl registry"].health == "broken"
    assert "the core is broken" in findings["verl registry"].detail


def test_a_policy_that_leaves_the_plugin_out_is_named() -> None:
    finding = doctor._entry_point({"VERL_USE_EXTERNAL_PLUGINS": "none"})
    assert finding.health == "broken"
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in finding.detail
    for policy in ({}, {"VERL_USE_EXTERNAL_PLUGINS": "Auto "}, {"VERL_USE_EXTERNAL_PLUGINS": "a,lagfloor"}):
        assert "leaves it out" not in doctor._entry_point(policy).detail


def test_another_version_than_ours_is_fine_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_probe", lambda *words: {"gone": [], "overridden": ["_compute_loss"]})
    for version, said in (("9.9", " (made for 1.16, this is 9.9)"), ("1.16.3", "")):
        monkeypatch.setattr(doctor, "_version", lambda package, version=version: version)
        (finding,) = doctor.trl()
        assert finding.health == "fine"
        assert finding.detail == f"LagGRPOTrainer overrides _compute_loss{said}"
