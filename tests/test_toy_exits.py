"""The setting with an exit: its numbers, its measures against the exact absorbing chain, what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from tolerances import algebra

from theory.arrays import log_softmax
from theory.records import OFF_SUPPORT_BELOW
from theory.support import absorbing_chain, kl_bound
from toy import observe
from toy.environment import build, memory_of
from toy.policy import Responses, flat_index, occupancy, rewards
from toy.settings import STALE, Exit, leaving

ENVIRONMENT = Exit()


@pytest.fixture(autouse=True)
def in_double_precision():
    with jax.enable_x64(True):
        yield


def leaver(rate: float, *, stay: float = 1.0) -> jnp.ndarray:
    """Log-probs of a policy that is the initial one but exits at a rate and then stays, (C, T, U, V)."""
    logp = log_softmax(build(ENVIRONMENT).logits_CTUV)
    out = np.full(logp.shape[:3], rate)
    out[:, :, -2] = stay
    rest = logp[..., :-1] - np.log1p(-np.exp(logp[..., -1:]))
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.concatenate([rest + np.log1p(-out)[..., None], np.log(out)[..., None]], -1))


def test_initial_policy_hardly_leaves_and_comes_back():
    p = np.exp(log_softmax(build(ENVIRONMENT).logits_CTUV))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=algebra(1.0))
    np.testing.assert_allclose(p[..., -2], ENVIRONMENT.wrong)
    ordinary = np.delete(p, -2, axis=2)
    np.testing.assert_allclose(ordinary[..., -1], ENVIRONMENT.leave)
    np.testing.assert_allclose(p[:, :, -2, -1], ENVIRONMENT.stay)
    assert max(ENVIRONMENT.leave, ENVIRONMENT.stay) < OFF_SUPPORT_BELOW < p[..., :-1].min()
    assert memory_of(ENVIRONMENT) == "last"


def test_a_response_succeeds_with_as_many_wrong_tokens_as_the_median_has_and_not_with_the_exit():
    task, length = build(ENVIRONMENT), ENVIRONMENT.length
    wrong, out = ENVIRONMENT.vocabulary - 2, ENVIRONMENT.vocabulary - 1
    allowed = int(scipy.stats.binom.median(length, ENVIRONMENT.wrong))
    assert 0 < allowed < length - 1
    tokens = np.zeros((ENVIRONMENT.prompts, 4, length), int)
    tokens[:, 0, :allowed] = wrong
    tokens[:, 1, : allowed + 1] = wrong
    tokens[:, 2, 3] = out
    memory = np.concatenate([np.full_like(tokens[..., :1], ENVIRONMENT.vocabulary), tokens[..., :-1]], -1)
    responses = Responses(jnp.asarray(tokens), jnp.asarray(memory))
    task = task.cast(np.float64)._replace(score_CTUV=jnp.asarray(task.score_CTUV))
    got = np.asarray(rewards(task, responses, flat_index(responses, task.logits_CTUV.shape)))
    np.testing.assert_array_equal(got, [[1, -1, -1, 1]] * ENVIRONMENT.prompts)


def test_unlearning_the_wrong_token_teaches_the_exit_most_where_nobody_goes():
    task = build(ENVIRONMENT)
    wrong, out = ENVIRONMENT.vocabulary - 2, ENVIRONMENT.vocabulary - 1
    # a small step down on the wrong token at every ordinary state
    push = np.zeros(ENVIRONMENT.vocabulary)
    push[wrong] = -1.0
    visited = np.delete(task.features_CTUD, -2, axis=2).reshape(-1, ENVIRONMENT.embedding)
    weights = np.outer(visited.mean(0), task.projector_VV @ push)
    moved = task.features_CTUD @ weights @ task.projector_VV
    assert np.median(moved[..., wrong]) < 0 < np.median(moved[..., out])
    after, before = moved[:, :, -2, out], np.delete(moved[..., out], -2, axis=2)
    assert after.min() > 2 * np.median(before)


@pytest.mark.parametrize("rate", [0.002, 0.02, 0.05])
def test_measures_are_those_of_the_exact_absorbing_chain(rate):
    chain = absorbing_chain(rate, ENVIRONMENT.length)
    # the sampler never sees what the trainer does after the exit, but 0 times an infinite KL is no number
    initial = jnp.asarray(log_softmax(build(ENVIRONMENT).logits_CTUV))
    trainer, sampler = leaver(rate, stay=1 - 1e-15), leaver(0.0, stay=0.0)
    share = observe.off_support(initial, trainer, memory="last")
    assert float(share) == pytest.approx(chain.off_share, abs=algebra(10.0))
    seen = observe.kl_per_token(occupancy(sampler, memory="last"), sampler, trainer)
    assert float(seen) == pytest.approx(chain.kl_sampler, abs=algebra(10.0))
    assert float(seen) == pytest.approx(kl_bound(chain.left, ENVIRONMENT.length), abs=algebra(10.0))


def test_the_setting_is_on_policy_unless_told_otherwise():
    assert leaving().sync_every == 1
    stale = leaving(4, correction="sc", sync_every=STALE)
    assert (stale.environment, stale.prompts) == (Exit(seed=4), Exit().prompts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exit(length=1), "length must be >= 2"),
        (lambda: Exit(words=1), "words must be >= 2"),
        (lambda: Exit(leave=0.0), "shares in"),
        (lambda: Exit(wrong=0.9995), "ordinary tokens need what is left"),
    ],
)
def test_an_exit_that_describes_no_policy_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
