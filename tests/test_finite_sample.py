"""The sample ESS: its bias and spread against simulation, its interval's coverage, the missing mass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tolerances import MONTE_CARLO_Z, algebra, library

from theory.ess import ess_fraction
from theory.families import laplace
from theory.finite_sample import (
    ess_bias,
    ess_interval,
    gaussian_ess_bias,
    log_ess_variance,
    missing_mass,
    numbered,
)

LN2 = math.log(2)


def gaussian(rng, shape) -> np.ndarray:
    """Log ratios of mean ratio one whose ESS is 1/2."""
    return rng.normal(size=shape) * math.sqrt(LN2) - LN2 / 2


def test_the_bias_at_one_half_of_a_gaussian_is_five_over_n():
    assert gaussian_ess_bias(LN2, 1) == pytest.approx(5, rel=1e2 * algebra(1.0))
    assert 0.5 + gaussian_ess_bias(LN2, 256) == pytest.approx(0.5195, abs=5.1e-5)
    assert ess_bias(1.0, 1.0, 1.0, 10) == 0  # a constant ratio has none
    with pytest.raises(ValueError, match="at least one draw"):
        gaussian_ess_bias(LN2, 0)


def test_the_bias_is_what_repeated_samples_show(rng):
    n, repeats = 1024, 3000
    ess = ess_fraction(gaussian(rng, (repeats, n)))
    stderr = ess.std() / math.sqrt(repeats)
    print(f"mean {ess.mean():.5f} +- {stderr:.1g}, law {0.5 + gaussian_ess_bias(LN2, n):.5f}")
    # the next order of the expansion is (5/n)^2 times a constant of order ten
    assert ess.mean() == pytest.approx(0.5 + 5 / n, abs=MONTE_CARLO_Z * stderr + 10 * (5 / n) ** 2)
    assert ess.mean() - 0.5 > MONTE_CARLO_Z * stderr


def test_the_spread_is_what_repeated_samples_show_at_a_thousand_draws_and_too_small_below(rng):
    variance = log_ess_variance(2.0, 8.0, 64.0)  # moments of w at ESS 1/2
    small, large = (np.log(ess_fraction(gaussian(rng, (2000, n)))).std() for n in (256, 4096))
    assert large == pytest.approx(math.sqrt(variance / 4096), rel=0.15)
    # theory: sd of ESS^ .059 at 256 draws, where the plug-in promise was .093
    assert 0.5 * small == pytest.approx(0.059, abs=0.006)


def test_a_heavy_tail_makes_the_sample_ess_read_high_and_slowly_less_so(rng):
    b2 = math.sqrt(10) - 3
    assert laplace().ess(2 * b2) == pytest.approx(0.5, rel=1e-12)
    means = [ess_fraction(rng.laplace(size=(400, n)) * math.sqrt(b2)).mean() for n in (64, 1024, 16384)]
    for mean, printed in zip(means, (0.673, 0.582, 0.537), strict=True):
        assert mean == pytest.approx(printed, abs=0.02)
    assert means[0] > means[1] > means[2] > 0.5


def test_the_cluster_interval_covers_the_truth_when_tokens_of_a_group_move_together(rng):
    """Half of the variance is shared by a group of 20: intervals over tokens would be too narrow."""
    groups, size, repeats = 96, 20, 120
    group = np.repeat(np.arange(groups), size)
    hits = naive = 0
    for seed in range(repeats):
        shared = np.repeat(rng.normal(size=groups), size)
        x = math.sqrt(0.15) * (shared + rng.normal(size=shared.size)) - 0.15
        got = ess_interval(x, group, resamples=200, seed=seed)
        own = ess_interval(x, resamples=200, seed=seed)
        hits += got.low <= math.exp(-0.3) <= got.high
        naive += own.low <= math.exp(-0.3) <= own.high
    print(f"coverage {hits / repeats:.2f} clustered, {naive / repeats:.2f} not")
    # 95% less what a skewed estimator of 96 groups loses; 4 standard errors below .91 is .81
    assert hits / repeats > 0.81
    assert naive / repeats < hits / repeats - 0.15


def test_the_interval_is_repeatable_scale_free_and_holds_its_estimate(rng):
    x = gaussian(rng, 2000)
    group = np.arange(2000) // 50
    got = ess_interval(x, group, seed=3)
    assert got == ess_interval(x, group, seed=3)
    shifted = ess_interval(x + 700, group, seed=3)
    np.testing.assert_allclose(shifted[:3], got[:3], rtol=1e3 * algebra(1.0))
    assert got.low < got.ess < got.high
    assert got.ess == ess_fraction(x)
    assert got.clusters == 40
    renamed = ess_interval(x, np.array([f"prompt {g}" for g in group]), seed=3)
    assert renamed.clusters == 40


def test_as_many_resamples_are_drawn_as_asked_for(rng):
    """One has no spread; of two the bounds are the linear quantiles."""
    x = rng.normal(size=50)
    one = ess_interval(x, resamples=1)
    assert one.low == one.high
    two = ess_interval(x, resamples=2, level=0.5)
    ends = ess_interval(x, resamples=2, level=1 - 1e-12)
    assert two.low == pytest.approx(ends.low + (ends.high - ends.low) / 4, rel=library())
    assert two.high == pytest.approx(ends.high - (ends.high - ends.low) / 4, rel=library())


def test_an_interval_of_one_group_or_of_nothing_is_unknown():
    one = ess_interval(np.array([0.1, 0.2]), np.array([7, 7]))
    assert one.clusters == 1
    assert math.isnan(one.low)
    assert one.ess == pytest.approx(ess_fraction(np.array([0.1, 0.2])))
    assert math.isnan(ess_interval(np.zeros(0)).ess)
    assert math.isnan(ess_interval(np.array([0.1, math.nan])).low)
    with pytest.raises(ValueError, match="one entry per draw"):
        ess_interval(np.zeros(3), np.zeros(2))


def test_an_interval_survives_resamples_without_any_weight():
    got = ess_interval(np.array([-np.inf, -np.inf, 0.0]), resamples=200)
    assert got.ess == pytest.approx(1 / 3)
    assert got.low == 0


def test_an_interval_of_an_infinite_ratio_or_of_no_resamples_is_not_made_up():
    got = ess_interval(np.array([math.inf, 0.0, 0.0, 0.0]))
    assert got.ess == pytest.approx(0.25)
    assert math.isnan(got.low)
    with pytest.raises(ValueError, match="level is a coverage strictly between 0 and 1, got 2"):
        ess_interval(np.zeros(3), level=2.0)
    with pytest.raises(ValueError, match="resamples must be >= 1, got 0"):
        ess_interval(np.zeros(3), resamples=0)


def test_a_mean_ratio_beyond_float64_is_infinite_and_its_error_unknown():
    for x in ([800.0, 0.0], [math.inf, 0.0]):
        got = missing_mass(np.array(x))
        assert got.value == -math.inf
        assert math.isnan(got.stderr)
    # the mean fits, its square does not
    assert missing_mass(np.array([705.0, 0.0])).stderr == math.inf
    assert math.isnan(missing_mass(np.array([math.nan, 0.0])).value)


def test_the_missing_mass_is_the_trainers_probability_where_the_sampler_has_none(rng):
    p_s = np.array([0.7, 0.3, 0.0])
    p = np.array([0.5, 0.2, 0.3])
    drawn = rng.choice(3, size=20_000, p=p_s)
    got = missing_mass(np.log(p[drawn] / p_s[drawn]))
    assert got.value == pytest.approx(0.3, abs=MONTE_CARLO_Z * got.stderr)
    assert got.stderr < 0.01
    assert ess_fraction(np.log(p[drawn] / p_s[drawn])) > 0.99  # scale-free: blind to it


def test_the_error_of_the_missing_mass_is_over_groups(rng):
    groups, size = 200, 16
    shared = rng.normal(size=groups) * 0.3
    x = np.repeat(shared, size)
    got = missing_mass(x, np.repeat(np.arange(groups), size))
    assert got.stderr == pytest.approx(np.exp(shared).std(ddof=1) / math.sqrt(groups), rel=1e-9)
    assert missing_mass(x).stderr == pytest.approx(got.stderr / math.sqrt(size), rel=0.01)


@pytest.mark.parametrize(
    ("group", "index", "count"),
    [
        ([0, 1, 1, 2, 0], [0, 1, 1, 2, 0], 3),
        ([0, 3, 3, 1, 0], [0, 2, 2, 1, 0], 3),
        ([7, 9, 9, 8, 7], [0, 2, 2, 1, 0], 3),
        ([-1, 0, 0, 1, -1], [0, 1, 1, 2, 0], 3),
        (["b", "a", "a", "c", "b"], [1, 0, 0, 2, 1], 3),
        ([], [], 0),
    ],
)
def test_groups_get_numbers_from_0_whatever_names_them(group, index, count):
    got, clusters = numbered(np.array(group))
    assert (got.tolist(), clusters) == (index, count)


def test_the_missing_mass_of_nothing_or_of_one_group_has_no_error():
    assert math.isnan(missing_mass(np.zeros(0)).value)
    alone = missing_mass(np.array([0.0, -0.1]), np.array([1, 1]))
    assert alone.value == pytest.approx(1 - (1 + math.exp(-0.1)) / 2)
    assert math.isnan(alone.stderr)
