"""vLLM on a CPU under TRL: an engine that starts in seconds, and weights that arrive.

TRL gives its engine one parameter at a time. On a CPU vLLM has packed the float32 weights by then and cannot
take them back, and a tied head that does not come along stays as it was, without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

CACHE_BYTES = 2**27
"""Key-value cache in place of nine tenths of all memory"""


@contextmanager
def small_engine(**settings: Any) -> Iterator[None]:
    """Let the engine TRL builds inside start without compiling and with a small cache."""
    from trl.generation import vllm_generation

    plain = vllm_generation.LLM
    small = {"enforce_eager": True, "kv_cache_memory_bytes": CACHE_BYTES, "enable_chunked_prefill": False}
    vllm_generation.LLM = partial(plain, **small | settings)
    try:
        yield
    finally:
        vllm_generation.LLM = plain


def load_whole(generation: Any) -> None:
    """Make a colocated engine take the whole state dict at each sync, tied head included."""

    def sync_weights() -> None:
        model = generation.accelerator.unwrap_model(generation.model)
        weights = ((name, tensor.detach()) for name, tensor in model.state_dict().items())
        generation.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        generation.llm.reset_prefix_cache()

    generation.sync_weights = sync_weights
