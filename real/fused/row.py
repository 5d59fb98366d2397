"""The corrected loss on full rows: plain autograd as the oracle, and chunked with the gradient in forward.

Full rows are right for vocabularies of up to a few thousand, and where the top K leave too much outside: at
random initialisation and at temperatures of 1 and above. Suffixes: N tokens, n tokens of a chunk, V
vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
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

CACHE_ENTRIES = 2**18
"""Entries of a row block on which the core runs at a time, 1 MB in float32: its temporaries then stay in
cache. At V = 4096, in units of three products: 16, 32, 64, 128, 512 rows took 2.2, 2.0, 1.9, 3.3, 4.1 as they
are and .70, .55, .53, .55, .62 compiled"""

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
    compiled: bool = False,
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
    compiled : bool
        Compile the pass between the products, 20 s and more once per shape of a block: the whole then costs
        about half.
    """
    if token_weight is None:
        token_weight = mean_weights(hidden, weight)
    rows_of = mu_logp if callable(mu_logp) else mu_logp.__getitem__
    wanted = torch.is_grad_enabled()
    loss, logp = _RowLoss.apply(
        hidden,
        weight,
        actions,
        advantage,
        rule,
        rows_of,
        stale,
        temperature,
        chunk,
        token_weight,
        compiled,
        wanted,
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


def _rows_to_gradient(
    rule: Correction,
    temperature: float,
    logits: Tensor,
    stale_logits: Tensor | None,
    actions: Tensor,
    advantage: Tensor,
    mu: Tensor,
    token_weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """Turn logits into their gradient, in place; return the loss and the sampled log-probs."""
    now = torch.log_softmax(logits / temperature, dim=-1)
    then = now if stale_logits is None else torch.log_softmax(stale_logits / temperature, dim=-1)
    c = _constants(rule, actions, advantage, mu, then, now)
    logp_a = _at(now, actions)
    value = surrogate(c, logp_a, now if c.row is not None else None)
    total = c.token if c.row is None else c.token + c.row.sum(dim=1)
    gradient = now.exp() * total[:, None]
    if c.row is not None:
        gradient = gradient - c.row
    gradient = gradient.scatter_add(1, actions[:, None], -c.token[:, None])
    logits.copy_(gradient * (token_weight / temperature)[:, None])
    return -(token_weight * value).sum(), logp_a


@cache
def _compiled(rule: Correction, temperature: float) -> Callable[..., tuple[Tensor, Tensor]]:
    turn = torch.compile(partial(_rows_to_gradient, rule, temperature), dynamic=False, fullgraph=True)

    def quietly(*arguments: Any) -> tuple[Tensor, Tensor]:
        with warnings.catch_warnings():
            # the array-API shim caches its look-ups, which tracing points out once
            warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\..*")
            return turn(*arguments)

    return quietly


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
        compiled: bool,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        head = Head(weight)
        old = None if stale is None or not rule.needs_pi_s else Head(stale[1])
        N, V, device = len(hidden), len(weight), hidden.device
        step = chunk_size(N, V, head.dtype.itemsize) if chunk is None else chunk
        gradients = HeadGradients(ctx, hidden, head, weight, wanted=wanted)
        logp = torch.empty(N, dtype=head.dtype, device=device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        buffers = torch.empty(1 if old is None else 2, min(step, N), V, dtype=head.dtype, device=device)
        block = min(step, max(1, CACHE_ENTRIES // V))
        turn = _compiled(rule, temperature) if compiled else partial(_rows_to_gradient, rule, temperature)
        for start in range(0, N, step):
            rows = slice(start, min(start + step, N))
            h = head.hidden(hidden[rows])
            z = head.logits(h, buffers[0, : rows.stop - start])
            s = None
            if old is not None and stale is not None:
                s = old.logits(old.hidden(stale[0][rows]), buffers[1, : rows.stop - start])
            mu, a, t = mu_rows(rows), actions[rows].long(), token_weight[rows].to(head.dtype)
            for low in range(0, len(z), block):
                b = slice(low, min(low + block, len(z)))
                at = slice(start + b.start, start + b.stop)
                value, logp[at] = turn(z[b], None if s is None else s[b], a[b], advantage[at], mu[b], t[b])
                loss += value
            if gradients.wanted:
                gradients.add(rows, z, h)
        ctx.mark_non_differentiable(logp)
        return loss.to(head.dtype), logp

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        return *release(ctx, grad), *(None,) * 10
