"""vLLM's own block FP8 and FP8 cache, from a BF16 checkpoint, on Hopper; refused where the hardware lacks it.

Read from the source of vLLM 0.32 and never run without such a card: weights are quantised online in 128 x 128
blocks at load and again inside every ``reload_weights``, so a sync hands over BF16 or FP32 tensors as always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

HOPPER = 9
"""Major compute capability with block-FP8 products and an attention that reads an FP8 cache"""

ARGUMENTS: Mapping[str, Any] = MappingProxyType(
    {
        "dtype": "bfloat16",
        # not "fp8": on a BF16 checkpoint that means one scale per tensor since 0.32
        "quantization": "fp8_per_block",
        # e4m3 with scale 1: nothing to calibrate, so nothing to redo at a sync
        "kv_cache_dtype": "fp8",
    }
)
ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    # DeepGEMM would else round the scales up to powers of two and quantise the FP8 weights a second time
    {"VLLM_USE_DEEP_GEMM_E8M0": "0"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the sampler would run on."""

    name: str
    capability: tuple[int, int] | None = None
    """CUDA compute capability; None without a CUDA card"""


def detect() -> Hardware:
    """Hardware of this machine: its first CUDA card, or none."""
    if not torch.cuda.is_available():
        return Hardware(name="no CUDA card")
    return Hardware(name=torch.cuda.get_device_name(0), capability=torch.cuda.get_device_capability(0))


def require(hardware: Hardware, /) -> None:
    """Refuse hardware that cannot run `ARGUMENTS`.

    Raises
    ------
    ValueError
        In one line that says what was found and what to use.
    """
    if hardware.capability is None or hardware.capability[0] != HOPPER:
        found = hardware.name
        if hardware.capability is not None:
            found += f" of compute capability {hardware.capability[0]}.{hardware.capability[1]}"
        raise ValueError(
            f"precision 'fp8' needs a Hopper card (compute capability {HOPPER}.x) for block FP8 and an FP8 "
            f"cache, got {found}; use precision 'fp8-emulated', the same rounding on any machine"
        )
