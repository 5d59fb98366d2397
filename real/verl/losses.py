"""Policy losses of the core in verl's registry, one a row of the table: ``lagfloor-tis`` and so on.

    actor_rollout_ref.actor.policy_loss.loss_mode=lagfloor-tis
    actor_rollout_ref.actor.policy_loss._target_=real.verl.losses.LagPolicyLossConfig    # only to change a
    row +actor_rollout_ref.actor.policy_loss.changes.high=5.0

verl hands such a function the padded tensors (B, T) of one micro-batch and no engine log-probs. What its
``old_log_probs`` are depends on the trainer: pi_s under ``lag_gated`` and whenever the sampler is pushed
before each batch; in bypass mode they are mu (``changes`` apart, set ``old_log_probs_are=mu``). The engine's
are recovered from ``rollout_is_weights`` = pi_s/mu, so rows with pi/mu need
``algorithm.rollout_correction.rollout_is=token`` and a ``rollout_is_threshold`` so high that verl cuts
nothing; ``lag_gated`` needs neither.

Rows with a centre need logits: `real.verl.actor_loss`. Rows relative to the trainer before the batch (ppo,
decoupled-ppo) are verl's own ``vanilla`` and are not registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import PolicyLossConfig

from real.verl.sums import lag_sums
from theory.centering import coefficients, surrogate
from theory.corrections import CORRECTIONS, Correction, Logps, correction
from theory.limits import refuse_choice, refuse_count, refuse_other, refuse_text

NAME = "lagfloor-"
CLIP_ON_LAG = "clip-on-lag"
"""DLC without its centre: the lag ratio truncated, times whatever verl puts into rollout_is_weights"""


@dataclass
class LagPolicyLossConfig(PolicyLossConfig):
    """verl's own fields, and three more."""

    old_log_probs_are: Literal["pi_s", "mu"] = "pi_s"
    """What verl's old_log_probs stand for under the trainer in use"""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of `theory.corrections.Correction` to replace in the row"""
    top_k: int = 20
    """Columns of the sampler's row that a centre sees; vLLM reports 20 unless max_logprobs is raised"""

    def __post_init__(self) -> None:
        """Refuse what has no meaning; verl's own numbers are verl's."""
        refuse_choice("old_log_probs_are", self.old_log_probs_are, ("pi_s", "mu"))
        refuse_other("changes", self.changes, Mapping, do="write changes.FIELD=VALUE")
        refuse_count("top_k", self.top_k, least=1)
        refuse_text("loss_mode", self.loss_mode)
        if self.loss_mode.startswith(NAME):
            rule_of(self)


def rule_of(policy_loss: Any) -> Correction:
    """Row of the table that a config asks for, changed as it asks.

    Raises
    ------
    ValueError
        For a loss mode that is not of the table, or a change that has no meaning.
    """
    mode = policy_loss.get("loss_mode", "vanilla")
    name = mode.removeprefix(NAME)
    changes = dict(policy_loss.get("changes", None) or {})
    if name == CLIP_ON_LAG:
        return correction("dlc", center="none", **changes)
    if not mode.startswith(NAME) or name not in CORRECTIONS:
        known = ", ".join(NAME + n for n in (*sorted(CORRECTIONS), CLIP_ON_LAG))
        raise ValueError(f"loss_mode must be a row of the corrections table, got {mode!r}; known: {known}")
    return correction(name, **changes)


def token_logps(
    policy_loss: Any, rule: Correction, old: Tensor, now: Tensor, weights: Tensor | None
) -> Logps:
    """Log-probs under the three policies from what verl hands over.

    Raises
    ------
    ValueError
        If the rule needs a policy that verl did not hand over.
    """
    if policy_loss.get("old_log_probs_are", "pi_s") == "mu":
        if rule.needs_pi_s:
            raise ValueError(
                "this row needs the trainer's log-probs at the sampler's weights, got the engine's; "
                "set algorithm.rollout_correction.bypass_mode=false and old_log_probs_are=pi_s"
            )
        return Logps(old, old, now.detach())
    if weights is not None:
        return Logps(old - weights.log(), old, now.detach())
    if "total" in (rule.ratio, rule.clip_on):
        raise ValueError(
            "this row needs the engine's log-probs, got no rollout_is_weights; use trainer_mode=lag_gated, "
            "or algorithm.rollout_correction.rollout_is=token with a rollout_is_threshold that cuts nothing"
        )
    return Logps(old, old, now.detach())


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Loss of one micro-batch under the row named by ``config.policy_loss.loss_mode``; verl's signature."""
    settings = config.policy_loss
    rule, mask = rule_of(settings), response_mask.bool()
    if rule.centered:
        raise ValueError(
            f"{settings.get('loss_mode')} centres the score, which needs logits; use trainer_mode=lag_gated"
        )
    if rule.lr_power != 0:
        raise ValueError("a row that scales the learning rate has no policy loss; use lr_power=0")
    logps = token_logps(settings, rule, old_log_prob, log_prob, rollout_is_weights)
    constants = coefficients(rule, logps, advantages.expand(log_prob.shape), mask=mask)
    if settings.get("loss_mode") == NAME + CLIP_ON_LAG and rollout_is_weights is not None:
        constants = constants._replace(token=constants.token * rollout_is_weights)
    loss = agg_loss(
        loss_mat=-surrogate(constants, log_prob),
        loss_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        **config.global_batch_info,
    )
    measured = settings.get("old_log_probs_are", "pi_s") == "pi_s"
    return loss, lag_sums(old_log_prob, log_prob, mask) if measured else {}


REGISTERED = tuple(
    NAME + name
    for name in (*CORRECTIONS, CLIP_ON_LAG)
    if name == CLIP_ON_LAG or "batch" not in (CORRECTIONS[name].ratio, CORRECTIONS[name].clip_on)
)
"""Loss modes this module registers"""

for _mode in REGISTERED:
    register_policy_loss(_mode)(policy_loss)
