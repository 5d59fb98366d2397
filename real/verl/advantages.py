"""Baselines of the core in verl's registry: ``algorithm.adv_estimator=lagfloor-none`` or ``lagfloor-global``.

verl's ``grpo`` subtracts the group's mean, and with a group baseline centring the score changes nothing on a
shared prefix. The articles' comparison needs a mean advantage that is left: rewards as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from theory.advantage import Baseline, advantages


def _estimator(baseline: Baseline) -> Any:
    @torch.no_grad()
    def estimate(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """Give every token of a response its response's advantage; verl's signature."""
        of_response = advantages(token_level_rewards.sum(-1)[None], baseline=baseline)[0]
        of_token = of_response[:, None] * response_mask
        return of_token, of_token

    return estimate


for _baseline in ("none", "global"):
    register_adv_est(f"lagfloor-{_baseline}")(_estimator(_baseline))
