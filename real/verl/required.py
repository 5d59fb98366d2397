"""Settings of verl without which the gated trainer would push, drop or correct something it should not."""

from __future__ import annotations

from typing import Any

from real.verl.losses import rule_of


def refuse(config: Any) -> None:
    """Raise a ValueError for the first setting that is not as required, naming the one to give."""
    v1, ref = config.trainer.v1, config.actor_rollout_ref
    correction = config.algorithm.get("rollout_correction") or {}
    gated = v1.get("lag_gated") or {}
    engine = ref.actor.get("fsdp_config") or {}
    rule = rule_of(ref.actor.policy_loss)
    cases = [
        (
            v1.separate_async.parameter_sync_step != 1,
            "trainer.v1.separate_async.parameter_sync_step=1",
            "the rule is asked after each update",
        ),
        (
            v1.sampler.max_off_policy_threshold is not None,
            "trainer.v1.sampler.max_off_policy_threshold=null",
            "a held sampler looks stale, and its samples would be dropped",
        ),
        (
            bool(ref.get("hybrid_engine", True)),
            "actor_rollout_ref.hybrid_engine=false",
            "colocated replicas are pushed outside the rule",
        ),
        (
            bool(correction.get("bypass_mode", False)),
            "algorithm.rollout_correction.bypass_mode=false",
            "it puts the engine's log-probs in the place of pi_s",
        ),
        (
            ref.actor.ppo_epochs != 1,
            "actor_rollout_ref.actor.ppo_epochs=1",
            "a batch is one update",
        ),
        (
            bool(engine.get("offload_policy", False) or engine.get("param_offload", False)),
            "actor_rollout_ref.actor.fsdp_config.{offload_policy,param_offload}=false",
            "verl's snapshot of parameters on the CPU is the parameters themselves, so the lag would read 0",
        ),
        (
            gated.get("measure", "forward") not in ("forward", "loss"),
            "trainer.v1.lag_gated.measure=forward or loss",
            "nothing else is known",
        ),
        (
            gated.get("trigger") is not None and gated.get("measure", "forward") != "forward",
            "trainer.v1.lag_gated.measure=forward beside a trigger",
            "the monitor needs every token's log-ratio, not sums",
        ),
    ]
    if rule.centered:
        rollout, manager = ref.rollout, ref.rollout.agent.get("agent_loop_manager_class")
        plain = rollout.temperature == 1 and rollout.top_p == 1 and rollout.top_k in (-1, 0)
        cases += [
            (
                not manager,
                "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=real.verl.topk.TopKAgentLoopManager",
                "a centre needs the sampler's row, which verl throws away",
            ),
            (
                not plain,
                "actor_rollout_ref.rollout.{temperature=1,top_p=1,top_k=-1}",
                "the engine reports the row of a prompt unprocessed",
            ),
            (
                bool(ref.model.get("use_fused_kernels", False)),
                "actor_rollout_ref.model.use_fused_kernels=false",
                "fused kernels give no logits",
            ),
        ]
    for wrong, wanted, why in cases:
        if wrong:
            raise ValueError(f"trainer_mode=lag_gated needs {wanted}: {why}")
