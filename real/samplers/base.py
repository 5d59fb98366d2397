"""What a sampler is, and what it hands over: the responses and the distribution they were really drawn from.

Suffixes: C prompts, N samples of each, B = C*N responses (group-major), P prompt tokens, T response tokens,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Responses to a batch of prompts, with what the engine sampled them from. Token ids, never text."""

    prompt_CP: Tensor
    response_BT: Tensor
    """Pad (0) after the end mark"""
    mask_BT: Tensor
    """True at response tokens, the end mark included"""
    logmu_BTV: Tensor
    """Log-probs of the whole vocabulary at each sampled prefix, nats: after temperature and any truncation
    (-inf where the engine could not sample). 0 at padding."""
    version: int
    """Updates behind the weights that sampled it"""

    @property
    def samples(self) -> int:
        """Responses to each prompt."""
        return len(self.response_BT) // len(self.prompt_CP)

    @property
    def logmu_BT(self) -> Tensor:
        """The rows' entries at the sampled tokens."""
        return self.logmu_BTV.gather(-1, self.response_BT[..., None])[..., 0]


class Sampler(Protocol):
    """The engine that generates. It owns its weights: a trainer's update reaches it through `sync` alone."""

    @property
    def version(self) -> int:
        """Updates behind the weights it holds; -1 before the first sync."""
        ...

    def sample(self, prompt_CP: Tensor, samples: int, seed: int) -> Rollout:
        """Draw `samples` responses to each prompt; the same seed and weights give the same tokens."""
        ...

    def next_logps(self, prefix_BP: Tensor) -> Tensor:
        """Distribution `sample` would draw the next token from, after each prefix: shape (B, V), nats."""
        ...

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take over a full state dict, tied head included, by copy."""
        ...

    def close(self) -> None:
        """Give memory back; the sampler is not used again."""
        ...
