"""Read a Qwen3 from a folder or the hub: configuration, tokenizer, weights. No code of it ever runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

QWEN3_0_6B = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "pad_token_id": 151_643,
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": QWEN3_0_6B,
    "Qwen/Qwen3-1.7B": QWEN3_0_6B | {"hidden_size": 2048, "intermediate_size": 6144},
}
"""The articles' two models, so that a plan needs no download"""


def read_config(model: str, /, *, known_shapes: bool = False) -> Qwen3Config:
    """Architecture of a model.

    Parameters
    ----------
    model : str
        A folder with ``config.json``, or a hub id.
    known_shapes : bool
        Take the models of `SHAPES` from there in place of the hub.

    Raises
    ------
    ValueError
        In one line, where nothing is found or it is no dense Qwen3.
    """
    if known_shapes and model in SHAPES and not Path(model).exists():
        return Qwen3Config(**SHAPES[model])
    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(_not_found(model, error)) from None
    if not isinstance(config, Qwen3Config):
        raise ValueError(f"the model must be a dense Qwen3 (model_type 'qwen3'), got {config.model_type!r}")
    return config


def read_tokenizer(model: str, /) -> Any:
    """Tokenizer of a model; ValueError where there is none, or it has no chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(_not_found(model, error)) from None
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer of {model} has no chat template; use an instruct Qwen3")
    return tokenizer


def read_model(
    model: str, /, *, device: torch.device | str = "cpu", gradient_checkpointing: bool = False
) -> Qwen3ForCausalLM:
    """Trainer's model with float32 parameters, in training mode.

    Parameters are float32 whatever the checkpoint: a plain SGD step is smaller than a bfloat16 spacing, and
    would be rounded away. On a card the trainer computes in bfloat16 from them; log-probs are float32
    throughout.
    """
    read_config(model)
    try:
        loaded = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise ValueError(_not_found(model, error)) from None
    loaded.to(torch.device(device)).train()  # type: ignore[call-arg]
    if gradient_checkpointing:
        loaded.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return loaded


def _not_found(model: str, error: Exception) -> str:
    line = " ".join(str(error).split())[:200]
    return f"the model must be a Qwen3 folder or a hub id, got {model!r}, which cannot be read: {line}"
