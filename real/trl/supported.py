"""Settings of GRPOTrainer under which the correction would silently not be what was asked: refused."""

from __future__ import annotations

from typing import Any

from theory.corrections import Correction


def refuse(trainer: Any, rule: Correction) -> None:
    """Raise a ValueError for the first setting the correction cannot honour."""
    args = trainer.args
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    cases = (
        (sharded, "FSDP or DeepSpeed", "the sampler's weights are kept as plain copies; use real.verl"),
        (trainer.beta != 0, f"beta={trainer.beta}", "set beta=0: no KL term is added"),
        (trainer.loss_type != "dapo", f"loss_type={trainer.loss_type!r}", "use 'dapo', the mean over tokens"),
        (
            trainer.importance_sampling_level != "token",
            f"importance_sampling_level={trainer.importance_sampling_level!r}",
            "the level is the correction's: pass correction(..., level='sequence')",
        ),
        (trainer.top_entropy_quantile < 1, "top_entropy_quantile < 1", "set it to 1"),
        (trainer.off_policy_mask_threshold is not None, "off_policy_mask_threshold", "leave it out"),
        (trainer._entropy_bonus_enabled, "an entropy bonus", "set entropy_coef=0"),
        (trainer.aux_loss_enabled, "a router loss", "set router_aux_loss_coef=0"),
        (args.use_liger_kernel, "use_liger_kernel", "it gives no logits; set it to False"),
        (trainer._is_vlm, "an image model", "use a text model"),
        (bool(trainer.tools), "tools", "a turn's rows cannot be joined; leave tools out"),
        (trainer.rollout_func is not None, "rollout_func", "its engine reports no rows; leave it out"),
        (trainer.use_transformers_continuous_batching, "continuous batching", "it gives no scores"),
        (
            trainer.use_vllm and args.vllm_enable_sleep_mode,
            "vllm_enable_sleep_mode",
            "a sleeping engine is pushed the current weights when it wakes, whatever the rule says",
        ),
        (rule.lr_power != 0, f"lr_power={rule.lr_power}", "the step size is the optimizer's; use lr_power=0"),
    )
    for unsupported, what, remedy in cases:
        if unsupported:
            raise ValueError(f"LagGRPOTrainer cannot honour {what}: {remedy}")
