"""The forecast of the crossing: its filter against dense conditioning, its interval on simulated runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from tolerances import MONTE_CARLO_Z

from theory.crossing import crossing_step, extrapolated, first_below
from theory.forecast import (
    READING_ERROR,
    RELAXATION,
    START_SLOPE,
    START_SPREAD,
    WANDERING,
    _Filter,
    _first_passage,
    _follow,
    forecast,
)

LN2 = math.log(2)


def condition(x: np.ndarray, lag: np.ndarray, model: np.ndarray):
    """Mean and covariance of (x, slope) at the last lag, and the evidence, by one dense Gaussian.

    State at each lag is a linear map of independent normals: the start, and the shocks of each interval.
    """
    kappa, tau, error = model
    n = len(x)
    noise = 2 + 2 * (n - 1)
    mean, maps = np.array([x[0], START_SLOPE]), np.zeros((2, noise))
    maps[0, 0], maps[1, 1] = error, START_SPREAD
    means, all_maps = [mean], [maps]
    for i, du in enumerate(np.diff(np.log(lag))):
        decay = math.exp(-kappa * du)
        move = np.array([[1, du], [0, decay]])
        mean = move @ mean + np.array([0, 1 - decay])
        maps = move @ maps
        shock = tau**2 * np.array([[du**3 / 3, du**2 / 2], [du**2 / 2, du]])
        maps[:, 2 + 2 * i : 4 + 2 * i] = np.linalg.cholesky(shock)
        means.append(mean)
        all_maps.append(maps)
    read = np.array([m[0] for m in all_maps[1:]])
    cov = read @ read.T + error**2 * np.eye(n - 1)
    surprise = x[1:] - np.array([m[0] for m in means[1:]])
    cross = all_maps[-1] @ read.T
    post_mean = means[-1] + cross @ np.linalg.solve(cov, surprise)
    post_cov = all_maps[-1] @ all_maps[-1].T - cross @ np.linalg.solve(cov, cross.T)
    evidence = -0.5 * (np.linalg.slogdet(cov)[1] + surprise @ np.linalg.solve(cov, surprise))
    return post_mean, post_cov, evidence


def test_the_filter_is_the_dense_gaussian_it_stands_for(rng):
    lag = np.array([1.0, 2, 3, 5, 8])
    x = np.log(0.01 * lag**1.8) + 0.05 * rng.normal(size=5)
    models = np.array([[0.5, 0.5, 0.05], [1.0, 2.0, 0.2], [0.0, 1.0, 0.1]])
    state = _follow(x, lag, models)
    for g, model in enumerate(models):
        mean, cov, evidence = condition(x, lag, model)
        np.testing.assert_allclose(state.mean[g], mean, rtol=1e-9)
        np.testing.assert_allclose(state.cov[g], cov, rtol=1e-7, atol=1e-12)
        assert state.log_weight[g] == pytest.approx(evidence, rel=1e-9)


def test_without_any_noise_the_paths_follow_the_growth_law():
    """Slope 2, no relaxation: y = c^2 k^2 crosses where the linear lag does."""
    lag = np.arange(1.0, 5)
    models = np.array([[0.0, 0.0, 1e-6]])
    state = _follow(np.log((0.06 * lag) ** 2), lag, models)
    state = state._replace(mean=np.array([[2 * math.log(0.06 * 4), 2.0]]), cov=np.zeros((1, 2, 2)))
    crossing = _first_passage(state, models, 4.0, math.log(LN2), 20.0, 50, 0)
    assert set(crossing) == {math.ceil(crossing_step(LN2, drift=0.06))}


def test_the_second_step_of_a_path_has_the_spread_its_slope_was_given():
    """The first step is known; the slope it leaves has tau^2 du of variance, and the second step shows it."""
    models = np.array([[0.5, 1.5, 0.1]])
    state = _Filter(np.zeros(1), np.array([[-2.0, 1.8]]), np.zeros((1, 2, 2)))
    first, second = math.log(5 / 4), math.log(6 / 5)
    x = -2.0 + first * 1.8
    slope, spread = 1 + math.exp(-0.5 * first) * 0.8, 1.5 * math.sqrt(first)
    target = x + second * (slope + 0.4 * spread)
    crossing = _first_passage(state, models, 4.0, target, 1.5, 20_000, 0)
    want = stats.norm.sf(0.4)
    assert np.mean(crossing == 6.0) == pytest.approx(want, abs=MONTE_CARLO_Z * math.sqrt(0.25 / 20_000))
    assert set(crossing) == {6.0, math.inf}


@pytest.mark.parametrize(("weight", "crossed"), [([0.0, -1e3], 4.0), ([-1e3, 0.0], math.inf)])
def test_paths_are_drawn_from_the_models_that_explain_the_readings(weight, crossed):
    """Of the first model all have crossed already, of the second none ever does."""
    models = np.array([[0.5, 1e-6, 0.1]] * 2)
    state = _Filter(np.array(weight), np.array([[1.0, 1.0], [-50.0, 1.0]]), np.zeros((2, 2, 2)))
    assert set(_first_passage(state, models, 4.0, 0.0, 2.0, 100, 0)) == {crossed}


def test_the_bounds_leave_half_of_the_rest_on_either_side():
    ess, grid = np.exp(-((0.08 * np.arange(1, 6)) ** 2)), (RELAXATION, WANDERING, READING_ERROR)
    models = np.array(list(itertools.product(*grid)))
    lag = np.arange(1.0, 6)
    state = _follow(np.log(-np.log(ess)), lag, models)
    crossing = _first_passage(state, models, 5.0, math.log(LN2), 20.0, 2000, 0)
    for level in (0.5, 0.8, 0.9):
        got = forecast(ess, level=level)
        assert np.mean(crossing < got.low) <= (1 - level) / 2 <= np.mean(crossing <= got.low) + 1 / 2000
        assert np.mean(crossing > got.high) <= (1 - level) / 2 + 1 / 2000
        assert np.mean(crossing >= got.high) >= (1 - level) / 2


def test_a_reading_next_to_the_threshold_may_have_crossed_it_already():
    got = forecast([0.9, 0.7, 0.505])
    assert got.low == got.at == 3.0


def simulated_run(rng: np.random.Generator, drift: float, diffusion: float, steps: int, draws: int):
    """Gaussian lag that drifts and diffuses in 20 directions: its exact ESS, and that of sampled batches."""
    direction = rng.normal(size=20)
    direction /= np.linalg.norm(direction)
    moves = drift * direction + diffusion / math.sqrt(20) * rng.normal(size=(steps, 20))
    variance = (np.cumsum(moves, axis=0) ** 2).sum(axis=-1)
    x = rng.normal(size=(steps, draws)) * np.sqrt(variance)[:, None]
    w = np.exp(x - variance[:, None] / 2)
    return np.exp(-variance), w.sum(-1) ** 2 / (draws * (w**2).sum(-1))


def test_the_interval_covers_the_crossing_of_runs_with_drift_and_diffusion(rng):
    hits, near, made = 0, 0, 0
    for run in range(80):
        drift, diffusion = rng.uniform(0.02, 0.08), rng.uniform(0.0, 0.06)
        exact, sampled = simulated_run(rng, drift, diffusion, steps=120, draws=2000)
        crossing = first_below(exact)
        at = first_below(sampled, 0.75)
        if not math.isfinite(crossing) or not 2 < at < crossing:
            continue
        made += 1
        got = forecast(sampled[: int(at)], seed=run, paths=500)
        hits += got.low <= crossing <= got.high
        near += abs(got.step - crossing) <= 0.25 * crossing
    print(f"{made} forecasts: {hits / made:.2f} covered, {near / made:.2f} within a quarter")
    assert made > 55
    assert hits / made > 0.9 - MONTE_CARLO_Z * math.sqrt(0.09 / made)
    assert near / made > 0.8


def test_the_forecast_hands_over_to_the_growth_it_sees_where_a_fixed_square_law_is_wrong():
    """Pure diffusion: y grows like k. The fitted square law crosses far too early."""
    k = np.arange(1, 13)
    y = 0.02 * k
    crossing = math.ceil(LN2 / 0.02)
    got = forecast(np.exp(-y))
    square = first_below(extrapolated(y, fit=12, horizon=200))
    assert square < 0.6 * crossing
    assert abs(got.step - crossing) < 0.5 * abs(square - crossing)
    assert got.low <= crossing <= got.high


def test_the_interval_narrows_as_the_crossing_comes_near():
    y = (0.05 * np.arange(1, 17)) ** 2
    early, late = forecast(np.exp(-y[:5])), forecast(np.exp(-y[:14]))
    assert late.high - late.low < (early.high - early.low) / 3
    assert late.low <= 17 <= late.high
    assert (early.at, late.at) == (5, 14)
    wide = forecast(np.exp(-y[:5]), level=0.98)
    assert wide.low <= early.low <= early.high <= wide.high


def test_a_crossing_that_was_seen_is_reported_and_a_far_one_lies_beyond_the_horizon():
    assert forecast([0.9, 0.45, 0.3])[:3] == (2, 2, 2)
    assert forecast([0.9, 0.45, 0.3], lag=[4, 8, 12]).step == 8
    far = forecast(np.exp(-1e-5 * np.arange(1, 6)))
    assert far.step == math.inf
    assert forecast([0.97, 0.93, 0.88], threshold=0.9).step == 3


def test_only_the_steps_since_the_last_sync_count_and_unmeasured_ones_are_skipped():
    y = (0.06 * np.arange(1, 7)) ** 2
    fresh = forecast(np.exp(-y))
    assert forecast(np.exp(-np.concatenate([[0.5, 0.6], y])), lag=[7, 8, 1, 2, 3, 4, 5, 6]) == fresh
    twice = np.exp(-np.concatenate([[0.1, 0.5, 0.6], y]))
    assert forecast(twice, lag=[3, 1, 2, 1, 2, 3, 4, 5, 6]) == fresh
    assert forecast(twice, lag=[1, 1, 1, 1, 2, 3, 4, 5, 6]) == fresh, "a sync after each of the first"
    holes = np.exp(-y)
    holes[2] = math.nan
    got = forecast(holes)
    assert got.at == 6
    assert got.low <= fresh.step <= got.high
    assert math.isnan(forecast([1.0, 1.0]).step)
    assert math.isnan(forecast([]).step)
    assert math.isnan(forecast([math.nan]).at) is False


def test_the_same_seed_gives_the_same_forecast_and_shapes_must_match():
    y = np.exp(-((0.06 * np.arange(1, 7)) ** 2))
    assert forecast(y, seed=4) == forecast(y, seed=4)
    with pytest.raises(ValueError, match="one lag per step"):
        forecast(y, lag=[1, 2])


def test_an_ess_of_zero_is_beyond_every_threshold():
    assert forecast([0.9, 0.8, 0.0]) == forecast([0.9, 0.8, 1e-300])
    assert forecast([0.9, 0.8, 0.0]).step == 3.0
    assert math.isfinite(forecast([0.9, 0.0, 0.8]).low)


def test_a_horizon_lies_at_or_beyond_the_lag_that_was_seen():
    with pytest.raises(ValueError, match=r"horizon must be finite and >= 1, got 0\.5"):
        forecast([0.9, 0.8], horizon=0.5)
    assert forecast([0.9, 0.8], horizon=1).step == math.inf


@pytest.mark.parametrize(
    ("ess", "lag", "message"),
    [
        ([0.9, -0.1], None, "an ESS is a share, got -0.1"),
        ([0.9, math.inf], None, "an ESS is a share, got inf"),
        ([0.9, 0.8], [1, math.inf], "a lag is a number of updates, got inf"),
        ([0.9, 0.8], [1, math.nan], "a lag is a number of updates, got nan"),
        (["a"], None, "ESS readings are real numbers, got <U1"),
        ([[0.9], [0.8, 0.7]], None, "ESS readings are an array of numbers"),
        ([0.9 + 1j], None, "ESS readings are real numbers, got complex128"),
    ],
)
def test_what_is_no_reading_is_refused(ess, lag, message):
    with pytest.raises(ValueError, match=message):
        forecast(ess, lag=lag)


def test_tensors_on_the_graph_are_read():
    torch = pytest.importorskip("torch")
    ess = torch.tensor([0.9, 0.8, 0.7], requires_grad=True)
    assert forecast(ess) == forecast(ess.detach().numpy().astype(np.float64))


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e300])
def test_a_forecast_at_a_large_lag_takes_no_step_for_each_update(scale):
    """Drift with the lag in other units: the law only knows ratios of lags, so the answer scales."""
    lag = np.array([100.0, 200, 300, 400])
    ess = np.exp(-LN2 * (lag / 800) ** 2)
    small, large = forecast(ess, lag=lag, paths=4000), forecast(ess, lag=scale * lag, paths=4000)
    for name in ("step", "low", "high"):
        assert getattr(large, name) / scale == pytest.approx(getattr(small, name), rel=0.05)
