"""Gradients that a loss makes in its forward pass: kept on its node, scaled by backward, given away once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real.fused.products import Head


class HeadGradients:
    """Sums of a head's gradients over the chunks of a batch; None where autograd asks for none."""

    def __init__(self, ctx: Any, hidden: Tensor, head: Head, weight: Tensor, *, wanted: bool) -> None:
        self.hidden = torch.empty_like(hidden) if wanted and ctx.needs_input_grad[0] else None
        self.weight: Tensor | None = None
        if wanted and ctx.needs_input_grad[1]:
            self.weight = torch.zeros(weight.shape, dtype=head.dtype, device=hidden.device)
        self.head = head
        self.dtype = weight.dtype
        ctx.gradients = self

    @property
    def wanted(self) -> bool:
        """Whether anybody asks for a gradient."""
        return self.hidden is not None or self.weight is not None

    def add(self, rows: slice, grad_nV: Tensor, hidden_nH: Tensor) -> None:
        """Account for one chunk, from the gradient in its logits."""
        if self.hidden is not None:
            self.hidden[rows] = self.head.to_hidden(grad_nV)
        if self.weight is not None:
            self.head.add_to_weight(self.weight, grad_nV, hidden_nH)


def release(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Scale the gradients in place and give them to autograd: [V, H] exists once.

    Raises
    ------
    RuntimeError
        The second time.
    """
    kept: HeadGradients | None = ctx.gradients
    if kept is None:
        raise RuntimeError(
            "backward of a corrected loss can be called once: it scales its gradients in place"
        )
    ctx.gradients = None
    if grad.is_cuda or float(grad) != 1.0:  # on a card the comparison would wait for it
        for gradient in (kept.hidden, kept.weight):
            if gradient is not None:
                gradient.mul_(grad)
    return kept.hidden, None if kept.weight is None else kept.weight.to(kept.dtype)
