"""The sampler of a full-size run: vLLM in this process, the top K of each position, weights by sync.

Suffixes: B responses (group-major), N tokens of all responses in a row.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from real.fp8.precision import EngineChoice, choose
from real.fp8.recipe import recipe_of
from real.fullsize.devices import DevicePlan
from real.fullsize.memory import MOST_SEQUENCES, MemoryEstimate
from real.fullsize.settings import FullSize
from real.fused.columns import MuTopK, from_engine, join
from theory.experiment import Numerics

SHARE_ALONE = 0.9
"""Share of a card of its own that vLLM may take"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRollout:
    """Responses to a batch of prompts, and the sampler's columns at each of their tokens."""

    prompts: Sequence[Sequence[int]]
    """Token ids, one sequence a prompt"""
    responses: Sequence[Sequence[int]]
    """Token ids, group-major"""
    mu: MuTopK
    """The tokens of all responses in a row"""
    finish: Sequence[str]
    """Why each response ended, in vLLM's words"""

    @property
    def samples(self) -> int:
        """Responses to each prompt."""
        return len(self.responses) // len(self.prompts)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return [len(r) for r in self.responses]


def choice_of(
    environment: FullSize, numerics: Numerics, devices: DevicePlan, /, *, seed: int
) -> EngineChoice:
    """Engine settings of a run: the environment's precision, or the emulated numerics of the experiment."""
    dtype = "bfloat16" if devices.on_card else "float32"
    choice = choose(environment.precision, dtype=dtype, hardware=devices.hardware)
    recipe = recipe_of(numerics, seed=seed)
    if recipe is None:
        return choice
    if environment.precision not in ("fp32", "bf16"):
        raise ValueError(
            f"numerics {numerics.kind!r} would come on top of precision {environment.precision!r}; "
            "leave one of them out"
        )
    return EngineChoice(arguments=dict(choice.arguments) | recipe.engine_arguments(), recipe=recipe)


def engine_arguments(
    environment: FullSize,
    choice: EngineChoice,
    devices: DevicePlan,
    need: MemoryEstimate,
    /,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of vLLM's ``LLM(...)``, without the model.

    Raises
    ------
    ValueError
        If trainer and sampler do not fit the card they share, by the estimate.
    """
    arguments: dict[str, Any] = {
        "seed": seed,
        "max_model_len": environment.max_tokens,
        "max_num_seqs": MOST_SEQUENCES,
        # the distribution really drawn from; the default reports the logits before temperature
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": environment.top_k,
        # keys of old weights would survive a sync
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    } | dict(choice.arguments)
    if not devices.on_card:
        return arguments | {
            "enforce_eager": True,
            "kv_cache_memory_bytes": need.sampler["keys and values"],
            # seeded requests whose prefill is split crash on the CPU (vLLM 0.32)
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(2048, environment.max_tokens),
        }
    total = devices.cards[0].bytes
    if not devices.shared:
        return arguments | {"gpu_memory_utilization": SHARE_ALONE}
    if need.trainer_bytes + need.sampler_bytes > total:
        gib = 2**30
        raise ValueError(
            f"trainer ({need.trainer_bytes / gib:.1f} GiB) and sampler ({need.sampler_bytes / gib:.1f} GiB) "
            f"must fit the card they share ({total / gib:.1f} GiB); use two cards, frozen_on_cpu or smaller "
            "micro-batches"
        )
    share = 1.0 - need.trainer_bytes / total
    return arguments | {"gpu_memory_utilization": round(min(share, SHARE_ALONE), 3)}


@contextmanager
def environment_of(choice: EngineChoice) -> Iterator[None]:
    """Set the variables a precision needs, and put back what was there."""
    before = {name: os.environ.get(name) for name in choice.environment}
    os.environ.update(choice.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class FullSampler:
    """One vLLM engine with the weights of a checkpoint, until it is synced.

    Parameters
    ----------
    environment : FullSize
        Model, sizes, temperature.
    choice : EngineChoice
        Precision; `choice_of`.
    arguments : mapping
        Of ``LLM(...)``; `engine_arguments`.
    """

    def __init__(self, environment: FullSize, choice: EngineChoice, arguments: Mapping[str, Any]) -> None:
        from real.samplers.vllm_sampler import import_vllm, quiet

        self._environment = environment
        with environment_of(choice):
            vllm = import_vllm()
            if choice.recipe is not None:
                import_module("real.fp8.emulated")
            self._parameters = vllm.SamplingParams
            with quiet():
                self._engine = vllm.LLM(environment.model, **arguments)
        self.version = 0

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load a full state dict, tied head included, into the running engine, by copy; it re-quantises."""
        if "lm_head.weight" not in weights:
            raise ValueError(
                "a sync needs the full state dict, got one without 'lm_head.weight'; pass model.state_dict()"
            )
        iterator = ((name, tensor.detach()) for name, tensor in weights.items())
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iterator})
        self._engine.reset_prefix_cache()
        self.version = version

    def sample(self, prompts: Sequence[Sequence[int]], samples: int, seed: int) -> FullRollout:
        """Draw `samples` responses to each prompt; each is a request with a seed of its own."""
        environment, k = self._environment, self._environment.top_k
        requests = [{"prompt_token_ids": list(p)} for p in prompts for _ in range(samples)]
        seeds = np.random.SeedSequence(seed).generate_state(len(requests), np.uint64) >> 2
        parameters = [
            self._parameters(
                max_tokens=environment.max_response_tokens,
                temperature=environment.temperature,
                logprobs=k,
                flat_logprobs=True,
                detokenize=False,
                seed=int(s),
            )
            for s in seeds
        ]
        outputs = [o.outputs[0] for o in self._engine.generate(requests, parameters, use_tqdm=False)]
        parts = [
            from_engine(o.logprobs.token_ids, o.logprobs.logprobs, k, version=self.version) for o in outputs
        ]
        return FullRollout(
            prompts=prompts,
            responses=[list(o.token_ids) for o in outputs],
            mu=join(parts),
            finish=[str(o.finish_reason) for o in outputs],
        )

    def close(self) -> None:
        """Shut the engine down and give its memory back."""
        del self._engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def check_vocabulary(config: Qwen3Config, environment: FullSize, /) -> None:
    """Refuse more columns than the vocabulary has."""
    if environment.top_k > config.vocab_size:
        raise ValueError(
            f"top_k must be at most the vocabulary's {config.vocab_size}, got {environment.top_k}"
        )
