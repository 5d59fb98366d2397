"""The sampler's precision by name: which arguments vLLM gets, which variables the process needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from real.fp8 import hopper
from real.fp8.recipe import RECIPES, Recipe

_SUFFIX = "-emulated"

PRECISIONS = ("fp32", "bf16", "fp8", *(name + _SUFFIX for name in RECIPES))
"""fp8 is vLLM's own on Hopper; NAME-emulated rounds as the recipe of that name on any machine"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """What a precision asks of the engine."""

    arguments: Mapping[str, Any]
    """For ``LLM(...)``"""
    environment: Mapping[str, str] = field(default_factory=dict)
    """To be set before vLLM is imported"""
    recipe: Recipe | None = None
    """What is emulated; None where nothing is"""


def choose(
    precision: str, /, *, dtype: str = "float32", hardware: hopper.Hardware | None = None
) -> EngineChoice:
    """Engine settings of a precision.

    Parameters
    ----------
    precision : str
        One of `PRECISIONS`.
    dtype : str
        Dtype between the layers of an emulated engine: float32 on a CPU (faster there), bfloat16 on a card.
    hardware : Hardware, optional
        Where it will run; None asks the machine.

    Raises
    ------
    ValueError
        For an unknown name, or for "fp8" on hardware without it.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    if precision == "fp32":
        return EngineChoice(arguments={"dtype": "float32"})
    if precision == "bf16":
        return EngineChoice(arguments={"dtype": "bfloat16"})
    if precision == "fp8":
        hopper.require(hopper.detect() if hardware is None else hardware)
        return EngineChoice(arguments=dict(hopper.ARGUMENTS), environment=dict(hopper.ENVIRONMENT))
    recipe = RECIPES[precision.removesuffix(_SUFFIX)]
    return EngineChoice(arguments={"dtype": dtype} | recipe.engine_arguments(), recipe=recipe)
