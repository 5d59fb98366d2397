"""The three matrix products of a fused head, in the precision that keeps log-probs exact.

Logits must leave the product in float32: rounded to bfloat16 they move log-probs by .01-.02 nats rms, which
an effective sample size would read as lag. Suffixes: n tokens of a chunk, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

BUFFER_BYTES = 256 * 2**20
"""Most that the logits of one chunk may take. Every chunk adds to the whole [V, H] gradient once, so short
chunks are slow where that is large: at V = 151,936 and H = 1,024 a loss in chunks of 64, 128, 256 tokens took
1.36, 1.06 and .86 of plain autograd's CPU time"""
CHUNK_RANGE = (16, 4096)


def chunk_size(tokens: int, vocabulary: int, itemsize: int = 4, /) -> int:
    """Tokens whose logits exist at a time: a quarter of the batch within `BUFFER_BYTES` and `CHUNK_RANGE`."""
    least, most = CHUNK_RANGE
    wanted = min(tokens // 4, BUFFER_BYTES // (itemsize * vocabulary))
    return max(1, min(max(least, min(wanted, most)), tokens))


def wide(dtype: torch.dtype, /) -> torch.dtype:
    """Dtype of logits and log-probs: float32 at least."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def mean_weights(hidden: Tensor, weight: Tensor, /) -> Tensor:
    """Weights of a mean over tokens, shape (N,)."""
    N = len(hidden)
    return torch.full((N,), 1.0 / max(N, 1), dtype=wide(weight.dtype), device=hidden.device)


class Head:
    """An output head during one loss: products with its weight, shape (V, H)."""

    def __init__(self, weight: Tensor) -> None:
        self.low = weight.dtype in (torch.bfloat16, torch.float16)
        self.on_card = self.low and weight.is_cuda
        # on a CPU low-precision products are emulated and slow: one copy in float32 costs less
        self.weight = weight.float() if self.low and not self.on_card else weight
        self.dtype = wide(weight.dtype)
        """Of logits and accumulators"""

    def hidden(self, hidden_nH: Tensor) -> Tensor:
        """Hidden states in the dtype of the products."""
        return hidden_nH if self.on_card else hidden_nH.to(self.dtype)

    def logits(self, hidden_nH: Tensor, out_nV: Tensor) -> Tensor:
        """Fill a buffer with the logits."""
        if self.on_card:
            out_nV.copy_(torch.mm(hidden_nH, self.weight.t(), out_dtype=torch.float32))
            return out_nV
        return torch.mm(hidden_nH, self.weight.t(), out=out_nV)

    def to_hidden(self, grad_nV: Tensor) -> Tensor:
        """Gradient in the hidden states, from that in the logits."""
        if self.on_card:
            return torch.mm(grad_nV.to(self.weight.dtype), self.weight)
        return torch.mm(grad_nV, self.weight)

    def add_to_weight(self, sum_VH: Tensor, grad_nV: Tensor, hidden_nH: Tensor) -> None:
        """Accumulate the gradient in the weight, in float32 over all chunks."""
        if self.on_card:
            low = grad_nV.to(self.weight.dtype).t()
            sum_VH.add_(torch.mm(low, hidden_nH, out_dtype=torch.float32))
        else:
            sum_VH.addmm_(grad_nV.t(), hidden_nH)
