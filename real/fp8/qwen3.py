"""The arithmetic of `real.fp8.emulated` on a transformers Qwen3: what the torch sampler runs.

`emulate` installs the rounding of activations, cache and queries once, `quantised` rounds weights at each
sync:

    emulate(model, recipe)
    model.load_state_dict(quantised(trainer.state_dict(), recipe, draw=syncs_so_far))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from real.fp8.formats import FormatName, quantise_groups, round_to
from real.fp8.recipe import Recipe, apply_to_weight

ATTENTION = "lagfloor_rounded_sdpa"
"""Name of the rounding attention in transformers' table"""
_QUERY = "lagfloor_query"

STACKS: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""Linear layers as vLLM holds them. A block of rows can span two of them, so they are rounded stacked"""

_LAYER = re.compile(r"model\.layers\.\d+\.")


def quantised(weights: Mapping[str, Tensor], recipe: Recipe, /, *, draw: int = 0) -> dict[str, Tensor]:
    """State dict as the emulated engine would hold it after a sync.

    Parameters
    ----------
    weights : mapping of str to Tensor
        State dict of a ``Qwen3ForCausalLM``.
    recipe : Recipe
        What to round.
    draw : int
        Loads of this engine before this one; only matters to fresh weight noise.

    Returns
    -------
    dict of str to Tensor
        Copies; the decoder's linear weights rounded, all in their own dtype.

    Raises
    ------
    ValueError
        If `weights` holds no decoder layer, or one that is not a Qwen3's.
    """
    out = {name: tensor.detach().clone() for name, tensor in weights.items()}
    if not recipe.changes_weights:
        return out
    layers = sorted({found[0] for name in weights if (found := _LAYER.match(name))})
    if not layers:
        raise ValueError(
            "the weights must be a state dict of a Qwen3, got none with a name 'model.layers.N.'; "
            "pass model.state_dict()"
        )
    for layer in layers:
        for stack, parts in STACKS.items():
            names = [f"{layer}{part}.weight" for part in parts]
            if missing := [name for name in names if name not in weights]:
                raise ValueError(f"the weights must be those of a Qwen3, but {missing[0]} is missing")
            whole = torch.cat([weights[name].detach() for name in names])
            rounded = apply_to_weight(whole, recipe, layer=layer + stack, draw=draw)
            for name, part in zip(names, rounded.split([len(weights[n]) for n in names]), strict=True):
                out[name] = part.to(weights[name].dtype)
    return out


class RoundedCache(DynamicCache):
    """A key-value cache that rounds on the way in."""

    rounding: FormatName

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Round keys (already rotated) and values, then store them."""
        key_states, value_states = (round_to(x, self.rounding) for x in (key_states, value_states))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def _rounded_attention(module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Round the queries after their rotation; keys and values come rounded from the cache."""
    form = getattr(module, _QUERY, None)  # models that share a configuration share this function
    return sdpa_attention_forward(
        module, query if form is None else round_to(query, form), key, *args, **kwargs
    )


AttentionInterface.register(ATTENTION, _rounded_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def emulate(model: Qwen3ForCausalLM, recipe: Recipe, /) -> None:
    """Make a model compute as the emulated engine does, from its next forward on; call once.

    Weights are left alone: give them through `quantised`. The model must be float32, as the emulation
    computes; a plain cache passed to it becomes a rounding one in place.

    Raises
    ------
    ValueError
        For a model that is not float32 or not a Qwen3, or that is emulated already.
    """
    if not isinstance(model, Qwen3ForCausalLM):
        raise ValueError(f"the emulation knows Qwen3ForCausalLM, got {type(model).__name__}")
    if model.dtype != torch.float32:
        raise ValueError(
            f"the emulation computes in float32, got a model in {model.dtype}; call model.float()"
        )
    if hasattr(model, "lagfloor_recipe"):
        raise ValueError("this model is emulated already; build a new one for another recipe")
    model.lagfloor_recipe = recipe  # type: ignore[assignment]
    if recipe.activations is not None:
        form, group, ue8m0 = recipe.activations, recipe.block[1], recipe.ue8m0

        def round_input(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (quantise_groups(args[0], form, group=group, ue8m0=ue8m0), *args[1:])

        for layer in model.model.layers:
            for parts in STACKS.values():
                for part in parts:
                    layer.get_submodule(part).register_forward_pre_hook(round_input)
    if recipe.kv is not None:
        kv = recipe.kv

        def round_cache(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            cache = kwargs.get("past_key_values")
            if cache is None:
                cache = DynamicCache(config=model.config)
            if not isinstance(cache, RoundedCache):
                if type(cache) is not DynamicCache:
                    raise ValueError(f"the emulation rounds a DynamicCache, got {type(cache).__name__}")
                cache.__class__ = RoundedCache
                cache.rounding = kv  # type: ignore[attr-defined]
            return args, kwargs | {"past_key_values": cache}

        model.model.register_forward_pre_hook(round_cache, with_kwargs=True)
        if recipe.query:
            for layer in model.model.layers:
                setattr(layer.get_submodule("self_attn"), _QUERY, kv)
            model.set_attn_implementation(ATTENTION)
