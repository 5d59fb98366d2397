"""What one step of the toy reports, at the weights after its update.

Statistics of the batch use the drawn tokens, as a real trainer would; KL, accuracy, off-support share and
`ess_exact` are sums over all states and actions. Names and units: `theory.records.STEP_COLUMNS`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from theory.arrays import log_softmax
from theory.corrections import Logps
from theory.cumulants import cumulants
from theory.decomposition import kl, split
from theory.ess import ess_fraction, response_ess
from theory.records import OFF_SUPPORT_BELOW
from theory.tail import FEWEST_IN_TAIL, k_hat_of_tail, tail_draws
from toy.policy import Responses, at_tokens, draw, flat_index, occupancy, rewards
from toy.settings import Memory
from toy.task import Task

ACCURACY_DRAWS = 256
"""Held-out responses per prompt where accuracy has no exact value (memory 'last')."""


def k_hat(log_w: jax.Array) -> jax.Array:
    """Tail index of the ratios, selecting the tail in place of sorting: several times faster on a CPU."""
    m = tail_draws(log_w.size)
    if m < FEWEST_IN_TAIL:
        return jnp.full((), jnp.nan, log_w.dtype)
    # the barrier keeps the compiler from turning a sliced top_k into a sort
    largest = jax.lax.optimization_barrier(jax.lax.top_k(log_w.reshape(-1), m + 1)[0])
    return k_hat_of_tail(largest[m - 1 :: -1], largest[m])


def accuracy(task: Task, logp_CTUV: jax.Array, key: jax.Array, *, memory: Memory) -> jax.Array:
    """Share of the trainer's own responses that are right; exact where the first token decides."""
    if task.reward_CV is not None:
        first_CV = jnp.exp(logp_CTUV[:, 0, -1])
        return jnp.mean(jnp.sum(jnp.where(task.reward_CV > 0, first_CV, 0.0), -1))
    fresh = draw(logp_CTUV, key, samples=ACCURACY_DRAWS, memory=memory)
    return jnp.mean(rewards(task, fresh, flat_index(fresh, logp_CTUV.shape)) > 0)


def off_support(initial_CTUV: jax.Array, logp_CTUV: jax.Array, *, memory: Memory) -> jax.Array:
    """Share of the trainer's own tokens that the initial policy all but never draws. Exact."""
    C, T, _, _ = logp_CTUV.shape
    rare = initial_CTUV < jnp.log(OFF_SUPPORT_BELOW)
    mass_CTU = jnp.sum(jnp.where(rare, jnp.exp(logp_CTUV), 0.0), -1)
    return jnp.sum(occupancy(logp_CTUV, memory=memory) * mass_CTU) / (C * T)


def kl_per_token(occupancy_CTU: jax.Array, logp_CTUV: jax.Array, logq_CTUV: jax.Array) -> jax.Array:
    """``KL(p||q)`` per token on prefixes of the given occupancy. Exact."""
    C, T, _ = occupancy_CTU.shape
    return jnp.sum(occupancy_CTU * kl(logp_CTUV, logq_CTUV)) / (C * T)


def exact_ess(occupancy_CTU: jax.Array, logmu_CTUV: jax.Array, log_w_CTUV: jax.Array) -> jax.Array:
    """ESS share of the token ratio over all actions at the sampler's prefixes: the limit of many draws."""
    C, T, _ = occupancy_CTU.shape

    def moment(order: int) -> jax.Array:
        # in one exponent: a rare action's ratio may overflow where its mean does not
        mean_CTU = jnp.sum(jnp.exp(logmu_CTUV + order * log_w_CTUV), -1)
        return jnp.sum(jnp.where(occupancy_CTU > 0, occupancy_CTU * mean_CTU, 0.0)) / (C * T)

    return moment(1) ** 2 / moment(2)


def observe(
    task: Task,
    tables: Logps,
    index_CNT: jax.Array,
    reward_CN: jax.Array,
    key: jax.Array,
    *,
    memory: Memory,
    sampled_CTUV: jax.Array,
) -> dict[str, jax.Array]:
    """All measures of a step but those of the weights; `tables.pi` is the trainer after the update.

    `sampled_CTUV` is what was really drawn from: `tables.mu` unless the engine reports something else.
    """
    token = Logps(*(at_tokens(table, index_CNT) for table in tables[:3]))
    discrepancy, lag = split(token.mu, token.pi_s, token.pi)
    log_w = -lag
    flat = log_w.reshape(-1)
    k = cumulants(flat)
    sampler = occupancy(sampled_CTUV, memory=memory)
    initial = log_softmax(task.logits_CTUV)
    return {
        "reward": jnp.mean(reward_CN),
        "ess_token": ess_fraction(flat),
        "ess_sequence": response_ess(log_w.reshape(-1, log_w.shape[-1])),
        "ess_exact": exact_ess(sampler, sampled_CTUV, tables.pi - tables.pi_s),
        "ess_total": ess_fraction((token.pi - token.mu).reshape(-1)),
        "k1": k.k1,
        "k2": k.k2,
        "k3": k.k3,
        "k4": k.k4,
        "k_hat": k_hat(log_w),
        "mean_w": jnp.mean(jnp.exp(flat)),
        "discrepancy_rms": jnp.sqrt(jnp.mean(discrepancy**2)),
        "lag_rms": jnp.sqrt(jnp.mean(lag**2)),
        "kl_sampler": kl_per_token(sampler, sampled_CTUV, tables.pi),
        "off_support": off_support(initial, tables.pi, memory=memory),
        "accuracy": accuracy(task, tables.pi, key, memory=memory),
    }


def token_columns(tables: Logps, responses: Responses, index_CNT: jax.Array) -> dict[str, jax.Array]:
    """Log-probabilities and tokens of the batch, (C, N, T) each, for a trace with tokens."""
    token = Logps(*(at_tokens(table, index_CNT) for table in tables[:3]))
    return {
        "token": responses.tokens_CNT,
        "logmu": token.mu,
        "logpi_s": token.pi_s,
        "logpi": token.pi,
    }
