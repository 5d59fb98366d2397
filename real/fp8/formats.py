"""Number formats of low-precision engines, and rounding to them: quantise, then dequantise to float.

Arithmetic as in vLLM 0.32: `quantise_weight` is its ``per_block_cast_to_fp8``, `quantise_groups` its dynamic
group quantiser, both followed by the dequantisation that an exactly accumulating product implies.

Suffixes: M output rows, K input columns of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

FormatName = Literal["e4m3", "e5m2", "e2m1", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The set of numbers a format can hold."""

    largest: float
    """Largest magnitude; everything beyond it saturates"""
    mantissa: int = 0
    """Mantissa bits after the leading one; 0 for an integer format"""
    exponent: int = 0
    """Exponent of the smallest normal number"""
    dtype: torch.dtype | None = None
    """torch's own type of it, where torch can cast to it"""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        # OCP 8-bit floating point, revision 1.0
        "e4m3": Format(largest=448.0, mantissa=3, exponent=-6, dtype=torch.float8_e4m3fn),
        "e5m2": Format(largest=57344.0, mantissa=2, exponent=-14, dtype=torch.float8_e5m2),
        # OCP microscaling formats, revision 1.0: 0, .5, 1, 1.5, 2, 3, 4, 6
        "e2m1": Format(largest=6.0, mantissa=1, exponent=0),
        # -8 is left out: a symmetric scale never reaches it
        "int4": Format(largest=7.0),
    }
)

WEIGHT_FLOOR = 1e-4
"""Smallest block maximum a weight scale is made from; vLLM's, so that the scales agree bit for bit"""
GROUP_FLOOR = 1e-10
"""The same for activations: only keeps an all-zero group from dividing by zero"""


def named(name: str, /) -> Format:
    """Format of that name; ValueError with the known names otherwise."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def round_to(x: Tensor, name: str, /) -> Tensor:
    """Nearest number of the format (ties to even), beyond its range the largest; dtype and shape of `x`.

    NaN stays NaN. Every e4m3, e2m1 and int4 number is exact in bfloat16.
    """
    form = named(name)
    bounded = x.clamp(-form.largest, form.largest)
    if form.dtype is not None:
        return bounded.to(form.dtype).to(x.dtype)
    if form.mantissa == 0:
        return bounded.round()
    _, exponent = torch.frexp(bounded)  # |x| = m 2^exponent with m in [1/2, 1)
    step = torch.ldexp(torch.ones_like(bounded), (exponent - 1).clamp(min=form.exponent) - form.mantissa)
    return (bounded / step).round() * step


def power_of_two(scale: Tensor, /) -> Tensor:
    """Next power of two at or above each scale: the UE8M0 scales that DeepGEMM uses unless told otherwise."""
    return torch.exp2(torch.ceil(torch.log2(scale)))


def quantise_weight(
    weight_MK: Tensor, name: str, /, *, block: tuple[int, int] = (128, 128), ue8m0: bool = False
) -> Tensor:
    """Round a weight matrix block by block, each block scaled so that its largest entry is the format's.

    Parameters
    ----------
    weight_MK : Tensor, shape (M, K)
        Any float dtype.
    name : str
        A key of `FORMATS`.
    block : (int, int)
        Rows and columns of a block; blocks at the edge may be smaller.
    ue8m0 : bool
        Scales that are powers of two.

    Returns
    -------
    Tensor, shape (M, K), float32
        The numbers an engine with exact accumulation multiplies by.
    """
    M, K = weight_MK.shape
    rows, columns = block
    padded = torch.nn.functional.pad(weight_MK, (0, -K % columns, 0, -M % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    top = blocks.abs().float().amax(dim=(1, 3), keepdim=True).clamp(min=WEIGHT_FLOOR)
    scale = top / named(name).largest
    if ue8m0:
        scale = power_of_two(scale)
    # times the reciprocal, not divided: vLLM's arithmetic, which differs in the last bit
    rounded = round_to((blocks * (1.0 / scale)).float(), name) * scale
    return rounded.view(padded.shape)[:M, :K].contiguous()


def quantise_groups(x: Tensor, name: str, /, *, group: int = 128, ue8m0: bool = False) -> Tensor:
    """Round activations in groups of consecutive channels, scaled by each group's own largest entry.

    Parameters
    ----------
    x : Tensor, shape (..., K)
        Any float dtype.
    name : str
        A key of `FORMATS`.
    group : int
        Channels that share a scale; the last group may be smaller.
    ue8m0 : bool
        Scales that are powers of two.

    Returns
    -------
    Tensor, shape (..., K), float32
    """
    K = x.shape[-1]
    values = x.float()
    group = min(group, K)
    if K % group:
        values = torch.nn.functional.pad(values, (0, -K % group))
    values = values.unflatten(-1, (-1, group))
    scale = values.abs().amax(dim=-1, keepdim=True).clamp(min=GROUP_FLOOR) / named(name).largest
    if ue8m0:
        scale = power_of_two(scale)
    return (round_to(values / scale, name) * scale).flatten(-2)[..., :K]
