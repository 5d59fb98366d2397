"""Exact measures of toy policies: KL between runs, deviation in floors, accuracy, off-support share, ESS.

Everything is a sum over states and actions in float64, at parameters recorded by `toy.simulate.ensemble`; the
sums over prefixes go by dynamic programming. Shape suffixes: see `toy.task`; here K is the steps asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from theory.arrays import log_softmax
from theory.corrections import ResyncLevel
from theory.floor import in_floors, measured_floor
from theory.jackknife import jackknife
from toy import observe
from toy.engine import EngineSettings, engine_settings, noise_table, sampled_log_probs
from toy.ensemble import Ensemble
from toy.environment import build, memory_of
from toy.keys import engine_key, key_of, words
from toy.policy import log_probs, occupancy, response_sum
from toy.settings import Memory
from toy.task import Task


class Deviation(NamedTuple):
    """Distance from the on-policy runs in noise floors, one entry a step (K)."""

    value: np.ndarray
    """1 for another on-policy ensemble, up to its error"""
    stderr: np.ndarray
    """Jackknife over all seeds"""
    kl: np.ndarray
    """Mean KL(method||on-policy), nats/token"""
    floor: np.ndarray
    """Mean KL between two on-policy runs, nats/token"""


def _at_steps(theta: np.ndarray, steps: Sequence[int] | None) -> np.ndarray:
    """Parameters (K, S, D, V) at the steps asked for, which count from 1."""
    if steps is None:
        return np.moveaxis(theta, 0, 1)
    wrong = [k for k in steps if not 1 <= k <= theta.shape[1]]
    if wrong:
        raise ValueError(f"steps run from 1 to {theta.shape[1]}, got {wrong[0]}; ask for recorded steps")
    return np.moveaxis(theta[:, np.asarray(steps) - 1], 0, 1)


def _same_environment(*ensembles: Ensemble) -> None:
    environments = {e.experiment.environment for e in ensembles}
    if len(environments) > 1:
        raise ValueError(
            "runs are compared within one environment, got "
            + " and ".join(sorted(map(str, environments)))
            + "; rebuild them with equal settings and seed"
        )


@partial(jax.jit, static_argnames="memory")
def _pairwise(task: Task, first_KSDV: jax.Array, second_KSDV: jax.Array, *, memory: Memory) -> jax.Array:
    """KL (K, S1, S2) per token of every first run to every second one, on the first one's own prefixes."""
    C, T, _, _ = task.logits_CTUV.shape

    def tables(theta_SDV: jax.Array) -> jax.Array:
        return jax.vmap(partial(log_probs, task))(theta_SDV)

    def at_step(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        p, q = tables(pair[0]), tables(pair[1])
        seen = jax.vmap(partial(occupancy, memory=memory))(p)
        weight = (seen[..., None] * jnp.exp(p)).reshape(p.shape[0], -1)
        own = jnp.sum(weight * p.reshape(p.shape[0], -1), -1)
        return (own[:, None] - weight @ q.reshape(q.shape[0], -1).T) / (C * T)

    return jax.lax.map(at_step, (first_KSDV, second_KSDV))


def kl_between(first: Ensemble, second: Ensemble, *, steps: Sequence[int] | None = None) -> np.ndarray:
    """``KL(first_i || second_j)`` of all seed pairs, on the first one's own prefixes.

    Parameters
    ----------
    first, second : Ensemble
        Of one environment; may be the same.
    steps : sequence of int, optional
        Steps, from 1; all if left out.

    Returns
    -------
    array, shape (K, S1, S2)
        Nats per token, exact up to float64.
    """
    _same_environment(first, second)
    environment = first.experiment.environment
    with jax.enable_x64(True):
        task = build(environment).cast(np.float64)
        pair = (_at_steps(e.theta, steps).astype(np.float64) for e in (first, second))
        return np.asarray(_pairwise(task, *pair, memory=memory_of(environment)))


def deviation_in_floors(
    method: Ensemble,
    on_policy: Ensemble,
    *,
    floor: Ensemble | None = None,
    steps: Sequence[int] | None = None,
) -> Deviation:
    r"""Distance of a method from the on-policy runs, in units of the distance between two on-policy runs.

    .. math:: \frac{\mathrm{mean}_{i,j} KL(method_i || on_j)}{\mathrm{mean}_{i \ne j} KL(on_i || on_j)}

    Parameters
    ----------
    method : Ensemble
        The runs to judge; their ``Experiment.seed`` differs from the references', so no draws are shared.
    on_policy : Ensemble
        The reference runs.
    floor : Ensemble, optional
        On-policy runs with a third seed that form the floor. Left out, the references form it themselves:
        then one straying reference moves numerator and floor together. The jackknife accounts for that, a
        separate floor avoids it.
    steps : sequence of int, optional
        Steps, from 1; all if left out.

    Raises
    ------
    ValueError
        If two ensembles share their seed, differ in environment, or have fewer than 3 seeds for the floor.

    References
    ----------
    .. [1] theory: the noise floor; every ordered pair counts. Claim ``noise-floor``.
    """
    own_floor = floor is None
    reference = on_policy if floor is None else floor
    ensembles = (method, on_policy) if own_floor else (method, on_policy, reference)
    seeds = [e.experiment.seed for e in ensembles]
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            f"method, reference and floor must not share draws, got seeds {seeds}; "
            "give each experiment its own seed"
        )
    if reference.seeds < 3:
        raise ValueError(f"a noise floor needs >= 3 seeds (6 ordered pairs), got {reference.seeds}")
    to_reference = kl_between(method, on_policy, steps=steps)
    among = kl_between(reference, reference, steps=steps)

    def ratio(method_i: np.ndarray, reference_j: np.ndarray, floor_j: np.ndarray) -> np.ndarray:
        return in_floors(to_reference[:, method_i][:, :, reference_j], among[:, floor_j][:, :, floor_j])

    groups = [np.arange(method.seeds), np.arange(on_policy.seeds)]
    if own_floor:
        value, stderr = jackknife(lambda i, j: ratio(i, j, j), groups)
    else:
        value, stderr = jackknife(ratio, [*groups, np.arange(reference.seeds)])
    return Deviation(value, stderr, to_reference.mean((1, 2)), measured_floor(among))


def accuracy(ensemble: Ensemble, *, steps: Sequence[int] | None = None) -> np.ndarray:
    """Share of the trainer's own responses that are right, (S, K); exact where the first token decides."""
    return _of_policy(ensemble, steps).accuracy


def off_support(ensemble: Ensemble, *, steps: Sequence[int] | None = None) -> np.ndarray:
    """Share of the trainer's own tokens with initial probability below 1e-3, (S, K), exact."""
    return _of_policy(ensemble, steps).off_support


class _PolicyMeasures(NamedTuple):
    """Measures of one policy alone, (S, K)."""

    accuracy: np.ndarray
    off_support: np.ndarray


@partial(jax.jit, static_argnames="memory")
def _policy_measures(
    task: Task, theta_KSDV: jax.Array, key: jax.Array, *, memory: Memory
) -> tuple[jax.Array, jax.Array]:
    initial = log_softmax(task.logits_CTUV)

    def one(theta_DV: jax.Array) -> tuple[jax.Array, jax.Array]:
        logp = log_probs(task, theta_DV)
        right = observe.accuracy(task, logp, key, memory=memory)
        return right, observe.off_support(initial, logp, memory=memory)

    return jax.lax.map(jax.vmap(one), theta_KSDV)


def _of_policy(ensemble: Ensemble, steps: Sequence[int] | None) -> _PolicyMeasures:
    environment = ensemble.experiment.environment
    with jax.enable_x64(True):
        task = build(environment).cast(np.float64)
        theta_KSDV = _at_steps(ensemble.theta, steps).astype(np.float64)
        key = key_of(environment.seed)
        measures = _policy_measures(task, theta_KSDV, key, memory=memory_of(environment))
    return _PolicyMeasures(*(np.asarray(x).T for x in measures))


Quantity = Literal["token", "sequence", "own-kl"]
"""Of trainer and sampler together: ESS of either level, or KL on the trainer's own prefixes"""


@partial(jax.jit, static_argnames=("memory", "quantity"))
def _of_pairs(
    task: Task,
    theta_KSDV: jax.Array,
    sampler_KSDV: jax.Array,
    engine: EngineSettings,
    environment_words: jax.Array,
    *,
    memory: Memory,
    quantity: Quantity,
) -> jax.Array:
    key = engine_key(environment_words)

    def one(theta_DV: jax.Array, sampler_DV: jax.Array) -> jax.Array:
        pi_s = log_probs(task, sampler_DV)
        mu = sampled_log_probs(pi_s, noise_table(engine, key, task, sampler_DV), engine)
        pi = log_probs(task, theta_DV)
        log_w = pi - pi_s
        if quantity == "own-kl":
            return observe.kl_per_token(occupancy(pi, memory=memory), pi, mu)
        if quantity == "token":
            return observe.exact_ess(occupancy(mu, memory=memory), mu, log_w)
        first, second = (
            jnp.mean(response_sum(jnp.exp(mu + order * log_w), memory=memory)) for order in (1, 2)
        )
        return first**2 / second

    return jax.lax.map(lambda pair: jax.vmap(one)(*pair), (theta_KSDV, sampler_KSDV))


def exact_ess(
    ensemble: Ensemble, *, level: ResyncLevel = "token", steps: Sequence[int] | None = None
) -> np.ndarray:
    """ESS of the lag ratio over everything the sampler can draw, (S, K): what the sampled ESS estimates.

    Parameters
    ----------
    ensemble : Ensemble
        Its engine's noise must not be fresh each step: fresh noise is not recorded.
    level : {"token", "sequence"}
        Ratio of single tokens, or product over a response.
    steps : sequence of int, optional
        Steps, from 1; all if left out.
    """
    return _with_sampler(ensemble, level, steps)


def own_prefix_kl(ensemble: Ensemble, *, steps: Sequence[int] | None = None) -> np.ndarray:
    """``KL(pi||mu)`` per token on the trainer's own prefixes, (S, K), nats, exact.

    It goes where the trainer goes; the run's measure kl_sampler stays where the sampler goes. Claim
    ``invisible``. The engine's noise must not be fresh.
    """
    return _with_sampler(ensemble, "own-kl", steps)


def _with_sampler(ensemble: Ensemble, quantity: Quantity, steps: Sequence[int] | None) -> np.ndarray:
    environment, numerics = ensemble.experiment.environment, ensemble.experiment.numerics
    if numerics.fresh and numerics.kind != "exact":
        raise ValueError(
            "an exact measure of the pair needs the engine's noise, got fresh noise, which is not recorded; "
            "freeze it (fresh=False) or use the measures of the run"
        )
    with jax.enable_x64(True):
        task = build(environment).cast(np.float64)
        pair = (_at_steps(t, steps).astype(np.float64) for t in (ensemble.theta, ensemble.theta_sampler))
        settings = engine_settings(numerics, np.float64)
        shares = _of_pairs(
            task, *pair, settings, words(environment.seed), memory=memory_of(environment), quantity=quantity
        )
    return np.asarray(shares).T
