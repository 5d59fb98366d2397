"""Logs of mu and pi alone: versions that are never equal leave lag and numerics in one number."""

from __future__ import annotations

import json

import numpy as np
import pytest
from audit_files import canonical
from audit_logs import Log, build, engine, lagged, steps_of

from validation.audit.detectors.fills import NEAR_ZERO
from validation.audit.run import Audit, audit

SEED = 11


def total(scale: float, gap: int | np.ndarray, *, first: int = 5) -> Log:
    """mu against pi, apart by logit noise of `scale`, the trainer `gap` updates ahead by the versions."""
    log = build(np.random.default_rng(SEED), engine(scale), rows=96, length=100)
    log.step = steps_of(96, 12) - 1 + first
    log.trainer_version = log.step
    log.version = log.step - gap
    log.pi, log.pi_s = log.pi_s, None
    return log


def told(log: Log, folder) -> Audit:
    return audit([str(canonical(log, folder / "log.jsonl"))])


SEVERAL = 1 + np.arange(96) % 4


@pytest.mark.parametrize("scale", [0.4, 0.8, 1.6])
@pytest.mark.parametrize("gap", [4, 1, SEVERAL, -1], ids=["4", "1", "1 to 4", "sampler ahead"])
def test_a_mismatch_without_a_token_of_equal_version_is_never_laid_on_the_engine(tmp_path, scale, gap):
    said = told(total(scale, gap), tmp_path)
    assert [f.kind for f in said.findings] == ["lag"]
    (found,) = said.findings
    assert "no token of equal version" in found.fault
    assert found.confidence < 0.5
    assert "pi_s" in found.first
    texts = str([f.to_dict() for f in said.findings] + said.cannot_know)
    assert "not logged: numerics are judged" not in texts
    assert "versions are not logged" not in texts
    assert "versions were not logged" not in texts
    (limit,) = [line for line in said.cannot_know if line.startswith("numerics and lag are not separated")]
    gaps = np.atleast_1d(gap)
    assert f"version gaps {gaps.min()} to {gaps.max()}" in limit


@pytest.mark.parametrize("scale", [0.4, 0.8, 1.6])
def test_the_same_mismatch_at_equal_versions_is_the_engine_s(tmp_path, scale):
    said = told(total(scale, 0), tmp_path)
    assert said.findings[0].kind == "engine-numerics"
    assert not [f for f in said.findings if f.kind == "lag"]
    assert [line for line in said.cannot_know if "judged on tokens of equal version" in line]


def test_old_log_probs_of_other_versions_are_not_laid_on_the_engine_either(tmp_path):
    """AReaL's prox_logp is the trainer at its last version, here four updates on."""
    log, path = total(0.8, 4), tmp_path / "areal.jsonl"
    assert log.pi is not None
    records = [
        {
            "input_ids": [1, *log.ids[i].tolist()],
            "loss_mask": [0] + [1] * 100,
            "logprobs": [0.0, *log.mu[i].tolist()],
            "prox_logp": [0.0, *log.pi[i].tolist()],
            "versions": [-1] + [int(log.step[i]) - 4] * 100,
            "trainer_version": int(log.step[i]),
            "step": int(log.step[i]),
        }
        for i in range(len(log.ids))
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    said = audit([str(path)])
    assert [f.kind for f in said.findings] == ["lag"]
    assert said.findings[0].figures[0].what == "rms log mu - log old at version gap 4, nats"
    assert [line for line in said.cannot_know if line.startswith("d may contain lag: prox_logp")]


def test_lag_that_grows_with_gaps_above_none_is_surer(tmp_path):
    log = total(0.0, SEVERAL)
    assert log.pi is not None
    log.pi = log.mu - np.random.default_rng(SEED).normal(size=log.mu.shape) * 0.1 * SEVERAL[:, None]
    (found,) = told(log, tmp_path).findings
    assert (found.kind, found.confidence) == ("lag", 0.6)


def test_a_small_mismatch_without_a_floor_is_no_finding(tmp_path):
    assert told(total(0.05, 4), tmp_path).findings == []


def test_numerics_at_equal_versions_do_not_hide_the_lag_of_the_others(tmp_path):
    log = lagged(np.random.default_rng(SEED), rate=0.5, numerics=0.6)
    log.pi_s = None
    assert {f.kind for f in told(log, tmp_path).findings} >= {"engine-numerics", "lag"}


def test_numerics_that_are_the_same_at_every_gap_are_no_lag(tmp_path):
    log = total(0.6, np.arange(96) % 4)
    assert {f.kind for f in told(log, tmp_path).findings} == {"engine-numerics"}


def with_value(value: float, tokens: int = 5) -> Log:
    """A healthy log of lag 0 in which the trainer says `value` at a few tokens that the engine finds rare."""
    log = total(0.04, 0)
    assert log.pi is not None
    rare = np.flatnonzero((log.mu < -2).ravel())
    at = np.random.default_rng(SEED).choice(rare, tokens, replace=False)
    log.pi.ravel()[at] = value
    return log


ROUNDED = {
    "float32, logits from 8 on": -8 * 2.0**-23,
    "float32, logits from 16 on": -(2.0**-19),
    "float32 next to 1": float(np.log1p(-(2.0**-24))),
    "above 0": 2.0**-20,
    "bfloat16 next to 1": float(np.log1p(-(2.0**-8))),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_values_a_rounding_below_zero_are_no_fill_however_many_share_them(tmp_path, name):
    value = ROUNDED[name]
    assert abs(value) < NEAR_ZERO
    found = told(with_value(value), tmp_path).findings
    assert not [f for f in found if "log-prob is exactly" in f.fault]


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, -100.0, -11.5129, -0.01])
def test_a_fill_value_on_the_same_tokens_is_found(tmp_path, value):
    found = told(with_value(value), tmp_path).findings
    assert [f for f in found if f"exactly {value:g}" in f.fault]


def test_rounded_values_do_not_crowd_out_a_fill(tmp_path):
    log = with_value(-100.0)
    assert log.pi is not None
    sure = np.flatnonzero(log.mu.ravel() > -0.01)
    for k in range(8):
        log.pi.ravel()[sure[20 * k : 20 * k + 20]] = -(k + 1) * 2.0**-20
    assert [f for f in told(log, tmp_path).findings if "exactly -100" in f.fault]
