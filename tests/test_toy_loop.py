"""The toy's loop: syncs, resyncs, seeds, minibatches, what is reported, what compiles and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tolerances import MONTE_CARLO_Z, algebra

from theory.corrections import CORRECTIONS, Correction, correction
from theory.cumulants import cumulants
from theory.decomposition import split
from theory.ess import ess_fraction, response_ess
from theory.experiment import Experiment, Numerics
from theory.feedback import centered_path
from theory.tail import k_hat
from toy import measure
from toy.loop import simulate
from toy.settings import STALE, Bandit, Sequence, bandit, setting_s
from toy.simulate import ensemble, run, sweep

SEEDS, STEPS = 3, 8
LAST = STEPS - 1


def tiny(name: str = "pg", *, environment=None, **changes) -> Experiment:
    """Small experiment; all that change no shape share one compilation."""
    rule = changes.pop("correction", None) or CORRECTIONS[name]
    environment = environment or Sequence(
        prompts=3, length=4, vocabulary=6, embedding=4, rank=4, beta=1.5, quantile=0.7
    )
    settings = {"lr": 4.0, "steps": STEPS, "samples": 16, "prompts": environment.prompts} | changes
    return Experiment(environment=environment, correction=rule, **settings)


def compilations() -> int:
    """Compiled versions of the loop in this process."""
    return simulate._cache_size()  # pyright: ignore[reportAttributeAccessIssue]


def runs(name: str = "pg", *, seeds: int = SEEDS, **changes):
    return ensemble(tiny(name, **changes), seeds=seeds, tokens=True, double=True)


def test_a_sampler_synced_every_step_holds_the_weights_of_the_step_before():
    e = runs()
    assert e.measures["synced"].all()
    assert not e.measures["resynced"].any()
    np.testing.assert_array_equal(e.theta_sampler[:, 1:], e.theta[:, :-1])
    assert not e.theta_sampler[:, 0].any()
    np.testing.assert_array_equal(e.measures["discrepancy_rms"], 0)


@pytest.mark.parametrize("name", ["is", "seq-is", "is-sc", "ppo", "mis", "m2po", "vcpo", "decoupled-ppo"])
def test_without_mismatch_every_ratio_is_one_and_corrections_are_policy_gradient(name):
    expected = runs("sc" if name == "is-sc" else "pg").theta
    # the same sums in another order, amplified by eight steps of lr 4
    np.testing.assert_allclose(runs(name).theta, expected, rtol=0, atol=1e3 * algebra(np.abs(expected).max()))


def test_schedule_syncs_every_so_many_steps():
    e = runs(sync_every=3)
    np.testing.assert_array_equal(e.measures["synced"][0], [1, 0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(e.theta_sampler[:, 3], e.theta[:, 2])
    np.testing.assert_array_equal(e.theta_sampler[:, 5], e.theta[:, 2])
    lag = np.linalg.norm((e.theta - e.theta_sampler).reshape(SEEDS, STEPS, -1), axis=-1)
    np.testing.assert_allclose(e.measures["lag_norm"], lag, rtol=algebra(10.0))
    before = np.concatenate([np.zeros_like(e.theta[:, :1]), e.theta[:, :-1]], axis=1)
    moved = np.linalg.norm((e.theta - before).reshape(SEEDS, STEPS, -1), axis=-1)
    np.testing.assert_allclose(e.measures["update_norm"], moved, rtol=algebra(10.0))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_resync_fires_after_exactly_the_steps_whose_ess_is_below_the_threshold(level):
    rule = correction("is", resync_below=0.7, resync_level=level)
    e = runs(correction=rule, sync_every=STALE)
    fired = e.measures["resynced"].astype(bool)
    assert fired.any()
    np.testing.assert_array_equal(fired, e.measures[f"ess_{level}"] < 0.7)
    np.testing.assert_array_equal(e.measures["synced"][:, 1:].astype(bool), fired[:, :-1])
    for s, k in zip(*np.nonzero(fired[:, :-1]), strict=True):
        np.testing.assert_array_equal(e.theta_sampler[s, k + 1], e.theta[s, k])


def test_stale_without_the_rule_never_syncs():
    e = runs("is", sync_every=STALE)
    assert e.measures["synced"][:, 0].all()
    assert not e.measures["synced"][:, 1:].any()
    assert not e.theta_sampler.any()


def test_the_same_seed_gives_the_same_runs_and_another_does_not():
    np.testing.assert_array_equal(runs(seed=5).theta, runs(seed=5).theta)
    assert (runs(seed=5).theta != runs(seed=6).theta).any()


def test_runs_of_an_ensemble_differ():
    theta = runs().theta
    assert (theta[0] != theta[1]).any()


def test_frozen_noise_is_one_engine_and_fresh_noise_another_each_step():
    frozen = runs(numerics=Numerics(kind="gaussian", scale=0.5), lr=0.0)
    fresh = runs(numerics=Numerics(kind="gaussian", scale=0.5, fresh=True), lr=0.0)

    def differences(e):
        """Discrepancy by drawn first token of prompt 0: with no training it is the noise's alone."""
        d = e.drawn["logmu"] - e.drawn["logpi_s"]
        return {
            (s, k, int(token)): value
            for s in range(SEEDS)
            for k in range(STEPS)
            for token, value in zip(e.drawn["token"][s, k, 0, :, 0], d[s, k, 0, :, 0], strict=True)
        }

    common = {}
    for (_, _, token), value in differences(frozen).items():
        assert value == pytest.approx(common.setdefault(token, value), abs=algebra(10.0))
    table = differences(fresh)
    pairs = [(table[0, 0, a], table[0, 1, a]) for a in range(6) if (0, 0, a) in table and (0, 1, a) in table]
    assert pairs
    assert all(abs(x - y) > 1e-3 for x, y in pairs)


def noised(e, s: int, k: int | slice) -> np.ndarray:
    """What the engine added to the logits of the drawn tokens' states, less its mean over the draws."""
    return e.drawn["logmu"][s, k] - e.drawn["logpi_s"][s, k]


def test_weight_noise_scales_what_the_sampler_holds_and_the_trainer_keeps_its_own():
    """One environment of one state: the noised initial logits follow from the reported log-probs."""
    environment = Bandit(prompts=1, arms=5, logits=((1.0, 0.5, 0.0, -0.5, 0.2),))

    def discrepancy(scale: float) -> np.ndarray:
        numerics = Numerics(kind="weight-noise", scale=scale)
        e = ensemble(
            tiny(environment=environment, numerics=numerics, lr=0.0, samples=64),
            seeds=1,
            tokens=True,
            double=True,
        )
        pairs = dict(zip(e.drawn["token"].ravel(), noised(e, 0, slice(None)).ravel(), strict=True))
        return np.array([pairs[a] for a in range(5)])

    one, two = discrepancy(0.2), discrepancy(0.4)
    # the noise is linear in the scale up to the log-normaliser, and relative: the logit 0 gets none
    np.testing.assert_allclose(np.diff(two), 2 * np.diff(one), rtol=0, atol=algebra(10.0))
    assert np.abs(np.diff(one)).min() > 1e-4
    np.testing.assert_array_equal(discrepancy(0.0), 0)


def test_frozen_weight_noise_is_one_engine_and_fresh_noise_another_at_each_sync():
    def tables(fresh: bool):
        numerics = Numerics(kind="weight-noise", scale=0.3, fresh=fresh)
        e = runs(numerics=numerics, lr=0.0, sync_every=4)
        out = []
        for k in range(STEPS):
            d = noised(e, 0, k)
            out.append(
                {(0, int(a)): x for a, x in zip(e.drawn["token"][0, k, 0, :, 0], d[0, :, 0], strict=True)}
            )
        return out

    def moved(one: dict, other: dict) -> float:
        return max(abs(one[key] - other[key]) for key in one.keys() & other.keys())

    frozen, fresh = tables(False), tables(True)
    assert all(moved(frozen[0], frozen[k]) < algebra(10.0) for k in range(STEPS))
    assert all(moved(fresh[0], fresh[k]) < algebra(10.0) for k in range(4))
    assert all(moved(fresh[0], fresh[k]) > 1e-3 for k in range(4, STEPS))


def test_weight_noise_grows_with_the_weights_it_is_relative_to():
    e = runs(numerics=Numerics(kind="weight-noise", scale=0.3), sync_every=1, lr=8.0)
    np.testing.assert_allclose(measure.exact_ess(e), e.measures["ess_exact"], rtol=1e-9)
    still = runs(numerics=Numerics(kind="weight-noise", scale=0.3), lr=0.0)
    assert not np.allclose(e.measures["discrepancy_rms"][:, LAST], still.measures["discrepancy_rms"][:, LAST])


def test_reported_statistics_are_those_of_the_drawn_tokens():
    e = runs("is", sync_every=STALE, numerics=Numerics(kind="laplace", scale=0.3))
    for s, k in ((0, 0), (2, LAST)):
        tokens = {name: values[s, k] for name, values in e.drawn.items()}
        got = {name: values[s, k] for name, values in e.measures.items()}
        d, lag = split(tokens["logmu"], tokens["logpi_s"], tokens["logpi"])
        log_w = -lag
        expected = {
            "ess_token": ess_fraction(log_w.reshape(-1)),
            "ess_sequence": response_ess(log_w.reshape(-1, log_w.shape[-1])),
            "ess_total": ess_fraction((tokens["logpi"] - tokens["logmu"]).reshape(-1)),
            "mean_w": np.exp(log_w).mean(),
            "discrepancy_rms": np.sqrt((d**2).mean()),
            "lag_rms": np.sqrt((lag**2).mean()),
            "k_hat": k_hat(log_w.reshape(-1)),
            "reward": tokens["reward"].mean(),
        } | cumulants(log_w.reshape(-1))._asdict()
        for name, value in expected.items():
            # fourth cumulants cancel two terms of their own size
            assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        group = tokens["reward"] - tokens["reward"].mean(-1, keepdims=True)
        np.testing.assert_allclose(tokens["advantage"], group, rtol=0, atol=algebra(1.0))


def test_exact_measures_agree_with_those_of_many_draws():
    e = runs("pg", sync_every=STALE, numerics=Numerics(kind="gaussian", scale=0.3), lr=1.0)
    # 192 tokens a step: the exact values lie within the scatter of 24 batches
    for exact, sampled in (("ess_exact", "ess_token"), ("kl_sampler", None)):
        per_run = e.measures[exact]
        if sampled is None:
            drawn = (e.drawn["logmu"] - e.drawn["logpi"]).mean((2, 3, 4))
        else:
            drawn = e.measures[sampled]
        gap = drawn - per_run
        z = gap.mean() / (gap.std(ddof=1) / np.sqrt(gap.size))
        assert abs(z) < 2 * MONTE_CARLO_Z, (exact, z)


def test_exact_ess_of_the_recorded_weights_is_that_of_the_run():
    e = runs("is", sync_every=STALE, numerics=Numerics(kind="laplace", scale=0.3))
    np.testing.assert_allclose(measure.exact_ess(e), e.measures["ess_exact"], rtol=1e-9)


def test_exact_ess_is_refused_where_the_noise_was_not_kept():
    fresh = tiny(numerics=Numerics(kind="gaussian", scale=0.3, fresh=True))
    e = ensemble(fresh, seeds=SEEDS, tokens=True, double=True)
    with pytest.raises(ValueError, match="fresh noise, which is not recorded"):
        measure.exact_ess(e)


def test_accuracy_and_off_support_are_those_of_the_recorded_weights():
    e = runs()
    np.testing.assert_allclose(measure.accuracy(e), e.measures["accuracy"], rtol=algebra(100.0))
    np.testing.assert_allclose(
        measure.off_support(e, steps=[STEPS])[:, 0], e.measures["off_support"][:, LAST]
    )


def test_ppo_before_the_batch_is_policy_gradient_only_while_a_batch_is_one_update():
    clipped, plain = (runs(name, minibatches=2, lr=8.0).theta for name in ("ppo", "pg"))
    assert np.abs(clipped - plain).max() > 1e-3
    # two updates of half a batch move further than one of the whole, but not in another direction
    whole = runs("pg", lr=8.0).theta[:, 0].reshape(SEEDS, -1)
    first = plain[:, 0].reshape(SEEDS, -1)
    cosine = (whole * first).sum(-1) / np.linalg.norm(whole, axis=-1) / np.linalg.norm(first, axis=-1)
    assert (cosine > 0.9).all()


def test_score_centring_under_a_stale_sampler_moves_at_constant_velocity():
    """The closed form of claim `feedback`: z_k = z_0 + lr k mu (A - mu.A), on average over runs."""
    rewards = (1.0, 0.4, -1.0, -0.2)
    logits = (-1.0, 1.2, 0.6, 0.0)
    environment = Bandit(prompts=1, arms=4, logits=(logits,), rewards=(rewards,))
    e = ensemble(
        tiny("sc", environment=environment, sync_every=STALE, samples=64, lr=0.5, baseline="none"),
        seeds=48,
        double=True,
    )
    path = centered_path(np.array(logits), np.array(rewards), lr=0.5, steps=STEPS)
    got = np.asarray(logits) + e.theta[:, :, 0]
    error = got.std(0, ddof=1) / np.sqrt(e.seeds)
    assert (np.abs(got.mean(0) - path[1:]) < MONTE_CARLO_Z * error).all()
    assert np.abs(path[-1] - path[0]).max() > 2 * MONTE_CARLO_Z * error.max()


def test_nothing_compiles_again_for_new_numbers_corrections_or_environments():
    runs()
    before = compilations()
    for name in CORRECTIONS:
        runs(name, sync_every=STALE)
    runs(lr=0.1, sync_every=2, seed=9, baseline="group-std", numerics=Numerics(kind="student-t", scale=0.2))
    runs(numerics=Numerics(kind="mantissa", mantissa_bits=2))
    runs(correction=correction("dlc", clip="mask", low=0.3, high=3.0, center="form-i", resync_below=0.2))
    runs(environment=dataclasses.replace(tiny().environment, seed=4, quantile=0.8, beta=2.0))
    assert compilations() == before


def test_traces_name_their_columns_and_carry_the_tokens_when_asked():
    e = runs("dlc", sync_every=2)
    assert len(e.traces) == SEEDS
    trace = e.traces[1]
    np.testing.assert_array_equal(trace.steps["step"], np.arange(1, STEPS + 1))
    np.testing.assert_array_equal(trace.steps["ess_token"], e.measures["ess_token"][1])
    assert len(trace.tokens["logmu"]) == STEPS * 3 * 16 * 4
    third = trace.sequences["step"] == 4
    assert set(trace.sequences["trainer_version"][third]) == {3}
    assert set(trace.sequences["sampler_version"][third]) == {2}
    assert trace.provenance_of("accuracy").kind == "measured"
    assert trace.provenance_of("seconds_train").kind == "not measured"


def test_one_seed_through_the_interface_of_both_engines_is_the_first_of_an_ensemble():
    seen = []
    trace = run(tiny(), on_step=seen.append, tokens=True, double=True)
    assert [record.step for record in seen] == list(range(1, STEPS + 1))
    assert seen[0].measures["ess_token"] == trace.steps["ess_token"][0]
    assert set(seen[0].sequences["group"]) == {0, 1, 2}
    # one row fewer or more in a matrix product changes the order of its sums
    np.testing.assert_allclose(trace.steps["kl_sampler"], runs().measures["kl_sampler"][0], rtol=1e-9)


def test_every_seed_and_step_of_an_ensemble_is_called_back():
    seen = []
    ensemble(tiny(), seeds=SEEDS, tokens=True, double=True, on_step=lambda s, r: seen.append((s, r.step)))
    assert seen == [(s, k) for s in range(SEEDS) for k in range(1, STEPS + 1)]


def test_sweep_keeps_the_order_of_its_cells():
    cells = [tiny(name, sync_every=STALE) for name in ("pg", "sc", "is")]
    done = []
    got = sweep(cells, seeds=SEEDS, tokens=True, double=True, on_done=lambda i, _: done.append(i))
    assert [e.experiment for e in got] == cells
    assert done == [0, 1, 2]
    np.testing.assert_array_equal(got[1].theta, runs("sc", sync_every=STALE).theta)


@pytest.mark.slow
def test_a_chain_remembering_its_last_token_learns_and_says_how_accuracy_was_measured():
    environment = dataclasses.replace(tiny().environment, memory="last")
    e = runs(environment=environment)
    trace = e.traces[0]
    assert trace.provenance_of("accuracy").kind == "approximated"
    assert e.measures["accuracy"][:, LAST].mean() > e.measures["accuracy"][:, 0].mean()


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (lambda: tiny(prompts=5), "prompts=5 with an environment of 3"),
        (lambda: tiny(minibatches=3), "16 samples in 3"),
        (lambda: tiny(numerics=Numerics(kind="fp8")), "got 'fp8'"),
        (
            lambda: dataclasses.replace(tiny(), environment=Numerics()),
            "got Numerics; an experiment of the real engine",
        ),
        (lambda: tiny(sync_every=0), "sync_every must be >= 1, got 0"),
        (lambda: tiny(correction=correction("pgg")), "unknown correction 'pgg'"),
        (
            lambda: Sequence(memory="none"),  # pyright: ignore[reportArgumentType]
            "unknown memory 'none'",
        ),
        (lambda: Sequence(rank=99), "at most the vocabulary"),
        (lambda: Sequence(quantile=1.0), "strictly between 0 and 1"),
        (lambda: Sequence(length=0), "length must be >= 1, got 0"),
        (lambda: Bandit(prompts=2, arms=3, rewards=((1.0, 2.0, 3.0),)), "one row a prompt"),
    ],
)
def test_what_the_toy_cannot_run_is_refused_in_one_line(experiment, message):
    with pytest.raises(ValueError, match=message) as caught:
        ensemble(experiment(), seeds=SEEDS)
    assert "\n" not in str(caught.value)


def test_an_ensemble_needs_a_seed():
    with pytest.raises(ValueError, match="seeds must be >= 1, got 0"):
        ensemble(tiny(), seeds=0)


def test_named_experiments_are_what_their_names_say():
    stale = setting_s(2, quantile=0.7, lr=4.0, correction="dlc", sync_every=STALE)
    assert stale.environment == Sequence(quantile=0.7, seed=2)
    assert stale.sync_every > stale.steps
    assert stale.prompts == stale.environment.prompts
    assert bandit().baseline == "none"
    assert setting_s(correction=Correction(cite="-")).correction.ratio == "none"
