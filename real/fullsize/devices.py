"""Where trainer and sampler run: two cards, one that they share, or the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from real.fp8.hopper import Hardware
from real.fullsize.settings import Devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One CUDA card."""

    name: str
    bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """Who runs where."""

    trainer: str
    """torch device"""
    sampler: str
    cards: tuple[Card, ...] = ()
    """Those of the machine"""

    @property
    def on_card(self) -> bool:
        """Whether there is a card in it."""
        return self.sampler != "cpu"

    @property
    def shared(self) -> bool:
        """Whether the two compete for one memory."""
        return self.trainer == self.sampler

    @property
    def hardware(self) -> Hardware:
        """What the sampler's precision is chosen for."""
        if not self.on_card:
            return Hardware(name="no CUDA card")
        return Hardware(name=self.cards[0].name, capability=self.cards[0].capability)


def cards() -> tuple[Card, ...]:
    """CUDA cards of this machine."""
    found = []
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        found.append(Card(name=about.name, bytes=about.total_memory, capability=(about.major, about.minor)))
    return tuple(found)


def place(devices: Devices, found: Sequence[Card], /) -> DevicePlan:
    """Place trainer and sampler; vLLM takes the first card of its process, so the trainer takes the second.

    Raises
    ------
    ValueError
        If the machine has fewer cards than asked for.
    """
    if devices == "auto":
        devices = "cpu" if not found else "shared" if len(found) == 1 else "split"
    needed = {"cpu": 0, "shared": 1, "split": 2}[devices]
    if len(found) < needed:
        raise ValueError(
            f"devices={devices!r} needs {needed} CUDA card(s), got {len(found)}; use devices='auto'"
        )
    if devices == "cpu":
        return DevicePlan(trainer="cpu", sampler="cpu")
    trainer = "cuda:0" if devices == "shared" else "cuda:1"
    return DevicePlan(trainer=trainer, sampler="cuda:0", cards=tuple(found))
