"""Samplers with one interface: `base` says which, `torch_sampler` and `vllm_sampler` are the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from real.fp8.recipe import recipe_of

if TYPE_CHECKING:
    from real.samplers.base import Sampler
    from real.settings import Mini
    from theory.experiment import Numerics


def open_sampler(environment: Mini, numerics: Numerics, /, *, seed: int = 0) -> Sampler:
    """Start the sampler an experiment names; it holds no weights before its first sync.

    Parameters
    ----------
    environment : Mini
        Says which engine.
    numerics : Numerics
        Its precision; `seed` fixes what is random in it.

    Raises
    ------
    ValueError
        If it is vLLM and vllm cannot be imported, or for numerics that only the toy has.
    """
    recipe = recipe_of(numerics, seed=seed)
    low = numerics.kind == "bf16"
    if environment.sampler == "torch":
        from real.samplers.torch_sampler import TorchSampler

        return TorchSampler(environment.definition, recipe=recipe, bfloat16=low)
    from real.samplers.vllm_sampler import VllmSampler  # seconds to import, so only where it is asked for

    return VllmSampler(environment.definition, recipe=recipe, bfloat16=low)
