"""The K+1 constants a token: full rows, top-K with a tail, and rows that have nothing to give."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from enumeration import Prefix, prefix, softmax
from formulas import CLIPS, clipped
from hypothesis import given
from hypothesis import strategies as st
from libraries import as_numpy, carry, compiled
from tolerances import algebra

from theory.arrays import log_expm1_neg, logsumexp
from theory.centering import Coefficients, coefficients, surrogate
from theory.corrections import CORRECTIONS, Correction, Logps, correction

SIZE = 12
CENTRED = {
    "sc": CORRECTIONS["sc"],
    "is-sc": CORRECTIONS["is-sc"],
    "dlc": CORRECTIONS["dlc"],
    "dlc clipped hard": correction("dlc", high=1.1),
    "dlc mask": correction("dlc", **CLIPS["mask"]),
    "dlc ppo": correction("dlc", **CLIPS["ppo"]),
    "dlc form-i": correction("dlc", center="form-i", high=1.1),
    "dlc numerics": correction("dlc", center="numerics", high=1.1),
    "total ratio": Correction(cite="-", ratio="total", center="matched", clip="truncate", high=1.1),
}


def far(seed: int) -> Prefix:
    """A prefix at which the clips above bind for many of its actions."""
    return prefix(np.random.default_rng(seed), SIZE, error=0.8, lag=1.2)


def logit_gradient(c: Coefficients, pi: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(K, V): for each sampled action, the gradient in all logits of the surrogate with columns `ids`."""
    score = np.eye(len(pi)) - pi
    out = np.asarray(c.token)[:, None] * score
    return out if c.row is None else out + np.asarray(c.row) @ score[ids]


def columns(logs: Logps, ids: np.ndarray, size: int) -> Logps:
    """The row of the engine at columns `ids`, for each of `size` sampled tokens."""
    return Logps(*(np.broadcast_to(x[ids], (size, len(ids))) for x in logs if x is not None))


def outside(logs: Logps, ids: np.ndarray, size: int) -> Logps:
    """Log of the mass outside the columns, summed exactly over what is there."""
    rest = np.setdiff1d(np.arange(size), ids)
    return Logps(*(np.broadcast_to(logsumexp(x[rest]), (size,)) for x in logs if x is not None))


def top(at: Prefix, k: int) -> np.ndarray:
    """The engine's K likeliest actions, in the order an engine reports them."""
    return np.argsort(-at.mu)[:k]


def with_restricted_tail(rule: Correction, at: Prefix, ids: np.ndarray) -> np.ndarray:
    """Explicit rows (V, V) over all actions, the tail sharing ONE clipped ratio and the trainer's shape."""
    rest = np.setdiff1d(np.arange(SIZE), ids)
    mass = {name: getattr(at, name)[rest].sum() for name in ("mu", "pi_s", "pi", "pi_old")}
    out = np.zeros((SIZE, SIZE))

    def ratio(name: str, of: dict[str, Any]) -> float:
        reference = {"none": of["pi"], "lag": of["pi_s"], "total": of["mu"], "batch": of["pi_old"]}[name]
        return of["pi"] / reference

    def weight(of: dict[str, Any], gain: float) -> float:
        return clipped(rule, ratio(rule.ratio, of), ratio(rule.clip_on or rule.ratio, of), gain)

    def at_action(b: int) -> dict[str, Any]:
        return {name: getattr(at, name)[b] for name in mass}

    for a in range(SIZE):
        gain = at.advantage[a]
        measure = at.mu - at.pi_s if rule.center == "numerics" else at.mu
        q = np.array([measure[b] * weight(at_action(b), gain) for b in range(SIZE)])
        if rest.size:
            q[rest] = measure[rest].sum() * weight(mass, gain) * at.pi[rest] / mass["pi"]
        wc = weight(at_action(a), gain)
        if rule.center == "matched":
            q = q * wc / q.sum() if q.sum() > 0 else 0 * q
        out[a] = gain * (wc * (np.eye(SIZE)[a] - at.pi) - (q - q.sum() * at.pi))
    return out


@pytest.mark.parametrize("name", CENTRED)
def test_all_columns_equal_the_full_row(name):
    """K = V in the engine's order, with nothing outside, is the full row."""
    rule = CENTRED[name]
    for seed in range(5):
        at = far(seed)
        everything, by_rank = np.arange(SIZE), top(at, SIZE)
        full = coefficients(rule, at.logs, at.advantage, row=columns(at.logs, everything, SIZE))
        nothing = Logps(*(np.full(SIZE, -np.inf) for _ in range(4)))
        ranked = coefficients(
            rule, at.logs, at.advantage, row=columns(at.logs, by_rank, SIZE), log_tail=nothing
        )
        expected = logit_gradient(full, at.pi, everything)
        np.testing.assert_allclose(
            logit_gradient(ranked, at.pi, by_rank), expected, rtol=0, atol=algebra(expected, 1.0)
        )
        np.testing.assert_allclose(
            expected, with_restricted_tail(rule, at, everything), rtol=0, atol=algebra(expected, 1.0)
        )


@pytest.mark.parametrize("k", [1, 4, 9, SIZE - 1])
@pytest.mark.parametrize("name", CENTRED)
def test_top_k_and_a_tail_equal_the_explicit_row_with_the_restricted_tail(name, k):
    """For actions inside the columns and outside, with the clip of the tail binding or not."""
    rule = CENTRED[name]
    for seed in range(5):
        at = far(seed)
        ids = top(at, k)
        got = coefficients(
            rule,
            at.logs,
            at.advantage,
            row=columns(at.logs, ids, SIZE),
            log_tail=outside(at.logs, ids, SIZE),
        )
        expected = with_restricted_tail(rule, at, ids)
        # the tail folds in as tail * pi_k / pi(outside), which cancels down to tail * pi_k
        folded = 1 / at.pi[np.setdiff1d(np.arange(SIZE), ids)].sum()
        np.testing.assert_allclose(
            logit_gradient(got, at.pi, ids), expected, rtol=0, atol=algebra(expected, 1.0, folded)
        )


def test_the_tails_of_these_tests_are_clipped_and_its_actions_sampled():
    """Otherwise the test above would say nothing about them."""
    tail_ratio = []
    for seed in range(5):
        at = far(seed)
        rest = np.setdiff1d(np.arange(SIZE), top(at, 4))
        tail_ratio.append(at.pi[rest].sum() / at.pi_s[rest].sum())
    assert min(tail_ratio) < 1.1 < max(tail_ratio)


def test_the_tail_of_score_centring_is_the_trainers_shape_times_the_engines_mass():
    """c_k = A (s pi_k - mu_k), s = t/(1 - pi(K)): by hand on three actions and one column."""
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.36, 0.24])
    logs = Logps(np.log(mu[:1]), np.log(pi[:1]), np.log(pi[:1]))
    row = Logps(*(x[:, None] for x in logs if x is not None))
    tail = Logps(np.log([0.5]), np.log([0.6]), np.log([0.6]))
    got = coefficients(CORRECTIONS["sc"], logs, np.array([2.0]), row=row, log_tail=tail)
    np.testing.assert_allclose(got.token, [2.0], rtol=0)
    assert got.row is not None
    np.testing.assert_allclose(got.row, [[2.0 * (0.5 / 0.6 * 0.4 - 0.5)]], rtol=algebra(1.0))


@pytest.mark.parametrize("name", CENTRED)
def test_an_action_the_engine_cannot_sample_has_no_part_in_the_centre(xp, name):
    """Top-p leaves mu = 0, log -inf: no NaN, no warning, and the same constants as without the column."""
    at = far(0)
    mu = at.mu.copy()
    mu[[2, 5]] = 0
    at = at._replace(mu=mu / mu.sum())
    live = np.flatnonzero(at.mu)

    def constants(ids: np.ndarray) -> Coefficients:
        token = Logps(*(carry(xp, x[live]) for x in at.logs))
        row = Logps(*(carry(xp, x) for x in columns(at.logs, ids, len(live))))
        run = compiled(xp, coefficients, 0)
        return run(CENTRED[name], token, carry(xp, at.advantage[live]), row=row)

    with_it, without = constants(np.arange(SIZE)), constants(live)
    assert np.isfinite(as_numpy(with_it.row)).all()
    np.testing.assert_allclose(as_numpy(with_it.token), as_numpy(without.token), rtol=algebra(1.0))
    if CENTRED[name].center != "numerics":  # whose measure mu - pi_s does reach such an action
        dropped = as_numpy(with_it.row)[:, [2, 5]]
        np.testing.assert_array_equal(dropped, 0)
        off = algebra(as_numpy(without.row), 1.0)
        np.testing.assert_allclose(as_numpy(with_it.row)[:, live], as_numpy(without.row), rtol=0, atol=off)


def test_a_column_nobody_can_reach_adds_nothing(xp):
    """A vocabulary padded to a round size has log-probability -inf under every policy."""
    at = far(1)
    padded = Logps(*(np.append(x, -np.inf) for x in at.logs))
    row = Logps(*(carry(xp, x) for x in columns(padded, np.arange(SIZE + 1), SIZE)))
    token = Logps(*(carry(xp, x) for x in at.logs))
    for rule in CENTRED.values():
        c = compiled(xp, coefficients, 0)(rule, token, carry(xp, at.advantage), row=row)
        np.testing.assert_array_equal(as_numpy(c.row)[:, -1], 0)
        value = surrogate(c, token.pi, row.pi)
        assert np.isfinite(as_numpy(value)).all()


def test_a_mask_that_drops_the_whole_row_leaves_no_update(xp):
    """Z = 0: then wc_a is 0 as well, so there is nothing to centre and nothing to divide."""
    at = far(0)
    rule = Correction(cite="-", ratio="lag", clip="mask", low=1e6, high=1e7, center="matched")
    row = Logps(*(carry(xp, x) for x in columns(at.logs, np.arange(SIZE), SIZE)))
    token = Logps(*(carry(xp, x) for x in at.logs))
    tail = Logps(*(carry(xp, np.full(SIZE, -3.0)) for _ in range(4)))
    for log_tail in (None, tail):
        run = compiled(xp, coefficients, 0)
        got = run(rule, token, carry(xp, at.advantage), row=row, log_tail=log_tail)
        np.testing.assert_array_equal(as_numpy(got.token), 0)
        np.testing.assert_array_equal(as_numpy(got.row), 0)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_padding_gets_no_weight_whatever_stands_there(xp, name):
    rng = np.random.default_rng(0)
    mask = np.array([[True, True, False], [True, False, False]])
    rule = CORRECTIONS[name]

    def policy(junk: float) -> tuple[np.ndarray, np.ndarray]:
        z = rng.normal(size=(2, 3, 5))
        logp = np.log(softmax(z))
        return np.where(mask, logp[..., 1], junk), np.where(mask[..., None], logp, junk)

    def batch(junk: float) -> tuple[Logps, Logps, np.ndarray]:
        nonlocal rng
        rng = np.random.default_rng(0)
        policies = [policy(junk) for _ in range(4)]
        advantage = np.where(mask, rng.normal(size=(2, 3)), junk)
        return Logps(*(p[0] for p in policies)), Logps(*(p[1] for p in policies)), advantage

    results = []
    for junk in (math.nan, -1.0, -math.inf):
        token, row, advantage = batch(junk)
        c = compiled(xp, coefficients, 0)(
            rule,
            Logps(*(carry(xp, x) for x in token)),
            carry(xp, advantage),
            mask=xp.asarray(mask),
            row=Logps(*(carry(xp, x) for x in row)) if rule.centered else None,
        )
        assert not as_numpy(c.token)[~mask].any()
        value = as_numpy(surrogate(c, carry(xp, token.pi), carry(xp, row.pi)))
        assert not value[~mask].any()
        assert np.isfinite(value).all()
        results.append(value)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@given(shift=st.floats(-20, 20, allow_subnormal=False), seed=st.integers(0, 4))
def test_the_surrogate_is_the_weighted_sum_of_log_probs(shift, seed):
    rng = np.random.default_rng(seed)
    c = Coefficients(rng.normal(size=3), rng.normal(size=(3, 4)))
    logpi, row = rng.normal(size=3) + shift, rng.normal(size=(3, 4)) + shift
    expected = [c.token[i] * logpi[i] + c.row[i] @ row[i] for i in range(3)]  # pyright: ignore[reportOptionalSubscript]
    off = algebra(*(np.abs(row).sum(-1) * 3), logpi)
    np.testing.assert_allclose(surrogate(c, logpi, row), expected, rtol=0, atol=off)
    np.testing.assert_array_equal(surrogate(Coefficients(c.token, None), logpi), c.token * logpi)


def test_a_centred_correction_without_a_row_is_refused():
    at = far(0)
    for name in ("sc", "is-sc", "dlc"):
        with pytest.raises(ValueError, match="needs the sampler's row, got none; have the sampler return"):
            coefficients(CORRECTIONS[name], at.logs, at.advantage)


def test_an_uncentred_correction_ignores_the_row():
    at = far(0)
    row = columns(at.logs, np.arange(SIZE), SIZE)
    assert coefficients(CORRECTIONS["is"], at.logs, at.advantage, row=row).row is None


def test_the_numerics_centre_vanishes_for_an_exact_engine():
    at = far(0)
    exact = at._replace(mu=at.pi_s)
    row = columns(exact.logs, np.arange(SIZE), SIZE)
    rule = dataclasses.replace(CORRECTIONS["is-sc"], center="numerics")
    got = coefficients(rule, exact.logs, exact.advantage, row=row)
    np.testing.assert_array_equal(np.asarray(got.row), 0)


def test_the_tail_from_the_kept_mass_agrees_with_the_sum_outside():
    """An engine reports only its top-K: the mass outside is 1 minus what they hold, in logs."""
    at = far(3)
    ids = top(at, 4)
    summed_outside: Any = outside(at.logs, ids, SIZE)
    for x, summed in zip(at.logs, summed_outside, strict=True):
        kept = logsumexp(x[ids])
        assert log_expm1_neg(kept) == pytest.approx(summed[0], abs=algebra(1 / (1 - np.exp(kept))))
