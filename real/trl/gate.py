"""A stock GRPOTrainer whose engine is pushed new weights only when a rule says so: a callback of three lines.

TRL pushes before it generates if its step has moved since the last push; claiming that the push was made
holds the engine. The loss stays TRL's own, so set ``vllm_importance_sampling_correction`` and a clip; the
log-probs TRL then calls old are the trainer's at generation, not the sampler's: its
``sampling_logp_difference`` holds numerics and lag in one number. `real.trl.trainer` splits them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from theory.ess import ess_fraction


class HoldSampler(TrainerCallback):
    """Hold the engine's weights for as long as `fires` returns False after an update.

    ``trainer.add_callback(HoldSampler(trainer, lambda: ess_of_last_batch(trainer) < 0.5))``
    """

    def __init__(self, trainer: Any, fires: Callable[[], bool]) -> None:
        if not trainer.use_vllm or trainer.args.vllm_enable_sleep_mode:
            raise ValueError(
                "holding a sampler needs use_vllm=True and vllm_enable_sleep_mode=False, "
                f"got {trainer.use_vllm} and {trainer.args.vllm_enable_sleep_mode}: without vLLM the trainer "
                "samples from its own weights, and a sleeping engine is pushed the current ones when it wakes"
            )
        self.trainer, self.fires = trainer, fires

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Claim the push as made where the rule does not fire."""
        if not self.fires():
            self.trainer._last_loaded_step = state.global_step


@torch.no_grad()
def ess_of_last_batch(trainer: Any) -> float:
    """ESS of pi/mu over the tokens of this process's last generation batch at the new weights, a share.

    A stock trainer knows mu and pi but not pi_s, so the engine's numerics count as lag: it fires early, never
    late.
    """
    log_w = []
    for batch in trainer._buffered_inputs:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attended = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        logpi, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attended, batch["completion_ids"].shape[1]
        )
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
        log_w.append((logpi - batch["sampling_per_token_logps"])[mask].double())
    return ess_fraction(torch.cat(log_w)).item()
