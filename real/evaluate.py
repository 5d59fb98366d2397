"""Held-out accuracy, distance between runs, and how far a policy has left its start.

Every number is taken on samples of the policy itself, with the torch sampler and seeds of their own, so it
does not depend on the engine that trained it. Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.countdown import COUNTDOWN
from real.model import at_tokens, row_logps
from real.rewards import rewards
from real.samplers.base import Rollout
from real.samplers.torch_sampler import generate
from real.settings import Mini
from real.task import Problem, Task
from theory.decomposition import kl
from theory.estimate import Estimate, mean_estimate
from theory.records import OFF_SUPPORT_BELOW

HELD_OUT_SEED = 99
"""Of the held-out problems: one fixed set for every run, so accuracies are paired"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One policy on the held-out problems."""

    accuracy: Estimate
    """Share of responses that are right"""
    entropy: float
    """Nats a token, mean over the policy's own responses"""
    off_support: float
    """Share of the policy's own tokens the initial policy gave less than `OFF_SUPPORT_BELOW`; NaN: not
    measured"""
    length: float
    """Tokens a response, mean"""


@lru_cache(maxsize=8)
def held_out(count: int, task: Task = COUNTDOWN, /) -> tuple[Problem, ...]:
    """Return the first `count` problems of a task's fixed held-out set."""
    return tuple(task.problems(count, seed=HELD_OUT_SEED, split="test"))


def prompt_ids(problems: Sequence[Problem], task: Task = COUNTDOWN, /) -> Tensor:
    """Token ids of the prompts, shape (C, P)."""
    return torch.tensor([task.encode(p.prompt) for p in problems])


def own_samples(model: Qwen3ForCausalLM, environment: Mini, /, *, seed: int) -> Rollout:
    """Responses of a policy to the held-out problems."""
    task = environment.definition
    prompt_CP = prompt_ids(held_out(environment.eval_prompts, task), task)
    return generate(model, prompt_CP, environment.eval_samples, seed=seed, limit=task.response_tokens)


def evaluate(
    model: Qwen3ForCausalLM, environment: Mini, /, *, seed: int, initial: Qwen3ForCausalLM | None = None
) -> Evaluation:
    """Measure a policy on the held-out problems.

    Parameters
    ----------
    model : Qwen3ForCausalLM
        The policy.
    environment : Mini
        Says how many problems and responses.
    seed : int
        Of the draw of the responses.
    initial : Qwen3ForCausalLM, optional
        The policy of step 0, for the off-support share.
    """
    rollout = own_samples(model, environment, seed=seed)
    task = environment.definition
    reward_CN = rewards(rollout, held_out(environment.eval_prompts, task), task=task)
    # responses to one problem are not independent: the error is taken over problems
    right = mean_estimate(((reward_CN + 1) / 2).mean(-1).tolist(), unit="share")
    entropy_BT = -(rollout.logmu_BTV.exp() * rollout.logmu_BTV).sum(-1)
    return Evaluation(
        accuracy=right,
        entropy=entropy_BT[rollout.mask_BT].mean().item(),
        off_support=math.nan if initial is None else off_support(initial, rollout),
        length=rollout.mask_BT.sum(-1).float().mean().item(),
    )


@torch.no_grad()
def off_support(initial: Qwen3ForCausalLM, rollout: Rollout, /) -> float:
    """Share of the rollout's tokens to which `initial` gives less than `OFF_SUPPORT_BELOW` (article 2)."""
    logp_BT = at_tokens(row_logps(initial, rollout.prompt_CP, rollout.response_BT), rollout.response_BT)
    return (logp_BT[rollout.mask_BT] < math.log(OFF_SUPPORT_BELOW)).double().mean().item()


@torch.no_grad()
def kl_on_prefixes(p: Qwen3ForCausalLM, q: Qwen3ForCausalLM, rollout: Rollout, /) -> float:
    """``KL(p||q)`` of the next token in nats, mean over the prefixes of a rollout, whoever sampled it."""
    row_p = row_logps(p, rollout.prompt_CP, rollout.response_BT)
    row_q = row_logps(q, rollout.prompt_CP, rollout.response_BT)
    return kl(row_p, row_q)[rollout.mask_BT].double().mean().item()


def kl_between(p: Qwen3ForCausalLM, q: Qwen3ForCausalLM, environment: Mini, /, *, seed: int) -> float:
    """``KL(p||q)`` in nats per token on prefixes that `p` itself samples on the held-out problems.

    The first argument's own samples: on anybody else's prefixes a collapse can hide (article 2).
    """
    return kl_on_prefixes(p, q, own_samples(p, environment, seed=seed))
