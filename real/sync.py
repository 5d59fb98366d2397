"""Push the trainer's weights to the sampler, and prove by log-probs that they arrived.

A sync can fail without a word: an engine that packs a tied head separately keeps the old one, a prefix cache
serves old keys. So after every sync the engine and the trainer score the same fixed prefixes, and a
difference beyond rounding is an error. Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.countdown import COUNTDOWN
from real.fp8.recipe import Recipe
from real.model import prefill
from real.samplers.base import Sampler
from real.samplers.torch_sampler import TorchSampler
from real.task import Task
from theory.faults import EngineFault

BOUND = 1e-4
"""Largest rms difference in nats at equal weights in float32: a hundred times the 1e-6 that rounding leaves,
a thousandth of the .13 that a stale head left"""

BOUND_BFLOAT16 = 6e-2
"""The same for bfloat16; .02 measured on these probes"""

AGREEING = 0.75
"""Share of the probes that must agree to `BOUND` where the trainer's side of the proof rounds as the engine
does. A value that falls on the other side of a rounding moves the rest of its row and no other: one row of 32
over 22 updates, by .02 to .35 nats, and 5e-7 in the middle row; a head five updates old moves every row, .135
in the middle"""

BOUND_ROUNDED = 0.25
"""Largest rms difference over all probes then"""

PROBES = 32
PROBE_DEPTH = 3
"""Tokens of a solution after the prompt: deep enough for wrong keys in a cache to show"""


class SyncError(EngineFault):
    """The engine does not hold the weights it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProof:
    """What one sync cost and how close engine and trainer were after it."""

    version: int
    """Updates behind the weights"""
    rms: float
    """Rms over probes and vocabulary of log-prob of engine minus trainer, nats"""
    largest: float
    """Largest absolute difference, nats"""
    seconds: float
    """Wall time of the push alone"""
    seconds_proof: float
    """Wall time of the proof"""


@lru_cache(maxsize=4)
def probe_prefixes(task: Task = COUNTDOWN, /) -> Tensor:
    """Return fixed prefixes of training problems and solutions, shape (PROBES, prompt + PROBE_DEPTH)."""
    length = task.prompt_tokens + PROBE_DEPTH
    pool = task.problems(PROBES, seed=0, split="train")
    return torch.tensor([task.encode(p.prompt + p.solution)[:length] for p in pool])


class Proof:
    """Pushes weights and compares what the engine then computes with what it should.

    Parameters
    ----------
    recipe : Recipe or None
        What the engine rounds; the comparison rounds the same.
    kind : str
        Kind of the numerics.
    task : Task
        Whose prefixes are scored.
    """

    def __init__(self, recipe: Recipe | None = None, kind: str = "exact", task: Task = COUNTDOWN) -> None:
        self.task = task
        self.twin = None if recipe is None else TorchSampler(task, recipe=recipe)
        self.bound = BOUND if kind == "exact" else BOUND_BFLOAT16 if recipe is None else BOUND_ROUNDED
        self.common = math.inf if recipe is None else BOUND

    def push(
        self, sampler: Sampler, model: Qwen3ForCausalLM, frozen: Qwen3ForCausalLM, version: int
    ) -> SyncProof:
        """Copy the trainer's weights to the sampler and to the trainer's frozen copy, and compare the two.

        Parameters
        ----------
        sampler : Sampler
            The engine.
        model : Qwen3ForCausalLM
            The trainer's weights.
        frozen : Qwen3ForCausalLM
            Overwritten; from now on it is what pi_s is computed from.
        version : int
            Updates behind the weights.

        Raises
        ------
        SyncError
            If engine and trainer differ by more than the bound.
        """
        start = time.perf_counter()
        weights = model.state_dict()
        sampler.sync(weights, version)
        frozen.load_state_dict(weights)
        pushed = time.perf_counter()
        if self.twin is not None:
            self.twin.sync(weights, version)
        row_B, largest = _gaps(sampler, frozen if self.twin is None else self.twin.model, self.task)
        rms = row_B.square().mean().sqrt().item()
        common = row_B.kthvalue(math.ceil(AGREEING * len(row_B))).values.item()
        if not (rms <= self.bound and common <= self.common):
            most = there = ""
            if self.twin is not None:
                most = f" ({self.common:g} at {AGREEING:.0%} of the prefixes)"
                there = f"{common:.3g} there, "
            raise SyncError(
                f"a synced engine must give the trainer's log-probs to {self.bound:g} nats rms{most}, "
                f"got {rms:.3g} ({there}largest {largest:.3g}) at version {version}; it did not "
                "take the weights: check how it loads them"
            )
        return SyncProof(
            version=version,
            rms=rms,
            largest=largest,
            seconds=pushed - start,
            seconds_proof=time.perf_counter() - pushed,
        )


def compare(sampler: Sampler, model: Qwen3ForCausalLM, task: Task = COUNTDOWN) -> tuple[float, float]:
    """Rms and largest difference in nats between the engine's and the model's rows at the probe prefixes."""
    row_B, largest = _gaps(sampler, model, task)
    return row_B.square().mean().sqrt().item(), largest


@torch.no_grad()
def _gaps(sampler: Sampler, model: Qwen3ForCausalLM, task: Task) -> tuple[Tensor, float]:
    """Rms difference of each probe's row, shape (B,), and the largest difference of all, nats."""
    prefix_BP = probe_prefixes(task)
    logits_BV, _ = prefill(model, prefix_BP, 1)
    gap_BV = sampler.next_logps(prefix_BP).double() - torch.log_softmax(logits_BV.float(), dim=-1).double()
    return gap_BV.square().mean(1).sqrt(), gap_BV.abs().max().item()
