"""The corrected loss on full rows: plain autograd as the oracle, and chunked with the gradient in forward.

Full rows are right for vocabularies of up to a few thousand, and where the top K leave too much outside: at
random initialisation and at temperatures of 1 and above. Suffixes: N tokens, n tokens of a chunk, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from real.fused.gradients import HeadGradients, release
from real.fused.loss import CorrectedLoss
from real.fused.products import Head, chunk_size, mean_weights, wide
from real.fused.rule import require_token_level
from theory.centering import Coefficients, coefficients, surrogate
from theory.corrections import Correction, Logps

CACHE_ENTRIES = 2**17
"""Entries of a row block on which the core runs at a time: its temporaries then stay in cache"""

RowLogps = Callable[[slice], Tensor]
"""Log-probs of the full rows of some tokens, shape (n, V)"""


def corrected_loss_row(
    hidden: Tensor,
    weight: Tensor,
    actions: Tensor,
    advantage: Tensor,
    rule: Correction,
    /,
    *,
    mu_logp: Tensor,
    pi_s_logp: Tensor | None = None,
    temperature: float = 1.0,
    token_weight: Tensor | None = None,
) -> CorrectedLoss:
    """Corrected loss with every [N, V] tensor in the open; what the fused losses are tested against.

    Parameters
    ----------
    hidden, weight
        As in `real.fused.loss.corrected_loss`.
    actions : Tensor of int, shape (N,)
        Sampled ids.
    advantage : Tensor, shape (N,)
        Advantage of each token.
    rule : Correction
        Any rule at token level.
    mu_logp : Tensor, shape (N, V)
        The sampler's rows, nats.
    pi_s_logp : Tensor, shape (N, V), optional
        The trainer's rows at the sampler's weights; None: they are the trainer's now.
    temperature, token_weight
        As there.
    """
    logp = torch.log_softmax(
        (hidden.to(weight.dtype) @ weight.t()).to(wide(weight.dtype)) / temperature, dim=-1
    )
    if token_weight is None:
        token_weight = mean_weights(hidden, weight)
    now = logp.detach()
    then = now if pi_s_logp is None else pi_s_logp
    c = _constants(rule, actions, advantage, mu_logp, then, now)
    value = surrogate(c, _at(logp, actions), logp if c.row is not None else None)
    loss = -(token_weight.to(value.dtype) * value).sum()
    return CorrectedLoss(loss, _at(now, actions)[:, None], now.new_full((len(now),), -float("inf")))


def fused_loss_row(
    hidden: Tensor,
    weight: Tensor,
    actions: Tensor,
    advantage: Tensor,
    rule: Correction,
    /,
    *,
    mu_logp: Tensor | RowLogps,
    stale: tuple[Tensor, Tensor] | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    token_weight: Tensor | None = None,
) -> CorrectedLoss:
    """Corrected loss on full rows, chunked: no [N, V] tensor but the sampler's rows, if given whole.

    Parameters
    ----------
    hidden, weight, actions, advantage, rule, temperature, chunk, token_weight
        As in `corrected_loss_row`.
    mu_logp : Tensor, shape (N, V), or callable
        The sampler's rows, or a function from a slice of tokens to theirs.
    stale : (Tensor, Tensor), optional
        Hidden states (N, H) and head (V, H) at the sampler's weights: their rows are made chunk by chunk (a
        fourth product). None: they are the trainer's now.
    """
    if token_weight is None:
        token_weight = mean_weights(hidden, weight)
    rows_of = mu_logp if callable(mu_logp) else mu_logp.__getitem__
    wanted = torch.is_grad_enabled()
    loss, logp = _RowLoss.apply(
        hidden, weight, actions, advantage, rule, rows_of, stale, temperature, chunk, token_weight, wanted
    )
    return CorrectedLoss(loss, logp[:, None], logp.new_full((len(logp),), -float("inf")))


def _at(rows: Tensor, actions: Tensor) -> Tensor:
    return rows.gather(1, actions.long()[:, None])[:, 0]


def _constants(
    rule: Correction, actions: Tensor, advantage: Tensor, mu: Tensor, then: Tensor, now: Tensor
) -> Coefficients:
    """Constants of full rows, by the core."""
    require_token_level(rule)
    token = Logps(mu=_at(mu, actions).to(now.dtype), pi_s=_at(then, actions), pi=_at(now, actions))
    row = Logps(mu=mu.to(now.dtype), pi_s=then, pi=now) if rule.centered else None
    return coefficients(rule, token, advantage.to(now.dtype), row=row)


class _RowLoss(torch.autograd.Function):
    """`fused_loss_row`: one buffer for the policy's rows, one for the stale ones."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        actions: Tensor,
        advantage: Tensor,
        rule: Correction,
        mu_rows: RowLogps,
        stale: tuple[Tensor, Tensor] | None,
        temperature: float,
        chunk: int | None,
        token_weight: Tensor,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        head = Head(weight)
        old = None if stale is None or not rule.needs_pi_s else Head(stale[1])
        N, V, device = len(hidden), len(weight), hidden.device
        step = chunk_size(N, V, head.dtype.itemsize) if chunk is None else chunk
        gradients = HeadGradients(ctx, hidden, head, weight, wanted=wanted)
        logp = torch.empty(N, dtype=head.dtype, device=device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        buffers = [
            torch.empty(min(step, N), V, dtype=head.dtype, device=device)
            for _ in range(1 if old is None else 2)
        ]
        for start in range(0, N, step):
            rows = slice(start, min(start + step, N))
            h = head.hidden(hidden[rows])
            z = head.logits(h, buffers[0][: rows.stop - start])
            s = None
            if old is not None and stale is not None:
                s = old.logits(old.hidden(stale[0][rows]), buffers[1][: rows.stop - start])
            mu, a = mu_rows(rows), actions[rows].long()
            t = token_weight[rows].to(head.dtype)
            block = max(1, CACHE_ENTRIES // V)
            for low in range(0, len(z), block):
                b = slice(low, min(low + block, len(z)))
                at = slice(start + b.start, start + b.stop)
                now = _normalise(z[b], temperature)
                then = now if s is None else _normalise(s[b], temperature)
                c = _constants(rule, a[b], advantage[at], mu[b], then, now)
                logp[at] = _at(now, a[b])
                value = surrogate(c, logp[at], now if c.row is not None else None)
                loss -= (t[b] * value).sum()
                total = c.token if c.row is None else c.token + c.row.sum(dim=1)
                now.exp_().mul_(total[:, None])
                if c.row is not None:
                    now.sub_(c.row)
                now.scatter_add_(1, a[b][:, None], -c.token[:, None])
                now.mul_((t[b] / temperature)[:, None])
            if gradients.wanted:
                gradients.add(rows, z, h)
        ctx.mark_non_differentiable(logp)
        return loss.to(head.dtype), logp

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        return *release(ctx, grad), None, None, None, None, None, None, None, None, None


def _normalise(logits: Tensor, temperature: float) -> Tensor:
    """Logits to log-probs, in place."""
    if temperature != 1.0:
        logits.div_(temperature)
    return logits.sub_(torch.logsumexp(logits, dim=-1, keepdim=True))
