"""Each public case, built from its synthetic line, is named by its kind; healthy logs are left in peace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from audit_cases import CASES
from audit_files import canonical, write
from audit_logs import at_step_start, build, engine, healthy, lagged
from audit_plain import HEALTHY, PLAIN, World

from theory.ess import ess_fraction
from validation.audit.command import main
from validation.audit.detectors.curve_laws import detect
from validation.audit.finding import KINDS
from validation.audit.options import Options
from validation.audit.run import audit

SEED = 20_260


@pytest.mark.parametrize("name", CASES)
def test_the_right_kind_comes_first(tmp_path, name):
    case = CASES[name]
    form = case.formats[len(name) % len(case.formats)]
    if form == "slime":
        pytest.importorskip("torch")
    findings = audit([str(write(form, case.make(np.random.default_rng(SEED)), tmp_path))]).findings
    assert findings, "nothing was found"
    first = findings[0]
    assert first.kind in {case.kind, *case.also}, [(f.kind, f.fault) for f in findings]
    assert first.figures or "the log states" in first.fault
    assert first.first


@pytest.mark.parametrize("name", PLAIN)
def test_a_plainer_world_gets_the_same_names(tmp_path, name):
    kind, make = PLAIN[name]
    log = make(World(np.random.default_rng(SEED), 64, 150))
    findings = audit([str(canonical(log, tmp_path / "log.jsonl"))]).findings
    if kind == HEALTHY:
        assert [f for f in findings if not f.healthy] == []
    else:
        assert findings[0].kind == kind, [(f.kind, f.fault) for f in findings]


@pytest.mark.parametrize("seed", range(24))
def test_no_fault_is_found_in_a_healthy_log(tmp_path, seed):
    word, log = healthy(np.random.default_rng(seed))
    form = ("canonical", "prime_rl", "nemo_rl")[seed % 3]
    if form == "nemo_rl":
        log = at_step_start(log)
    findings = audit([str(write(form, log, tmp_path))]).findings
    assert [f for f in findings if not f.healthy] == [], word


HEALTHY_CURVES = {
    "flat": {"train/train_rollout_logprob_abs_diff": (0.011, 0.05)},
    "noisy": {"sampling/sampling_logp_difference/mean": (0.03, 0.3)},
    "FP8": {"policy/rollout_train_logprobs_abs_diff_mean": (0.075, 0.1)},
    "kl": {"mismatch_kl/all/mean": (0.0015, 0.4), "entropy/all/mean": (0.5, 0.1)},
    "NeMo": {"train/token_mult_prob_error": (1.015, 0.002), "train/gen_kl_error": (0.0006, 0.3)},
    "verl": {
        "rollout_corr/rollout_is_eff_sample_size": (0.985, 0.002),
        "rollout_corr/chi2_token": (0.015, 0.2),
        "rollout_corr/kl": (0.001, 0.3),
        "rollout_corr/rollout_is_max": (1.6, 0.1),
        "training/rollout_probs_diff_mean": (0.004, 0.1),
        "training/rollout_actor_probs_pearson_corr": (0.9995, 0.0001),
    },
}


@pytest.mark.parametrize("name", HEALTHY_CURVES)
@pytest.mark.parametrize("steps", [3, 12, 200])
def test_no_fault_is_found_in_healthy_curves(tmp_path, name, steps):
    rng = np.random.default_rng(steps)
    columns = {n: v * np.exp(s * rng.normal(size=steps)) for n, (v, s) in HEALTHY_CURVES[name].items()}
    if "rollout_corr/rollout_is_eff_sample_size" in columns:
        columns = {n: np.minimum(v, 1.0) if "eff" in n else v for n, v in columns.items()}
    path = write("csv", {"step": np.arange(steps), **columns}, tmp_path)
    assert audit([str(path)]).findings == []


def test_a_mean_log_ratio_below_zero_is_no_kl_and_one_above_is(tmp_path):
    """Tokens drawn from mu have a mean of log mu - log pi that is a KL divergence, whatever the numerics."""
    rng = np.random.default_rng(3)
    for sign, kinds in ((-1, ["sampled-vs-reported"]), (1, [])):
        columns = {"rollout_corr/kl": sign * 0.05 * np.exp(0.1 * rng.normal(size=40))}
        folder = tmp_path / str(sign)
        folder.mkdir()
        found = audit([str(write("csv", {"step": np.arange(40), **columns}, folder))]).findings
        assert [f.kind for f in found if f.kind == "sampled-vs-reported"] == kinds
    told = [f.fault for f in detect({"rollout_corr/kl": -np.abs(columns["rollout_corr/kl"])})]
    assert any("cannot be negative" in fault for fault in told)


def test_the_answer_has_the_documented_shape(tmp_path):
    out = tmp_path / "out.json"
    path = write("canonical", CASES["C01"].make(np.random.default_rng(SEED)), tmp_path)
    assert main([str(path), "--json", str(out), "--quiet"]) == 0
    told = json.loads(out.read_text())
    assert list(told) == ["inputs", "provenance", "numbers", "findings", "cannot_know"]
    assert told["findings"]
    for finding in told["findings"]:
        assert list(finding) == ["kind", "fault", "confidence", "evidence", "first"]
        assert finding["kind"] in KINDS
        assert 0 <= finding["confidence"] <= 1
    assert told["numbers"]["numerics"]["ess_token_raw"] < 1


def test_clean_logs_give_an_empty_list_and_say_what_they_cannot_show(tmp_path, capsys):
    path = write("nemo_rl", build(np.random.default_rng(1), engine(0.042)), tmp_path)
    assert main([str(path), "--json", str(tmp_path / "out.json")]) == 0
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["findings"] == []
    assert told["cannot_know"]
    assert "nothing wrong in these logs" in capsys.readouterr().out


def test_the_summary_fits_a_screen(tmp_path, capsys):
    path = write("canonical", CASES["C49"].make(np.random.default_rng(SEED)), tmp_path)
    assert main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80


def test_the_page_escapes_every_text_of_a_log(tmp_path):
    evil = "<script>alert(1)</script>"
    folder = tmp_path / "<img src=x onerror=y>"
    folder.mkdir()
    log = build(np.random.default_rng(1), engine(0.042), rows=8, length=20, vocab=50)
    path = canonical(log, folder / "log.jsonl")
    records = [
        json.loads(line) | {"finish_reason": evil, "source": evil} for line in path.read_text().splitlines()
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    page = tmp_path / "page.html"
    assert main([str(path), "--html", str(page), "--quiet"]) == 0
    text = page.read_text()
    assert "<script" not in text
    assert "<img src" not in text
    assert text.count("<svg") >= 3


def test_numerics_and_lag_are_told_apart_by_versions_alone(tmp_path):
    """Only mu and pi are logged: tokens of equal version give the floor, the others lag."""
    log = lagged(np.random.default_rng(2), rate=0.15, rows=96, length=100)
    log.pi_s = None
    told = audit([str(canonical(log, tmp_path / "log.jsonl"))])
    assert [f.kind for f in told.findings] == ["lag"]
    gaps = {r["version_gap"]: r["rms_d"] for r in told.numbers["by_version_gap"]}
    assert gaps[3] > gaps[1] > gaps[0]


def test_the_crossing_is_forecast_from_the_growth_of_the_lag(tmp_path):
    rate = 0.2
    log = lagged(np.random.default_rng(3), rate=rate, sync_every=6, steps=24)
    told = audit([str(canonical(log, tmp_path / "log.jsonl"))])
    forecast = told.numbers["forecast"]
    # logit noise of `rate` an update; the crossing by the law of BASE itself, simulated at each lag
    lags = np.arange(3, 16)
    ess = [_ess_at(rate * k) for k in lags]
    crossing = float(lags[np.argmax(np.array(ess) < 0.5)])
    assert forecast["low"] <= crossing <= forecast["high"]
    assert forecast["resync_every"] <= crossing


def _ess_at(scale: float) -> float:
    log = build(np.random.default_rng(9), engine(scale), rows=60, length=100)
    assert log.pi_s is not None
    return float(ess_fraction((log.pi_s - log.mu).ravel()))


def test_old_log_probs_that_are_said_to_be_pi_are_not_blamed_on_the_engine(tmp_path):
    log = build(np.random.default_rng(4), engine(0.5))
    path = write("nemo_rl", log, tmp_path)
    blamed = audit([str(path)], options=Options(old_means="pi_s")).findings
    assert blamed[0].kind == "engine-numerics"
    assert audit([str(path)], options=Options(old_means="pi")).findings == []


def test_a_tail_found_with_two_faults_in_one_log_keeps_both(tmp_path):
    log = CASES["C01"].make(np.random.default_rng(SEED))
    log.mu[5, 7] = np.nan
    kinds = [f.kind for f in audit([str(canonical(log, tmp_path / "log.jsonl"))]).findings]
    assert set(kinds) == {"non-finite", "sampled-vs-reported"}


def test_a_page_of_curves_draws_them_and_escapes_their_names(tmp_path):
    evil = "run/<script>alert(1)</script>$\\frac/mismatch_k3_kl"
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,{evil}\n" + "".join(f"{i},0.00{i}\n" for i in range(1, 9)))
    page = tmp_path / "page.html"
    assert main([str(path), "--html", str(page), "--quiet"]) == 0
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<svg") == 1


def test_a_page_on_a_log_whose_name_is_no_utf8_shows_it_escaped(tmp_path):
    log = canonical(CASES["C01"].make(np.random.default_rng(SEED)), tmp_path / os.fsdecode(b"n\xff.jsonl"))
    page = tmp_path / "page.html"
    assert main([str(log), "--html", str(page), "--json", str(tmp_path / "told.json"), "--quiet"]) == 0
    assert r"n\udcff.jsonl" in page.read_text(encoding="utf-8")


OVERWRITES: list[list[str]] = [["--json", "LOG"], ["--html", "LOG"], ["--json", "OUT", "--html", "OUT"]]


@pytest.mark.parametrize("flags", OVERWRITES)
def test_an_output_that_would_take_the_place_of_a_log_or_of_the_other_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    log = write("canonical", CASES["C01"].make(np.random.default_rng(SEED)), tmp_path)
    before = log.read_bytes()
    places = {"LOG": str(log), "OUT": str(tmp_path / "out")}
    assert main([str(log), *(places.get(word, word) for word in flags)]) == 2
    assert "name another file" in capsys.readouterr().err
    assert log.read_bytes() == before
    assert list(tmp_path.iterdir()) == [log]
