"""Off-support share and the absorbing exit: closed forms against enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libraries import carry
from tolerances import MONTE_CARLO_Z, algebra

from theory.decomposition import kl
from theory.ess import ess_fraction
from theory.support import (
    absorbing_chain,
    branch_share,
    exit_mass,
    kl_bound,
    off_support_share,
    two_step,
    unseen,
)


def test_the_share_counts_unmasked_tokens_below_one_in_a_thousand(xp):
    log_p0 = carry(xp, np.log([[0.5, 1e-4, 2e-3], [1e-5, 9e-4, 1e-9]]))
    mask = xp.asarray(np.array([[True, True, True], [True, True, False]]))
    assert float(off_support_share(log_p0, mask=mask)) == pytest.approx(3 / 5)
    assert float(off_support_share(log_p0)) == pytest.approx(4 / 6)
    weight = carry(xp, np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert float(off_support_share(log_p0, weight=weight)) == pytest.approx(1 / 4)
    assert float(off_support_share(log_p0, below=1e-2)) == pytest.approx(5 / 6)


def test_the_share_of_nothing_and_of_a_broken_token_is_unknown_and_what_is_masked_never_matters():
    log_p0 = np.array([np.nan, -20.0])
    assert math.isnan(off_support_share(log_p0))
    assert off_support_share(log_p0, mask=np.array([False, True])) == 1
    assert math.isnan(off_support_share(log_p0, mask=np.array([False, False])))
    assert math.isnan(off_support_share(np.zeros(0)))


def enumerate_chain(exit_rate: float, sampler_rate: float, length: int) -> tuple[float, float, float]:
    """KL(mu||pi) of responses, share of tokens off, share of responses that left, response by response."""
    total_kl = off = left = 0.0
    for at in range(length + 1):  # the exit comes before token `at`, or never (at = length)
        mu = (1 - sampler_rate) ** at * (sampler_rate if at < length else 1)
        pi = (1 - exit_rate) ** at * (exit_rate if at < length else 1)
        if mu > 0:
            total_kl += mu * math.log(mu / pi)
        off += pi * (length - at) / length
        left += pi * (at < length)
    return total_kl, off, left


@pytest.mark.parametrize(("exit_rate", "length"), [(0.3, 1), (0.05, 12), (0.00669, 200), (0.9, 3)])
def test_the_absorbing_chain_is_its_enumeration(exit_rate, length):
    chain = absorbing_chain(exit_rate, length)
    total_kl, off, left = enumerate_chain(exit_rate, 0.0, length)
    assert chain.kl_sampler * length == pytest.approx(total_kl, rel=length * algebra(1.0))
    assert chain.off_share == pytest.approx(off, abs=length * algebra(1.0))
    assert chain.left == pytest.approx(left, abs=length * algebra(1.0))
    assert chain.kl_reverse == math.inf
    assert chain.ess_token == 1.0  # every ratio on the sampler's support is the same: ESS sees nothing
    assert chain.missing_mass == pytest.approx(exit_rate)


def test_the_chain_with_a_sampler_that_can_exit_has_the_kl_and_ess_of_its_two_actions():
    e, e0 = 0.047, 1e-4
    logmu, logpi = np.log([1 - e0, e0]), np.log([1 - e, e])
    chain = absorbing_chain(e, 200, sampler_rate=e0)
    assert chain.kl_sampler == pytest.approx(kl(logmu, logpi), abs=algebra(1.0))
    assert chain.kl_reverse == pytest.approx(kl(logpi, logmu), abs=algebra(1.0))
    w = np.exp(logpi - logmu)
    assert chain.ess_token == pytest.approx(1 / (np.exp(logmu) @ w**2), rel=1e2 * algebra(1.0))
    assert chain.ess_token == pytest.approx(0.043, abs=5e-4)
    assert chain.missing_mass == pytest.approx(0, abs=algebra(1.0))


@pytest.mark.parametrize(
    ("length", "rate", "per_token", "left", "share", "reverse"),
    [
        (200, 0.00669, 0.0062, 0.739, 0.452, 0.022),
        (200, 0.01799, 0.0175, 0.974, 0.734, 0.076),
        (200, 0.04743, 0.0479, 1.000, 0.900, 0.246),
        (64, 0.1192, 0.126, 1.000, 0.885, 0.733),
    ],
)
def test_the_chain_is_that_of_the_table(length, rate, per_token, left, share, reverse):
    chain = absorbing_chain(rate, length, sampler_rate=1e-4)
    assert chain.kl_sampler == pytest.approx(per_token, abs=5.1e-4 if length == 64 else 5.1e-5)
    assert chain.left == pytest.approx(left, abs=5.1e-4)
    assert chain.off_share == pytest.approx(share, abs=5.1e-4)
    assert chain.kl_reverse == pytest.approx(reverse, abs=5.1e-4)


def test_ninety_percent_off_support_cost_a_seventh_of_a_healthy_lag():
    healthy = math.log(2) / 2  # Gaussian at ESS 1/2
    assert healthy / absorbing_chain(0.04743, 200).kl_sampler > 7


def test_a_sampled_chain_has_the_share_and_the_blindness_of_the_law(rng):
    e, e0, length, n = 0.02, 1e-5, 64, 4000
    exits = rng.geometric(e, size=n) - 1
    share = np.clip(length - exits, 0, None) / length
    chain = absorbing_chain(e, length, sampler_rate=e0)
    stderr = share.std() / math.sqrt(n)
    print(f"standard error {stderr:.2g}")
    assert share.mean() == pytest.approx(chain.off_share, abs=MONTE_CARLO_Z * stderr)
    # a batch of the sampler that holds no exit has ESS 1 whatever the trainer does there
    batches = rng.random((200, 512)) < 1 - (1 - e0) ** length
    blind = ~batches.any(axis=1)
    want = unseen(e0, 512 * length)
    assert blind.mean() == pytest.approx(want, abs=MONTE_CARLO_Z * math.sqrt(want * (1 - want) / 200))
    assert ess_fraction(np.full(512, math.log((1 - e) / (1 - e0)))) == 1


def test_unseen_probabilities_are_those_printed():
    assert unseen(1e-4, 512 * 64) == pytest.approx(0.038, abs=5e-4)
    assert unseen(1e-6, 512 * 64) == pytest.approx(0.97, abs=5e-3)


def test_the_bound_holds_for_any_way_of_leaving_and_is_attained_at_a_constant_rate(rng):
    for length in (2, 64):
        rates = rng.random(length) * 0.1
        left = 1 - np.prod(1 - rates)
        per_token = -np.log1p(-rates).sum() / length  # the sampler never exits
        assert per_token >= kl_bound(left, length) * (1 - 1e-12)
        constant = absorbing_chain(0.05, length)
        assert constant.kl_sampler == pytest.approx(kl_bound(constant.left, length), rel=1e-9)


@pytest.mark.parametrize(("length", "printed"), [(2, 1.151), (64, 0.0360), (200, 0.01151), (1024, 0.00225)])
def test_bounds_are_those_printed(length, printed):
    assert kl_bound(0.9, length) == pytest.approx(printed, rel=1.5e-3)


def test_bounds_at_the_ends():
    assert kl_bound(0.0, 5) == 0
    assert kl_bound(1.0, 5) == math.inf


def test_the_two_step_example_is_its_enumeration_over_all_four_responses():
    e, e0, twist = 0.2, 1e-4, 0.999
    p = {
        "mu": ([1 - e0, e0], [1 - e0, e0], [1 - e0, e0]),
        "pi": ([1 - e, e], [1 - e0, e0], [1 - twist, twist]),
    }

    def response(policy, first, second):
        start, on, off = p[policy]
        return start[first] * (off if first else on)[second]

    forward = own = share = 0.0
    for first, second in itertools.product((0, 1), repeat=2):
        mu, pi = (response(policy, first, second) for policy in ("mu", "pi"))
        forward += mu * math.log(mu / pi) / 2
        own += pi * math.log(pi / mu) / 2
        # off-support: the exit itself, and after it the token the sampler hardly knows
        share += pi * (first + first * second) / 2
    got = two_step(e)
    assert got.kl_sampler == pytest.approx(forward, abs=algebra(1.0))
    assert got.kl_own == pytest.approx(own, abs=algebra(2.0))
    assert got.off_share == pytest.approx(share, abs=algebra(1.0))


def test_the_two_step_numbers_are_those_printed():
    for rate, printed in ((0.2, (0.1115, 1.590, 0.1999)), (0.5, (0.3464, 4.254, 0.4998))):
        got = two_step(rate)
        for value, want in zip(got, printed, strict=True):
            assert value == pytest.approx(want, abs=5.1e-4 if want > 1 else 5.1e-5)


def test_a_long_branch_makes_the_same_exit_rate_nearly_all_off_support():
    assert branch_share(0.2, off_tokens=100, on_tokens=2) == pytest.approx(0.925, abs=5e-4)
    assert branch_share(0.5, off_tokens=100, on_tokens=2) == pytest.approx(0.979, abs=5e-4)
    assert branch_share(0.2, off_tokens=2, on_tokens=2) == pytest.approx(two_step(0.2).off_share)


@pytest.mark.parametrize(
    "call", [lambda: kl_bound(1.2, 3), lambda: absorbing_chain(0.0, 3), lambda: absorbing_chain(0.1, 0)]
)
def test_shares_and_lengths_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="got"):
        call()


@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_exit_mass_is_the_expected_share_of_off_support_draws(prefixes, words, seed):
    rng = np.random.default_rng(seed)
    log_p0, logpi = (np.log(rng.dirichlet(np.full(words, 0.05), prefixes) + 1e-300) for _ in range(2))
    # shares weighted by the probability of each draw are the expectation over draws
    expected = off_support_share(log_p0, weight=np.exp(logpi)) * np.exp(logpi).sum() / prefixes
    assert exit_mass(log_p0, logpi).mean() == pytest.approx(expected, abs=algebra(1.0))


def test_the_exit_mass_of_the_initial_policy_itself_is_what_little_it_gives_them():
    log_p0 = np.log([[0.9985, 0.0009, 0.0006], [0.5, 0.3, 0.2]])
    assert exit_mass(log_p0, log_p0) == pytest.approx([0.0015, 0.0], abs=algebra(1.0))
    log_p0[1, 2] = np.nan
    assert np.isnan(exit_mass(log_p0, log_p0)[1])


@pytest.mark.parametrize("below", [0.0, -0.1, 1.5, math.inf, math.nan])
def test_a_threshold_that_is_no_probability_is_refused(below):
    row = np.log([[0.5, 0.5]])
    for measure in (lambda: exit_mass(row, row, below=below), lambda: off_support_share(row, below=below)):
        with pytest.raises(ValueError, match=r"probability in \(0, 1\], got"):
            measure()


def test_every_token_but_a_sure_one_is_below_one():
    assert exit_mass(np.log([0.5, 0.5]), np.log([0.2, 0.8]), below=1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (1, 3)), r"one shape, got log_p0 \(2, 3\), logpi \(1, 3\)"),
        (((2, 0), (2, 0)), r"rows of one token or more, got shape \(2, 0\)"),
        (((), ()), r"rows of one token or more, got shape \(\)"),
    ],
)
def test_rows_that_do_not_fit_or_are_empty_have_no_exit_mass(xp, shapes, message):
    with pytest.raises(ValueError, match=message):
        exit_mass(*(carry(xp, np.zeros(shape)) for shape in shapes))
