"""Out-of-tree vLLM quantisation that rounds as a `Recipe` says, on any card or CPU that vLLM runs on.

Importing this module registers it under the name `ENGINE_NAME`; do so before ``LLM(...)`` and in the same
process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``). Weights are rounded in ``process_weights_after_loading``,
which vLLM runs at load and again inside every ``reload_weights``: each sync re-quantises. Nothing of vLLM
is replaced, so engines beside it are untouched: only the attention objects of a model with this
quantisation round.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import replace_parameter, set_weight_attrs

from real.fp8.formats import quantise_groups, round_to
from real.fp8.recipe import ENGINE_NAME, Recipe, apply_to_weight


class EmulatedLinear(LinearMethodBase):
    """A linear layer whose weight and input are rounded and whose product is accumulated in float32."""

    def __init__(self, recipe: Recipe, layer: str) -> None:
        self.recipe = recipe
        self.layer = layer
        self.loads = 0

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register one weight for all stacked outputs."""
        loader = extra_weight_attrs.pop("weight_loader")
        empty = torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype)
        weight = ModelWeightParameter(data=empty, input_dim=1, output_dim=0, weight_loader=loader)
        layer.register_parameter("weight", weight)
        set_weight_attrs(weight, extra_weight_attrs)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Round what was just loaded; float32, since a scaled low-precision number need not fit bfloat16."""
        weight = apply_to_weight(layer.weight.data, self.recipe, layer=self.layer, draw=self.loads)
        self.loads += 1
        replace_parameter(layer, "weight", weight)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Round the input, multiply, and return the engine's dtype."""
        form = self.recipe.activations
        rounded = x.float()
        if form is not None:
            rounded = quantise_groups(x, form, group=self.recipe.block[1], ue8m0=self.recipe.ue8m0)
        return F.linear(rounded, layer.weight, None if bias is None else bias.float()).to(x.dtype)


def _round_attention(attention: Any, recipe: Recipe) -> None:
    """Make one attention object, whichever backend vLLM chose for it, round what enters its cache."""
    form = recipe.kv
    if (
        form is None or getattr(attention, "lagfloor_recipe", None) is not None
    ):  # vLLM asks again after loading
        return
    attention.lagfloor_recipe = recipe
    store, attend = attention.do_kv_cache_update, attention.forward

    def store_rounded(layer: nn.Module, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        return store(layer, round_to(key, form), round_to(value, form), *args, **kwargs)

    def attend_rounded(layer: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        return attend(layer, round_to(query, form), *args, **kwargs)

    attention.do_kv_cache_update = store_rounded
    if recipe.query:
        attention.forward = attend_rounded


@register_quantization_config(ENGINE_NAME)
class EmulatedConfig(QuantizationConfig):
    """What vLLM asks a quantisation for."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe

    @classmethod
    def get_name(cls) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Name in the model's configuration."""
        return ENGINE_NAME

    @classmethod
    def get_supported_act_dtypes(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
    ) -> list[torch.dtype]:
        """Dtypes between layers; the layers themselves compute in float32."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Compute capability: none is needed."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """No file of its own: everything stands in the model's configuration."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmulatedConfig:
        """Recipe from the model's configuration."""
        return cls(Recipe.from_config(config))

    def get_quant_method(self, layer: nn.Module, prefix: str) -> EmulatedLinear | None:
        """Round the decoder's linear layers; None leaves head and embedding alone."""
        if isinstance(layer, LinearBase):
            return EmulatedLinear(self.recipe, prefix)
        if isinstance(layer, Attention):
            _round_attention(layer.impl, self.recipe)
        return None
