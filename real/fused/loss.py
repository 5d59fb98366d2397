r"""Corrected policy-gradient loss of a large head on K+1 columns: three matrix products, no [N, V] tensor.

Every correction is ``-sum_n t_n sum_k c_nk log pi(id_nk)`` with constants c (theory: `theory.centering`),
so its gradient in the logits of a token is ``t (sum(c) pi - scatter(c))``: one row at a time suffices. The
gradient is formed inside the forward pass, chunk by chunk; backward only scales it.

Suffixes: N tokens (flat, no padding), n tokens of a chunk, H hidden, V vocabulary, K columns beside the
sampled token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from real.fused.columns import Selected, repeated
from real.fused.gradients import HeadGradients, release
from real.fused.products import Head, chunk_size, mean_weights
from theory.centering import Coefficients, surrogate

CoefficientFunction = Callable[[Selected, slice], Tensor]
"""From the policy at the columns of some tokens, and which tokens they are, to their constants (n, K+1)"""


class CorrectedLoss(NamedTuple):
    """A loss to call ``backward`` on, and the log-probs it saw, which carry no gradient."""

    loss: Tensor
    logp: Tensor
    """Shape (N, K+1), nats"""
    log_tail: Tensor
    """Shape (N,), nats"""

    @property
    def selected(self) -> Selected:
        """The log-probs as columns of the batch."""
        return Selected(self.logp, self.log_tail)


def corrected_loss(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    coefficient_function: CoefficientFunction,
    /,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    token_weight: Tensor | None = None,
) -> CorrectedLoss:
    """Loss whose gradient is the corrected policy gradient; descend it.

    Parameters
    ----------
    hidden : Tensor, shape (N, H)
        Inputs of the output head at the positions that predict the sampled tokens.
    weight : Tensor, shape (V, H)
        The head, without bias; with tied embeddings the embedding.
    ids : Tensor of int, shape (N, K+1)
        Column 0 the sampled token, then the sampler's top K (K may be 0), each once.
    coefficient_function : callable
        ``(policy at the columns, slice of tokens) -> constants (n, K+1)``; see `real.fused.rule`.
    temperature : float
        The logits are divided by it.
    chunk : int, optional
        Tokens whose logits exist at a time; None: `real.fused.products.chunk_size`.
    token_weight : Tensor, shape (N,), optional
        Weight of each token in the sum: mask over denominator. None: 1/N.

    Returns
    -------
    CorrectedLoss
        Backward can be called once.

    Raises
    ------
    ValueError
        For shapes that do not fit, or a temperature that is not positive.
    """
    _check(hidden, weight, ids, temperature)
    if token_weight is None:
        token_weight = mean_weights(hidden, weight)
    wanted = torch.is_grad_enabled()
    return CorrectedLoss(
        *_ColumnLoss.apply(
            hidden, weight, ids, coefficient_function, temperature, chunk, token_weight, wanted
        )
    )


@torch.no_grad()
def sel_logp(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    /,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Selected:
    """Log-probs at the columns and log of the mass outside: one product; arguments as `corrected_loss`."""
    _check(hidden, weight, ids, temperature)
    head = Head(weight)
    N, columns = ids.shape
    step = chunk_size(N, len(weight), head.dtype.itemsize) if chunk is None else chunk
    logp = torch.empty(N, columns, dtype=head.dtype, device=hidden.device)
    log_tail = torch.empty(N, dtype=head.dtype, device=hidden.device)
    buffer = torch.empty(min(step, N), len(weight), dtype=head.dtype, device=hidden.device)
    for start in range(0, N, step):
        rows = slice(start, min(start + step, N))
        z = head.logits(head.hidden(hidden[rows]), buffer[: rows.stop - start])
        logp[rows], log_tail[rows] = _outside_softmax(z, ids[rows].long(), temperature)
    return Selected(logp, log_tail)


def _check(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden must be (N, H) and weight (V, H), got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if ids.ndim != 2 or len(ids) != len(hidden) or ids.shape[1] < 1:
        raise ValueError(f"ids must be (N, K+1) with N = {len(hidden)}, got {tuple(ids.shape)}")
    if not temperature > 0:
        raise ValueError(f"the temperature divides the logits, so it must be > 0, got {temperature}")


def _outside_softmax(z: Tensor, ids: Tensor, temperature: float) -> Selected:
    """Log-probs at the columns and log tail mass; the logits become the softmax outside the columns.

    The columns are cut out of the row first, so the tail is a sum of what it holds: 1 minus the columns
    would lose all digits of a small one. The row's entries at the columns are 0 afterwards.
    """
    if temperature != 1.0:
        z.div_(temperature)
    at_columns = z.gather(1, ids)
    z.scatter_(1, ids, -float("inf"))
    top = z.amax(dim=-1, keepdim=True)
    torch.softmax(z, dim=-1, out=z)
    if ids.shape[1] >= z.shape[1]:  # only then can nothing be left outside: softmax of no entry is NaN
        z.masked_fill_(top == -float("inf"), 0.0)
    # the softmax of the largest logit says what was divided by; a maximum costs a tenth of a logsumexp
    outside = (top - z.amax(dim=-1, keepdim=True).log())[:, 0]
    outside = torch.where(top[:, 0] == -float("inf"), top[:, 0], outside)
    once = at_columns.clone()
    once[:, 0].masked_fill_(repeated(ids), -float("inf"))
    total = torch.logsumexp(torch.cat([once, outside[:, None]], dim=1), dim=1)
    return Selected(at_columns - total[:, None], outside - total)


class _ColumnLoss(torch.autograd.Function):
    """`corrected_loss`; saves the gradients and nothing that is V x N."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        coefficient_function: CoefficientFunction,
        temperature: float,
        chunk: int | None,
        token_weight: Tensor,
        wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = Head(weight)
        (N, columns), V, device = ids.shape, len(weight), hidden.device
        step = chunk_size(N, V, head.dtype.itemsize) if chunk is None else chunk
        gradients = HeadGradients(ctx, hidden, head, weight, wanted=wanted)
        logp = torch.empty(N, columns, dtype=head.dtype, device=device)
        log_tail = torch.empty(N, dtype=head.dtype, device=device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        buffer = torch.empty(min(step, N), V, dtype=head.dtype, device=device)
        for start in range(0, N, step):
            rows = slice(start, min(start + step, N))
            h, id_ = head.hidden(hidden[rows]), ids[rows].long()
            z = head.logits(h, buffer[: rows.stop - start])
            at = _outside_softmax(z, id_, temperature)
            logp[rows], log_tail[rows] = at
            c = coefficient_function(at, rows)
            t = token_weight[rows].to(head.dtype)
            loss -= (t * _value(c, at.logp)).sum()
            if gradients.wanted:
                _logit_gradient(z, id_, at, c, t / temperature)
                gradients.add(rows, z, h)
        ctx.mark_non_differentiable(logp, log_tail)
        return loss.to(head.dtype), logp, log_tail

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        return *release(ctx, grad), None, None, None, None, None, None


def _value(c: Tensor, logp: Tensor) -> Tensor:
    """Return the surrogate of each token, by the core."""
    return surrogate(Coefficients(c[:, 0], c[:, 1:] if c.shape[1] > 1 else None), logp[:, 0], logp[:, 1:])


def _logit_gradient(z: Tensor, ids: Tensor, at: Selected, c: Tensor, t: Tensor) -> None:
    """From the softmax outside the columns to ``t (sum(c) pi - scatter(c))``, in place."""
    total = (t * c.sum(dim=1))[:, None]
    z.mul_(total * at.log_tail.exp()[:, None])
    z.scatter_(1, ids, total * at.logp.exp())  # a repeated sampled token writes the same number twice
    z.scatter_add_(1, ids, -(t[:, None] * c))
