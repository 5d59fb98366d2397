"""The policy: a Qwen3 of 124,800 parameters, its checkpoint, and its log-probabilities.

Suffixes: C prompts, N samples of each, B = C*N responses (group-major), P prompt tokens, T response tokens,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from real.countdown import COUNTDOWN
from real.task import EOS, PAD, Task
from real.weights_file import EMBEDDING, TIED, header_of, refuse_other_model, refuse_other_task

CHECKPOINT = COUNTDOWN.checkpoint
"""The warm start that `python -m real.warmstart` made"""
POSITIONS = 64
"""At least: the shipped configuration of the short task"""


def config(task: Task = COUNTDOWN, /) -> Qwen3Config:
    """Architecture of the mini model: that of Qwen3, with tied embeddings, at 124,800 parameters.

    A task changes the vocabulary, 64 parameters a word, and the number of positions.
    """
    return Qwen3Config(
        vocab_size=len(task.vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max(POSITIONS, task.prompt_tokens + task.response_tokens + 1),
        tie_word_embeddings=True,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=PAD,
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        dtype="float32",
    )


def build(task: Task = COUNTDOWN, /, *, seed: int = 0) -> Qwen3ForCausalLM:
    """Return the mini model with random weights in float32; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config(task)).float().eval()


def load(path: Path | str = CHECKPOINT, /, *, task: Task = COUNTDOWN) -> Qwen3ForCausalLM:
    """Return the mini model with the weights of a safetensors file.

    Raises
    ------
    ValueError
        If the file is missing, is no safetensors file, or holds another model.
    """
    model = build(task)
    model.load_state_dict(read_weights(path, like=model, task=task))
    return model


def read_weights(
    path: Path | str, /, *, like: Qwen3ForCausalLM, task: Task | None = None
) -> dict[str, Tensor]:
    """Read a full state dict, tied head included, from a safetensors file; errors as `load`.

    Tasks of equally many characters have models of equal shapes: with `task`, a file that says it is of
    another is refused.
    """
    head = header_of(path)
    if task is not None:
        refuse_other_task(head, task)
    try:
        with safe_open(head.path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ValueError(f"{head.path} is not a readable safetensors file ({error}); make it anew") from None
    weights.setdefault(TIED, weights.get(EMBEDDING, torch.empty(0)))
    refuse_other_model(
        head.path,
        {name: tuple(tensor.shape) for name, tensor in weights.items()},
        {name: tuple(tensor.shape) for name, tensor in like.state_dict().items()},
    )
    return weights


def without_tied(weights: Mapping[str, Tensor], /) -> dict[str, Tensor]:
    """Copy of a state dict as safetensors wants it: contiguous, the tied head left out."""
    return {n: t.detach().clone().contiguous() for n, t in weights.items() if n != TIED}


def flatten(model: Qwen3ForCausalLM, tau: float, /) -> None:
    """Divide all logits by `tau` in place, through the gain of the last norm: a flatter start."""
    if not tau > 0:
        raise ValueError(f"tau divides the logits, so it must be > 0, got {tau}; 1 leaves the model alone")
    with torch.no_grad():
        model.model.norm.weight.mul_(1.0 / tau)


def prefill(model: Qwen3ForCausalLM, prompt_CP: Tensor, samples: int) -> tuple[Tensor, DynamicCache]:
    """Run each prompt once and share it: logits after it, shape (B, V), and a cache of B rows.

    Eight samples of a seven-token prompt make half of all positions copies; sharing keeps the gradient exact.
    """
    cache = DynamicCache(config=model.config)
    logits_CV = model(input_ids=prompt_CP, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
        :, -1
    ]
    if samples > 1:
        cache.batch_repeat_interleave(samples)
    return logits_CV.repeat_interleave(samples, 0), cache


def row_logps(model: Qwen3ForCausalLM, prompt_CP: Tensor, response_BT: Tensor) -> Tensor:
    """Log-probabilities of the whole vocabulary at every response position.

    Parameters
    ----------
    model : Qwen3ForCausalLM
        Differentiated through unless grad is off.
    prompt_CP : Tensor, shape (C, P)
        Token ids, no padding.
    response_BT : Tensor, shape (C * samples, T)
        Token ids, group-major; what stands after the end mark only changes later positions.

    Returns
    -------
    Tensor, shape (B, T, V)
        Nats, float32; position t is the distribution that token t was drawn from.
    """
    samples, rest = divmod(len(response_BT), len(prompt_CP))
    if rest or samples == 0:
        raise ValueError(
            f"every prompt needs the same number of responses, got {len(response_BT)} for {len(prompt_CP)}"
        )
    first_BV, cache = prefill(model, prompt_CP, samples)
    logits_BTV = first_BV[:, None]
    if response_BT.shape[1] > 1:
        later = model(input_ids=response_BT[:, :-1], past_key_values=cache, use_cache=True).logits
        logits_BTV = torch.cat([logits_BTV, later], dim=1)
    return torch.log_softmax(logits_BTV.float(), dim=-1)


def at_tokens(row_BTV: Tensor, response_BT: Tensor) -> Tensor:
    """Entries of the rows at the sampled tokens, shape (B, T)."""
    return row_BTV.gather(-1, response_BT[..., None])[..., 0]
