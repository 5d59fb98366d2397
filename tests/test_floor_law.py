"""The noise floor: propagated covariance against simulated runs of the sampled policy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tolerances import MONTE_CARLO_Z, algebra, library

from theory.floor import (
    deviation_in_floors,
    early_floor,
    floor_path,
    in_floors,
    measured_floor,
    noise_floor,
    update_covariance,
)

A = np.array([1.0, 0.5, 0.0, -0.5, -1.0])


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def simulate(rng, lr: float, steps: int, batch: int, runs: int) -> np.ndarray:
    """Final policies of independent on-policy runs with sampled batches and the true baseline."""
    z = np.zeros((runs, len(A)))
    for _ in range(steps):
        p = softmax(z)
        drawn = rng.multinomial(batch, p) / batch
        at = A - (p @ A)[:, None]
        z = z + lr * (drawn * at - (drawn * at).sum(-1, keepdims=True) * p)
    return softmax(z)


@pytest.mark.parametrize(
    ("lr", "steps", "batch", "propagated", "crude", "simulated"),
    [
        (0.05, 10, 32, 4.711e-5, 4.688e-5, 4.734e-5),
        (0.05, 40, 32, 2.019e-4, 1.875e-4, 2.031e-4),
        (0.05, 40, 128, 5.05e-5, 4.69e-5, 5.16e-5),
        (0.2, 20, 64, 8.687e-4, 7.500e-4, 8.755e-4),
        (0.4, 40, 64, 5.652e-4, 6.0e-3, 5.611e-4),
    ],
)
def test_floors_are_those_of_the_table(lr, steps, batch, propagated, crude, simulated):
    path = floor_path(np.zeros(5), A, lr=lr, steps=steps, batch=batch)
    assert path.floor[-1] == pytest.approx(propagated, rel=1e-3)
    assert early_floor(np.full(5, 0.2), A, lr=lr, steps=steps, batch=batch) == pytest.approx(
        crude, rel=1.1e-3
    )
    # theory's own simulation of 2e4 runs; its difference from the law was at most 2.2%
    assert path.floor[-1] == pytest.approx(simulated, rel=0.025)


@pytest.mark.parametrize(("lr", "steps", "batch"), [(0.05, 10, 32), (0.4, 40, 64)])
def test_the_propagated_floor_is_the_kl_between_sampled_runs(rng, lr, steps, batch):
    policies = simulate(rng, lr, steps, batch, runs=6000)
    p, q = policies[:3000], policies[3000:]
    kl = (p * np.log(p / q)).sum(-1)
    stderr = kl.std() / math.sqrt(len(kl))
    law = floor_path(np.zeros(5), A, lr=lr, steps=steps, batch=batch).floor[-1]
    print(f"law {law:.4g}, simulated {kl.mean():.4g} +- {stderr:.2g}")
    # third order of the spread is the law's own error: 2% in theory's table
    assert kl.mean() == pytest.approx(law, abs=MONTE_CARLO_Z * stderr + 0.02 * law)


def test_the_covariance_of_one_update_is_that_of_enumeration_and_of_draws(rng):
    p = softmax(rng.normal(size=5))
    at = A - p @ A
    each = at[:, None] * (np.eye(5) - p)
    mean = p @ each
    want = (p[:, None, None] * (each[:, :, None] * each[:, None, :])).sum(0) - np.outer(mean, mean)
    np.testing.assert_allclose(update_covariance(p, A), want, atol=algebra(1.0))
    drawn = each[rng.choice(5, size=100_000, p=p)]
    np.testing.assert_allclose(np.cov(drawn.T), want, atol=MONTE_CARLO_Z / math.sqrt(100_000))


def test_the_floor_falls_with_the_batch_and_starts_at_zero():
    small, large = (floor_path(np.zeros(5), A, lr=0.05, steps=20, batch=b) for b in (16, 64))
    np.testing.assert_allclose(small.floor[1:] / large.floor[1:], 4, rtol=1e2 * algebra(1.0))
    assert small.floor[0] == 0
    assert small.logits.shape == (21, 5)
    assert small.covariance.shape == (21, 5, 5)
    with pytest.raises(ValueError, match="batch must be"):
        floor_path(np.zeros(5), A, lr=0.05, steps=20, batch=0)


def test_the_early_floor_is_the_first_step_of_the_propagated_one():
    path = floor_path(np.zeros(5), A, lr=1e-3, steps=5, batch=8)
    crude = early_floor(np.full(5, 0.2), A, lr=1e-3, steps=5, batch=8)
    assert path.floor[-1] == pytest.approx(crude, rel=5e-3)


def test_a_deviation_in_floors_is_one_on_policy_and_the_expected_kl_otherwise(rng):
    p = softmax(rng.normal(size=4))
    z = np.log(p)
    cov = 1e-4 * np.eye(4)
    floor = noise_floor(p, cov)
    assert deviation_in_floors(np.zeros(4), p, floor) == 1
    offset = 0.02 * rng.normal(size=4)
    # runs of a method: the same spread twice as large in variance, displaced by the offset
    n = 40_000
    on = softmax(z + 1e-2 * rng.normal(size=(n, 4)))
    method = softmax(z + offset + math.sqrt(2) * 1e-2 * rng.normal(size=(n, 4)))
    kl = (method * np.log(method / on)).sum(-1)
    stderr = kl.std() / math.sqrt(n) / floor
    law = deviation_in_floors(offset, p, floor, variance_ratio=2.0)
    print(f"law {law:.4g}, simulated {kl.mean() / floor:.4g} +- {stderr:.2g}")
    assert kl.mean() / floor == pytest.approx(law, abs=MONTE_CARLO_Z * stderr + 0.02 * law)


def test_the_measured_floor_is_the_mean_over_ordered_pairs(rng):
    for runs in (2, 3, 6):
        among = rng.uniform(0.1, 2.0, size=(4, 5, runs, runs)) * (1 - np.eye(runs))
        pairs = [among[..., i, j] for i, j in itertools.permutations(range(runs), 2)]
        got = measured_floor(among)
        assert got.shape == (4, 5)
        np.testing.assert_allclose(got, np.mean(pairs, axis=0), atol=algebra(among.sum((-2, -1)).max()))
        distance = rng.uniform(0.1, 2.0, size=(4, 5, 3, runs))
        expected = distance.mean((-2, -1)) / np.mean(pairs, axis=0)
        np.testing.assert_allclose(in_floors(distance, among), expected, rtol=library())


def test_one_on_policy_run_makes_no_floor():
    for measure in (measured_floor, lambda among: in_floors(np.ones((3, 1)), among)):
        with pytest.raises(ValueError, match="at least 2 on-policy runs, got 1; run more seeds"):
            measure(np.zeros((1, 1)))
