"""A correction of theory/ bound to a batch: the constants of its K+1 columns.

Suffixes: N tokens (flat), B responses, T response tokens, K columns beside the sampled token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from real.fused.columns import MuTopK, Selected
from real.fused.loss import CoefficientFunction
from theory.centering import coefficients
from theory.corrections import Correction, Logps

Tail = Literal["spread", "drop"]
"""spread: the mass outside the columns has the trainer's own shape there; drop: it is left out and the
columns are
renormalised, which costs a centre 2 (1 - m) in L1 and is kept for comparison"""


def needs_whole_batch(rule: Correction, /) -> bool:
    """Whether a token's weight depends on other tokens, so that no chunk can know it alone."""
    return rule.level != "token" or rule.clip == "second-moment"


def require_token_level(rule: Correction, /) -> None:
    """Refuse a rule that `needs_whole_batch`."""
    if needs_whole_batch(rule):
        raise ValueError(
            f"a correction with level {rule.level!r} and clip {rule.clip!r} needs the whole batch, "
            "not one chunk of it; compute its constants first and pass constant_coefficients"
        )


def column_coefficients(
    rule: Correction,
    mu: MuTopK,
    advantage: Tensor,
    /,
    *,
    stale: Selected | None = None,
    old: Selected | None = None,
    tail: Tail = "spread",
) -> CoefficientFunction:
    """Bind a correction to a batch.

    Parameters
    ----------
    rule : Correction
        The row of the table, with its ratio and clip at token level.
    mu : MuTopK
        The sampler at the batch's columns.
    advantage : Tensor, shape (N,)
        Advantage of each token.
    stale : Selected, optional
        The trainer at the sampler's weights, at the same columns. None: nothing was updated since the sync,
        so it is the policy itself and the lag ratio is exactly 1.
    old : Selected, optional
        The trainer before the batch's first update, at the same columns; None: the batch is one update.
    tail : {"spread", "drop"}
        What becomes of the mass outside the columns.

    Returns
    -------
    CoefficientFunction
        For `real.fused.loss.corrected_loss`; sums of its constants over the columns give the weight of pi.

    Raises
    ------
    ValueError
        For a correction whose weights depend on the whole response or batch; see `constant_coefficients`.
    """
    require_token_level(rule)
    absent = -float("inf")
    row_mu, repeats = mu.row, mu.repeats

    def row_of(logp: Tensor, rows: slice) -> Tensor:
        first = logp[:, 0].masked_fill(repeats[rows], absent)
        return torch.cat([first[:, None], logp[:, 1:]], dim=1)

    def constants(at: Selected, rows: slice) -> Tensor:
        dtype = at.logp.dtype
        then = at if stale is None else stale.part(rows, dtype)
        before = None if old is None else old.part(rows, dtype)
        token = Logps(
            mu=mu.logp_a[rows].to(dtype),
            pi_s=then.logp[:, 0],
            pi=at.logp[:, 0],
            pi_old=None if before is None else before.logp[:, 0],
        )
        A = advantage[rows].to(dtype)
        if not rule.centered:
            only = coefficients(rule, token, A).token
            return torch.cat([only[:, None], torch.zeros_like(at.logp[:, 1:])], dim=1)
        row = Logps(
            mu=row_mu[rows].to(dtype),
            pi_s=row_of(then.logp, rows),
            pi=row_of(at.logp, rows),
            pi_old=None if before is None else row_of(before.logp, rows),
        )
        outside = None
        if tail == "spread":
            # where the columns are the whole vocabulary the engine's tail is rounding, and has nowhere to go
            mass = mu.log_tail[rows].to(dtype).masked_fill(at.log_tail == absent, absent)
            tail_before = None if before is None else before.log_tail
            outside = Logps(mu=mass, pi_s=then.log_tail, pi=at.log_tail, pi_old=tail_before)
        c = coefficients(rule, token, A, row=row, log_tail=outside)
        assert c.row is not None
        c.row[:, 0] += c.token
        return c.row

    return constants


def constant_coefficients(token: Tensor, columns: int = 1, /) -> CoefficientFunction:
    """Constants that are known already: `token`, shape (N,), on the sampled tokens and nothing elsewhere.

    For the corrections of `needs_whole_batch`, whose constants come from `theory.centering.coefficients` on
    the whole batch (B, T) after one forward-only pass.
    """

    def constants(at: Selected, rows: slice) -> Tensor:
        c = torch.zeros(len(at.logp), columns, dtype=at.logp.dtype, device=at.logp.device)
        c[:, 0] = token[rows]
        return c

    return constants
