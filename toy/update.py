"""One update of the toy's trainer from a batch, under any correction of the core.

Draws in one state share a row of log-probabilities, so a centred correction is evaluated once per state and
action with the advantages pooled there: the constants of `theory.centering` are linear in the advantage, up
to its sign. Shape suffixes: see `toy.task`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from theory.advantage import off_policy_optimal
from theory.centering import coefficients
from theory.corrections import Correction, Logps
from theory.ess import ess_fraction, response_log_ratio
from theory.weights import log_ratio, lr_factor
from toy.families import Family, RuleSettings, rule_of
from toy.policy import at_tokens, log_probs, pool
from toy.task import Task


class Batch(NamedTuple):
    """Drawn tokens, by their place in the tables, and what they earned."""

    index_CNT: jax.Array
    advantage_CN: jax.Array
    """Or rewards, where the baseline depends on the weights"""
    weight_CNT: jax.Array | None = None
    """How much a token counts, 0 where there is none; None: all count 1"""
    logmu_CNT: jax.Array | None = None
    """Log-probs the engine reported, where they are not those of the table"""


class Constants(NamedTuple):
    """Constants of the surrogate: per drawn token, per table entry, and the factor on the learning rate."""

    token_CNT: jax.Array
    table_CTUV: jax.Array
    lr_factor: jax.Array


def _own_ess(rule: Correction, token: Logps, mask_CNT: jax.Array | None) -> jax.Array:
    """ESS share of the correction's own, unclipped ratio at its own level."""
    log_w_CNT = log_ratio(rule.ratio, token)
    if rule.level == "token":
        return ess_fraction(log_w_CNT.reshape(-1), mask=None if mask_CNT is None else mask_CNT.reshape(-1))
    whole_CN = response_log_ratio(log_w_CNT, mask=mask_CNT, geometric=rule.level == "geometric")
    there = None if mask_CNT is None else jnp.any(mask_CNT, -1).reshape(-1)
    return ess_fraction(whole_CN.reshape(-1), mask=there)


def _map(tables: Logps, f) -> Logps:
    return Logps(*(None if x is None else f(x) for x in tables))


def _tokens(tables: Logps, batch: Batch) -> Logps:
    """Log-probs of the drawn tokens, (C, N, T) each."""
    token = _map(tables, lambda table: at_tokens(table, batch.index_CNT))
    return token if batch.logmu_CNT is None else token._replace(mu=batch.logmu_CNT)


def _mask(batch: Batch) -> jax.Array | None:
    return None if batch.weight_CNT is None else batch.weight_CNT > 0


def _minus_optimal(task: Task, tables: Logps, batch: Batch) -> jax.Array:
    """Advantages (C, N) from rewards with the off-policy-optimal baseline, from the ratio pi/mu."""
    token, mask = _tokens(tables, batch), _mask(batch)
    ratio_CN = response_log_ratio(log_ratio("total", token), mask=mask)
    V, D = tables.pi.shape[-1], task.features_CTUD.shape[-1]
    state_CNT = batch.index_CNT // V
    features_CNTD = jnp.asarray(task.features_CTUD).reshape(-1, D)[state_CNT]
    probability_CNTV = jnp.exp(tables.pi.reshape(-1, V)[state_CNT])
    score_CNTV = jax.nn.one_hot(batch.index_CNT % V, V, dtype=probability_CNTV.dtype) - probability_CNTV
    if mask is not None:
        score_CNTV = jnp.where(mask[..., None], score_CNTV, 0)
    in_weights = jnp.einsum("cntd,cntv,wv->cndw", features_CNTD, score_CNTV, jnp.asarray(task.projector_VV))
    norm_CN = jnp.sqrt(jnp.sum(in_weights**2, axis=(-2, -1)))
    return off_policy_optimal(batch.advantage_CN, ratio_CN, norm_CN)


def _constants(family: Family, settings: RuleSettings, tables: Logps, batch: Batch) -> Constants:
    """Constants of one branch."""
    rule = rule_of(family, settings)
    token, mask = _tokens(tables, batch), _mask(batch)
    advantage_CNT = jnp.broadcast_to(batch.advantage_CN[..., None], batch.index_CNT.shape)
    factor = lr_factor(rule, _own_ess(rule, token, mask)) if family.scaled else jnp.ones((), token.pi.dtype)
    if not rule.centered:
        score = coefficients(rule, token, advantage_CNT, mask=mask).token
        score = score if batch.weight_CNT is None else score * batch.weight_CNT
        return Constants(score, jnp.zeros_like(tables.pi), factor)
    if batch.weight_CNT is not None:  # a clip by the advantage's sign does not ask how large it is
        advantage_CNT = advantage_CNT * batch.weight_CNT
    signs = (advantage_CNT,)
    if family.clip == "ppo":  # the only clip that depends on the sign of the advantage
        signs = (jnp.maximum(advantage_CNT, 0), jnp.minimum(advantage_CNT, 0))
    table = jnp.zeros_like(tables.pi)
    for part_CNT in signs:
        pooled = pool(part_CNT, batch.index_CNT, tables.pi.shape)
        row = _map(tables, lambda x: x[..., None, :])
        token_CTUV, row_CTUVV = coefficients(rule, tables, pooled, row=row)
        table = table + token_CTUV + jnp.sum(jnp.asarray(row_CTUVV), -2)
    return Constants(jnp.zeros_like(advantage_CNT), table, factor)


def update(
    task: Task,
    weights_DV: jax.Array,
    logmu_CTUV: jax.Array,
    logpi_s_CTUV: jax.Array,
    logpi_old_CTUV: jax.Array | None,
    batch: Batch,
    *,
    families: tuple[Family, ...],
    branch: ArrayLike,
    settings: RuleSettings,
    optimal_baseline: ArrayLike = False,
) -> tuple[jax.Array, jax.Array]:
    """Gradient (D, V) of the corrected objective, to be ascended, and the factor on the learning rate.

    The objective is summed over the tokens of a response and averaged over the batch's responses. With
    `optimal_baseline` the batch brings rewards, and VCPO's baseline is subtracted from them here.
    """
    logpi_CTUV, pull_back = jax.vjp(partial(log_probs, task), weights_DV)
    tables = Logps(logmu_CTUV, logpi_s_CTUV, logpi_CTUV, logpi_old_CTUV)
    advantage_CN = jax.lax.cond(
        optimal_baseline, lambda: _minus_optimal(task, tables, batch), lambda: batch.advantage_CN
    )
    batch = batch._replace(advantage_CN=advantage_CN)
    branches = [partial(_constants, family) for family in families]
    constants: Constants = jax.lax.switch(branch, branches, settings, tables, batch)
    # the surrogate of `theory.centering` is linear in log pi: its constants are its cotangent
    cotangent = constants.table_CTUV + pool(constants.token_CNT, batch.index_CNT, logpi_CTUV.shape)
    (gradient_DV,) = pull_back(cotangent / batch.advantage_CN.size)
    return gradient_DV, constants.lr_factor
