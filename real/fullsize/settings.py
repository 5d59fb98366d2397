"""What a full-size run is: model, precision of the sampler, sizes, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from real.fp8.precision import PRECISIONS
from theory.limits import refuse_choice, refuse_count, refuse_flag, refuse_real, refuse_text

Devices = Literal["auto", "cpu", "shared", "split"]
"""shared: trainer and sampler on one card; split: the sampler on the first, the trainer on the second; auto:
split with two cards, shared with one, the CPU with none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSize:
    """Environment of an experiment on a full-size Qwen3. Hashable."""

    model: str = "Qwen/Qwen3-0.6B"
    """A local folder, or a hub id"""
    precision: str = "bf16"
    """The sampler's, a name of `real.fp8.precision`"""
    top_k: int = 64
    """Columns of the sampler's row; what they leave outside is reported, and warned of above .1"""
    temperature: float = 1.0
    max_prompt_tokens: int = 256
    max_response_tokens: int = 512
    micro_batch_tokens: int = 8192
    """Padded tokens in one forward and backward of the trainer"""
    gradient_checkpointing: bool = True
    """Keep one activation a layer and recompute the others in backward"""
    devices: Devices = "auto"
    frozen_on_cpu: bool = False
    """Keep the copy of the sampler's weights in host memory: frees the card, costs a transfer a pass"""
    eval_every: int = 8
    """Steps between evaluations; the start and the last step are always evaluated"""
    eval_prompts: int = 0
    """Held-out problems; 0: no evaluation"""
    eval_samples: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        refuse_text("model", self.model)
        refuse_choice("precision", self.precision, PRECISIONS)
        refuse_choice("devices", self.devices, get_args(Devices))
        refuse_real("temperature", self.temperature)
        if not self.temperature > 0:
            raise ValueError(
                f"the temperature divides the logits, so it must be > 0, got {self.temperature}; "
                "1 leaves them alone"
            )
        fields = ("top_k", "max_prompt_tokens", "max_response_tokens", "micro_batch_tokens", "eval_every")
        for field in (*fields, "eval_samples"):
            refuse_count(field, getattr(self, field), least=1)
        refuse_count("eval_prompts", self.eval_prompts, least=0)
        for field in ("gradient_checkpointing", "frozen_on_cpu"):
            refuse_flag(field, getattr(self, field))
        if self.micro_batch_tokens < self.max_tokens:
            raise ValueError(
                f"a micro-batch must hold one response, so micro_batch_tokens must be >= {self.max_tokens} "
                f"(max_prompt_tokens + max_response_tokens), got {self.micro_batch_tokens}; "
                "raise it or shorten them"
            )

    @property
    def max_tokens(self) -> int:
        """Longest sequence, prompt included."""
        return self.max_prompt_tokens + self.max_response_tokens
