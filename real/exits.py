"""Where a policy has gone that its start never went: seen on its own responses, and on the start's.

On the trainer's own responses an exit shows as tokens the initial policy hardly knows; on the responses of a
sampler that was never synced, only as far as the trainer leaves from prefixes the sampler visits. Claims
``off-support`` and ``invisible``. Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.evaluate import held_out, own_samples
from real.model import at_tokens, row_logps
from real.rewards import ended, rewards
from real.samplers.base import Rollout
from real.settings import Mini
from theory.decomposition import kl
from theory.finite_sample import missing_mass
from theory.records import OFF_SUPPORT_BELOW
from theory.support import exit_mass, off_support_share

SEGMENTS = 4
"""Parts of a response, by the longest there may be: behind an exit that absorbs, the share rises along it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """One policy beside the initial one, both on the held-out problems. Shares and nats per token."""

    accuracy: float
    length: float
    """Tokens of an own response, mean"""
    unended: float
    """Share of own responses cut off at the limit"""
    entropy: float
    """Of the policy on its own prefixes, nats per token"""
    off_support: float
    """Share of own tokens the initial policy gives less than `OFF_SUPPORT_BELOW`"""
    any_off: float
    """Share of own responses that hold such a token"""
    off_segments: tuple[float, ...]
    """Off-support share by quarter of the longest response; NaN where no response is that long"""
    exit_own: float
    """Probability of such a token, mean over own prefixes"""
    exit_sampler: float
    """The same over prefixes the initial policy visits: what a never-synced sampler's side could see"""
    kl_own: float
    """KL(policy||initial) on own prefixes"""
    kl_sampler: float
    """KL(initial||policy) on the initial policy's prefixes: the next-token KL of a never-synced sampler"""
    kl_sampler_reverse: float
    """KL(policy||initial) on the same prefixes"""
    missing: float
    """1 - mean(w) over tokens of the initial policy, w = policy/initial"""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The initial policy with responses of its own: prefixes that a never-synced sampler visits."""

    initial: Qwen3ForCausalLM
    visited: Rollout
    row_BTV: Tensor
    """Its rows there, nats"""


@torch.no_grad()
def start(initial: Qwen3ForCausalLM, environment: Mini, /) -> Start:
    """Sample the initial policy once: all policies are then measured on the same prefixes of it."""
    visited = own_samples(initial, environment, seed=0)
    return Start(initial, visited, _rows(initial, visited))


@torch.no_grad()
def exits(model: Qwen3ForCausalLM, start: Start, environment: Mini, /, *, seed: int) -> Exits:
    """Measure a policy against the one it started from.

    Parameters
    ----------
    model : Qwen3ForCausalLM
        The policy.
    start : Start
        What `start` gave for the same environment.
    environment : Mini
        Says which held-out problems and how many responses.
    seed : int
        Of the policy's responses.
    """
    task, visited = environment.definition, start.visited
    own = own_samples(model, environment, seed=seed)
    mine_BTV, known_BTV = _rows(model, own), _rows(start.initial, own)
    log_p0_BT = at_tokens(known_BTV, own.response_BT)
    off_BT = (log_p0_BT < math.log(OFF_SUPPORT_BELOW)) & own.mask_BT
    moved_BTV, stayed_BTV = _rows(model, visited), start.row_BTV
    log_w_BT = at_tokens(moved_BTV, visited.response_BT) - at_tokens(stayed_BTV, visited.response_BT)
    right_CN = rewards(own, held_out(environment.eval_prompts, task), task=task) > 0
    return Exits(
        accuracy=right_CN.double().mean().item(),
        length=own.mask_BT.sum(-1).double().mean().item(),
        unended=1 - ended(own).double().mean().item(),
        entropy=_mean(-(mine_BTV.exp() * mine_BTV).sum(-1), own),
        off_support=float(off_support_share(log_p0_BT, mask=own.mask_BT)),
        any_off=off_BT.any(-1).double().mean().item(),
        off_segments=_by_segment(log_p0_BT, own.mask_BT, task.response_tokens),
        exit_own=_mean(exit_mass(known_BTV, mine_BTV), own),
        exit_sampler=_mean(exit_mass(stayed_BTV, moved_BTV), visited),
        kl_own=_mean(kl(mine_BTV, known_BTV), own),
        kl_sampler=_mean(kl(stayed_BTV, moved_BTV), visited),
        kl_sampler_reverse=_mean(kl(moved_BTV, stayed_BTV), visited),
        missing=missing_mass(np.asarray(log_w_BT[visited.mask_BT])).value,
    )


def _rows(model: Qwen3ForCausalLM, rollout: Rollout) -> Tensor:
    return row_logps(model, rollout.prompt_CP, rollout.response_BT).double()


def _mean(value_BT: Tensor, rollout: Rollout) -> float:
    return value_BT[rollout.mask_BT].mean().item()


def _by_segment(log_p0_BT: Tensor, mask_BT: Tensor, limit: int) -> tuple[float, ...]:
    width = math.ceil(limit / SEGMENTS)
    parts = [slice(width * i, width * (i + 1)) for i in range(SEGMENTS)]
    return tuple(float(off_support_share(log_p0_BT[:, p], mask=mask_BT[:, p])) for p in parts)
