"""The sampler in plain torch: one step a token on a key-value cache, rows for free.

Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.countdown import COUNTDOWN
from real.fp8.qwen3 import emulate, quantised
from real.fp8.recipe import Recipe
from real.model import build, prefill
from real.samplers.base import Rollout
from real.task import EOS, PAD, Task


class TorchSampler:
    """Holds its own copy of the model, in its own precision.

    Parameters
    ----------
    task : Task
        Its vocabulary, and how long a response may be.
    recipe : Recipe, optional
        What the engine rounds; None: nothing.
    bfloat16 : bool
        Compute in bfloat16 in place of float32; the last softmax stays float32.
    """

    def __init__(
        self, task: Task = COUNTDOWN, /, *, recipe: Recipe | None = None, bfloat16: bool = False
    ) -> None:
        self.task = task
        self.model = build(task)
        self.recipe = recipe
        if recipe is not None:
            emulate(self.model, recipe)
        if bfloat16:
            self.model.bfloat16()
        self._version = -1

    @property
    def version(self) -> int:
        """Updates behind the weights it holds; -1 before the first sync."""
        return self._version

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy a full state dict, rounded as the recipe says; fresh noise is drawn by version."""
        if self.recipe is not None:
            weights = quantised(weights, self.recipe, draw=version)
        self.model.load_state_dict(weights)
        self._version = version

    def sample(self, prompt_CP: Tensor, samples: int, seed: int) -> Rollout:
        """Draw responses at temperature 1, at most as long as the task says."""
        return generate(
            self.model,
            prompt_CP,
            samples,
            seed=seed,
            limit=self.task.response_tokens,
            version=self._version,
        )

    @torch.no_grad()
    def next_logps(self, prefix_BP: Tensor) -> Tensor:
        """Distribution of the next token after each prefix, shape (B, V), nats."""
        logits_BV, _ = prefill(self.model, prefix_BP, 1)
        return torch.log_softmax(logits_BV.float(), dim=-1)

    def close(self) -> None:
        """Nothing to give back but the copy itself."""


@torch.no_grad()
def generate(
    model: Qwen3ForCausalLM,
    prompt_CP: Tensor,
    samples: int,
    *,
    seed: int,
    limit: int = COUNTDOWN.response_tokens,
    version: int = -1,
) -> Rollout:
    """Sample from a model with a generator of its own, so no global random state is read or moved.

    Parameters
    ----------
    model : Qwen3ForCausalLM
        Read only.
    prompt_CP : Tensor, shape (C, P)
        Token ids, no padding.
    samples : int
        Responses to each prompt.
    seed : int
        Of the draw.
    limit : int
        Tokens of a response, at most.
    version : int
        Put on the rollout.

    Returns
    -------
    Rollout
        Trimmed to the longest response.
    """
    draw = torch.Generator().manual_seed(seed)
    logits_BV, cache = prefill(model, prompt_CP, samples)
    B, V = logits_BV.shape
    response_BT = torch.full((B, limit), PAD)
    mask_BT = torch.zeros(B, limit, dtype=torch.bool)
    logmu_BTV = torch.zeros(B, limit, V)
    alive_B = torch.ones(B, dtype=torch.bool)
    length = 0
    for t in range(limit):
        logmu_BV = torch.log_softmax(logits_BV.float(), dim=-1)
        # drawn for finished rows too: the stream of draws then does not depend on who finished when
        token_B = torch.multinomial(logmu_BV.exp(), 1, generator=draw)[:, 0].masked_fill(~alive_B, PAD)
        response_BT[:, t], mask_BT[:, t] = token_B, alive_B
        logmu_BTV[:, t] = logmu_BV.masked_fill(~alive_B[:, None], 0.0)
        alive_B = alive_B & (token_B != EOS)
        length = t + 1
        if t + 1 == limit or not alive_B.any():
            break
        logits_BV = model(input_ids=token_B[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
    return Rollout(
        prompt_CP=prompt_CP,
        response_BT=response_BT[:, :length],
        mask_BT=mask_BT[:, :length],
        logmu_BTV=logmu_BTV[:, :length],
        version=version,
    )
