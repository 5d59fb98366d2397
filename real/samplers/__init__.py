"""Samplers with one interface: `base` says which, `torch_sampler` and `vllm_sampler` are the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from real.samplers.base import Sampler
    from real.settings import Mini


def open_sampler(environment: Mini, /) -> Sampler:
    """Start the sampler an environment names; it holds no weights before its first sync.

    Raises
    ------
    ValueError
        If it is vLLM and vllm cannot be imported.
    """
    if environment.sampler == "torch":
        from real.samplers.torch_sampler import TorchSampler

        return TorchSampler()
    from real.samplers.vllm_sampler import VllmSampler  # seconds to import, so only where it is asked for

    return VllmSampler()
