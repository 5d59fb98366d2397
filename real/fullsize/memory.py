"""What a full-size run takes, part by part, before it is started.

Parameters, gradients, copies and caches are counted; activations are estimated from the tensors that a
decoder layer keeps, and the libraries' own workspaces are an allowance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import Qwen3Config

from real.fullsize.devices import DevicePlan
from real.fullsize.settings import FullSize
from real.fused.products import chunk_size

ALLOWANCE = 1 * 2**30
"""CUDA context, library workspaces and fragmentation of one process, bytes"""
MOST_SEQUENCES = 256
"""Requests that vLLM runs at a time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by part, of the trainer and of the sampler."""

    trainer: Mapping[str, int]
    sampler: Mapping[str, int]

    @property
    def trainer_bytes(self) -> int:
        """Sum of the trainer's parts."""
        return sum(self.trainer.values())

    @property
    def sampler_bytes(self) -> int:
        """Sum of the sampler's parts."""
        return sum(self.sampler.values())


def head_dim(config: Qwen3Config, /) -> int:
    """Channels of one attention head."""
    return config.head_dim or config.hidden_size // config.num_attention_heads


def key_heads(config: Qwen3Config, /) -> int:
    """Heads of keys and values."""
    return config.num_key_value_heads or config.num_attention_heads


def parameters(config: Qwen3Config, /) -> tuple[int, int]:
    """Parameters of the decoder's linear layers, and all others (embedding, head, norms)."""
    H, D = config.hidden_size, head_dim(config)
    queries, keys = config.num_attention_heads * D, key_heads(config) * D
    linear = H * queries + 2 * H * keys + queries * H + 3 * H * config.intermediate_size
    norms = 2 * H + 2 * D
    heads = 1 if config.tie_word_embeddings else 2
    layers = config.num_hidden_layers
    return layers * linear, layers * norms + H + heads * config.vocab_size * H


def kv_bytes_per_token(config: Qwen3Config, itemsize: int, /) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * config.num_hidden_layers * key_heads(config) * head_dim(config) * itemsize


def estimate(
    config: Qwen3Config, environment: FullSize, devices: DevicePlan, /, *, responses: int
) -> MemoryEstimate:
    """Estimate the memory of a run.

    Parameters
    ----------
    config : Qwen3Config
        The model.
    environment : FullSize
        Sizes, precision, and where the frozen copy lives.
    devices : DevicePlan
        Decides the compute dtype.
    responses : int
        Responses of a batch: prompts x samples.
    """
    linear, rest = parameters(config)
    both = linear + rest
    H, V = config.hidden_size, config.vocab_size
    low = devices.on_card  # bfloat16 products
    tokens = environment.micro_batch_tokens
    trained = min(tokens, environment.max_response_tokens * max(1, tokens // environment.max_tokens))
    residual = tokens * H * 4
    # one layer's tensors alive while it is differentiated: normed inputs, q k v, attention, gate, up, product
    wide = 4 * H + 3 * config.num_attention_heads * head_dim(config) + 4 * config.intermediate_size
    one_layer = tokens * wide * (2 if low else 4) * 2
    kept = config.num_hidden_layers * residual
    if not environment.gradient_checkpointing:
        kept += config.num_hidden_layers * one_layer // 2
    trainer = {
        "weights, float32": 4 * both,
        "gradients, float32": 4 * both,
        "frozen copy of the sampler's weights": 0 if environment.frozen_on_cpu and low else 4 * both,
        "weights in bfloat16 while computing": 2 * both if low else 0,
        "activations of a micro-batch": kept + one_layer,
        "head: one chunk of logits and its gradient in float32": chunk_size(trained, V) * V * 4 + 4 * V * H,
        "columns of the batch": responses * environment.max_response_tokens * (environment.top_k + 1) * 12,
        "allowance": ALLOWANCE,
    }
    sampler_itemsize = 2 if environment.precision in ("bf16", "fp8") or low else 4
    linear_itemsize = {"bf16": 2, "fp8": 1}.get(environment.precision, 4)  # emulated weights are float32
    kv_itemsize = 1 if environment.precision == "fp8" else sampler_itemsize
    at_once = min(MOST_SEQUENCES, responses)
    sampler = {
        "weights": linear * linear_itemsize + rest * sampler_itemsize,
        "keys and values": at_once * environment.max_tokens * kv_bytes_per_token(config, kv_itemsize),
        "logits and log-probs of a step": at_once * V * 4 * 3,
        "allowance": ALLOWANCE,
    }
    return MemoryEstimate(trainer=trainer, sampler=sampler)
