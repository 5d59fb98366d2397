"""The articles' experiments as functions: Qwen3-0.6B and 1.7B under their four samplers.

What the articles fix is fixed here; the learning rate they do not give, so the caller says it. These are
descriptions: the engine that runs full-size models decides whether this machine can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from theory.corrections import correction
from theory.experiment import Experiment, Numerics

STEPS, PROMPTS, SAMPLES, SEEDS = 40, 64, 8, (0, 1, 2)
STALE = 64
"""Sync period of the articles' stale sampler: longer than the run, so it keeps the first weights"""
SamplerName = Literal["reference", "fp8", "stale", "fp8-stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """The articles' task: Countdown with a Qwen3 in non-thinking mode, rewards +-1."""

    model: str
    """Hub id or local folder"""
    thinking: bool = False
    precision: Literal["bf16"] = "bf16"
    """Of the trainer; the sampler's is in the numerics of the experiment"""


def article(
    model: str,
    sampler: SamplerName,
    *,
    lr: float,
    method: str = "pg",
    seed: int = 0,
    resync_below: float | None = None,
) -> Experiment:
    """Return one cell of the articles' table.

    Parameters
    ----------
    model : str
        "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", or a local folder.
    sampler : {"reference", "fp8", "stale", "fp8-stale"}
        fp8: 128 x 128 blocks, dynamic activations, FP8 KV cache; stale: one sync in 64 steps.
    lr : float
        Of plain SGD. The articles do not state it.
    method : str
        Name of a correction.
    resync_below : float, optional
        ESS share below which the sampler is synced; the correction's own rule if left out.
    """
    if sampler not in get_args(SamplerName):
        raise ValueError(f"unknown sampler {sampler!r}; known: {', '.join(get_args(SamplerName))}")
    rule = correction(method) if resync_below is None else correction(method, resync_below=resync_below)
    return Experiment(
        environment=Countdown(model=model),
        correction=rule,
        lr=lr,
        steps=STEPS,
        prompts=PROMPTS,
        samples=SAMPLES,
        sync_every=STALE if "stale" in sampler else 1,
        numerics=Numerics(kind="fp8") if "fp8" in sampler else Numerics(kind="bf16"),
        seed=seed,
    )


def qwen3_0p6b_stale(method: str, *, lr: float, seed: int = 0) -> Experiment:
    """Qwen3-0.6B under a stale sampler: DLC stays within 1.9 floors (article 2)."""
    return article("Qwen/Qwen3-0.6B", "stale", lr=lr, method=method, seed=seed)


def qwen3_1p7b_stale(method: str, *, lr: float, seed: int = 0) -> Experiment:
    """Qwen3-1.7B under a stale sampler: IS leaves the floor at step 11, DLC resyncs once (both articles)."""
    return article("Qwen/Qwen3-1.7B", "stale", lr=lr, method=method, seed=seed)


def qwen3_1p7b_fp8(method: str, *, lr: float, seed: int = 0) -> Experiment:
    """Qwen3-1.7B under an FP8 sampler synced every step: PG 13 floors, SC 46.5% accuracy (article 2)."""
    return article("Qwen/Qwen3-1.7B", "fp8", lr=lr, method=method, seed=seed)
