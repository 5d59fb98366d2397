"""Which tensors of an engine are rounded, and how: `Recipe`, the named strengths, and weights under them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from real.fp8.formats import FORMATS, FormatName, quantise_weight
from theory.experiment import Numerics
from theory.limits import refuse_choice, refuse_count, refuse_flag, refuse_real, shown

ENGINE_NAME = "lagfloor_emulated"
"""Name of the vLLM quantisation that `real.fp8.emulated` registers: ``quant_method`` of a configuration"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an engine of low precision rounds. Head, embedding and norms stay, as in vLLM's block FP8."""

    weights: FormatName | None = None
    """Of the decoder's linear layers, block by block"""
    activations: FormatName | None = None
    """Inputs of those layers, in groups of ``block[1]`` channels of one token"""
    kv: FormatName | None = None
    """Keys (after rotation) and values as the cache holds them, with scale 1"""
    query: bool = False
    """Queries too, in the format of `kv`: FlashAttention 3 does so when the cache is FP8"""
    block: tuple[int, int] = (128, 128)
    ue8m0: bool = False
    """Scales that are powers of two"""
    noise: float = 0.0
    """Standard deviation of a Gaussian relative error of each weight, in place of a format"""
    noise_seed: int = 0
    fresh: bool = False
    """Draw the noise anew at every sync in place of freezing it"""

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for field in ("weights", "activations", "kv"):
            name = getattr(self, field)
            if name is not None:
                refuse_choice(f"format of {field}", name, (*FORMATS, "or None"))
        if not isinstance(self.block, tuple) or len(self.block) != 2:
            raise ValueError(
                f"block is a tuple of two sides, got {shown(self.block)}; (128, 128) is the usual"
            )
        for side in self.block:
            refuse_count("a side of block", side, least=1)
        for field in ("query", "ue8m0", "fresh"):
            refuse_flag(field, getattr(self, field))
        if self.query and self.kv is None:
            raise ValueError(
                "queries are rounded to the cache's format, but kv is None; set kv or query=False"
            )
        refuse_real("the relative weight noise", self.noise, least=0)
        refuse_count("noise_seed", self.noise_seed, least=0, most=math.inf)

    @property
    def changes_weights(self) -> bool:
        """Whether weights differ from the trainer's."""
        return self.weights is not None or self.noise > 0

    def to_config(self) -> dict[str, Any]:
        """Plain values for a model's ``quantization_config``."""
        return dataclasses.asdict(self) | {"block": list(self.block)}

    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's ``LLM(...)`` that make it round so; import `real.fp8.emulated` before."""
        config = {"quant_method": ENGINE_NAME} | self.to_config()
        return {"hf_overrides": {"quantization_config": config}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /) -> Recipe:
        """Inverse of `to_config`; keys that are not fields (``quant_method``) are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        fields: dict[str, Any] = {name: value for name, value in config.items() if name in names}
        if "block" in fields:
            fields["block"] = tuple(fields["block"])
        return cls(**fields)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        # three strengths of the articles' FP8 sampler, each adding one rounding
        "fp8-weights": Recipe(weights="e4m3"),
        "fp8-linear": Recipe(weights="e4m3", activations="e4m3"),
        "fp8": Recipe(weights="e4m3", activations="e4m3", kv="e4m3", query=True),
        # coarser formats
        "e5m2": Recipe(weights="e5m2", activations="e5m2"),
        "int4": Recipe(weights="int4", activations="e4m3"),
        "e2m1": Recipe(weights="e2m1", activations="e2m1", block=(32, 32)),
    }
)


def recipe_of(numerics: Numerics, /, *, seed: int = 0) -> Recipe | None:
    """Recipe of an experiment's numerics; None where the engine rounds nothing of its own ("exact", "bf16").

    Raises
    ------
    ValueError
        For numerics that only the toy has.
    """
    if numerics.kind in ("exact", "bf16"):
        return None
    if numerics.kind == "weight-noise":
        return Recipe(noise=numerics.scale, noise_seed=seed, fresh=numerics.fresh)
    if numerics.kind in RECIPES:
        return RECIPES[numerics.kind]
    known = ", ".join(["exact", "bf16", "weight-noise", *(n for n in RECIPES if "-" not in n)])
    raise ValueError(f"a real engine has no numerics {numerics.kind!r}; known: {known}")


def apply_to_weight(weight_MK: Tensor, recipe: Recipe, /, *, layer: str, draw: int = 0) -> Tensor:
    """Weight of one linear layer as the engine multiplies by it, float32.

    Parameters
    ----------
    weight_MK : Tensor, shape (M, K)
        The layer as the engine holds it: vLLM stacks query, key and value, and gate and up, and a block may
        span two of them.
    recipe : Recipe
        What to round.
    layer : str
        The layer's name in the engine: seeds the noise, so that both engines draw the same.
    draw : int
        How many syncs came before; only matters to fresh noise.
    """
    weight = weight_MK.float()
    if recipe.noise > 0:
        key = f"{recipe.noise_seed}/{layer}/{draw if recipe.fresh else 0}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
        generator = torch.Generator().manual_seed(seed)
        error = torch.randn(weight.shape, generator=generator).to(weight.device)
        weight = weight * (1 + recipe.noise * error)
    if recipe.weights is None:
        return weight
    source = weight_MK if recipe.noise == 0 else weight
    return quantise_weight(source, recipe.weights, block=recipe.block, ue8m0=recipe.ue8m0)
