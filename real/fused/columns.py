"""The sampler's distribution as K+1 columns a token: the sampled token, the top K, and the mass outside.

Column 0 is the sampled token. It is an entry of the sampler's row of its own where it is outside the top K;
where it repeats one of them, the row's entry 0 is absent (-inf under every policy) and nothing counts twice.

Suffixes: N tokens (flat, no padding), K top entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from theory.arrays import log_expm1_neg, logsumexp

COARSE_TAIL = 0.1
"""Mean tail mass above which top-K centring is warned of. The tail's own discrepancy cannot be seen: the
share of the correction that is lost is at most about the tail mass (synthetic rows: .02 at .09, .4 at .8)"""


class Selected(NamedTuple):
    """A policy at the columns of a batch."""

    logp: Tensor
    """Shape (N, K+1), nats"""
    log_tail: Tensor
    """Shape (N,): log of the mass outside the columns, by a sum over what is outside"""

    def part(self, rows: slice | Tensor, dtype: torch.dtype | None = None) -> Selected:
        """Return some tokens of it, in another dtype where asked."""
        dtype = self.logp.dtype if dtype is None else dtype
        return Selected(self.logp[rows].to(dtype), self.log_tail[rows].to(dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class MuTopK:
    """What the engine must hand over of the distribution it sampled from."""

    ids: Tensor
    """int32, shape (N, K+1): the sampled token, then the top K, each once"""
    logp: Tensor
    """Shape (N, K), nats: the top K's; float16 is enough for a centre (largest rounding .004 nats)"""
    logp_a: Tensor
    """float32, shape (N,): the sampled token's; it enters the ratio and the ESS, so it stays float32"""
    log_tail: Tensor
    """float32, shape (N,): log of the mass outside all K+1 columns"""
    version: int
    """Updates behind the sampler's weights"""

    def __post_init__(self) -> None:
        """Refuse shapes that do not belong together."""
        N, columns = self.ids.shape
        shapes = {"logp": (N, columns - 1), "logp_a": (N,), "log_tail": (N,)}
        for name, wanted in shapes.items():
            got = tuple(getattr(self, name).shape)
            if got != wanted:
                raise ValueError(
                    f"{name} must have shape {wanted} for ids of shape {(N, columns)}, got {got}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def repeats(self) -> Tensor:
        """Bool, shape (N,): whether the sampled token is among the top K."""
        return repeated(self.ids)

    @property
    def row(self) -> Tensor:
        """Shape (N, K+1), dtype of `logp_a`: the row's entries, -inf where column 0 is absent."""
        first = self.logp_a.masked_fill(self.repeats, -float("inf"))
        return torch.cat([first[:, None], self.logp.to(first.dtype)], dim=1)

    @property
    def tail_mass(self) -> Tensor:
        """Shape (N,): mass outside the columns."""
        return self.log_tail.exp()

    @property
    def nbytes(self) -> int:
        """Bytes it takes to store."""
        return sum(t.nbytes for t in (self.ids, self.logp, self.logp_a, self.log_tail))

    def sampled_only(self) -> MuTopK:
        """Return it without the top K, for corrections without a centre; the tail is all but the token."""
        outside = log_expm1_neg(self.logp_a.clamp(max=0.0))
        return MuTopK(
            ids=self.ids[:, :1],
            logp=self.logp[:, :0],
            logp_a=self.logp_a,
            log_tail=outside,
            version=self.version,
        )

    def part(self, rows: slice | Tensor) -> MuTopK:
        """Return some tokens of it, by slice, indices or mask."""
        return MuTopK(
            ids=self.ids[rows],
            logp=self.logp[rows],
            logp_a=self.logp_a[rows],
            log_tail=self.log_tail[rows],
            version=self.version,
        )

    def to(self, device: torch.device | str) -> MuTopK:
        """Return it on another device."""
        ids, logp, logp_a, log_tail = (
            t.to(device) for t in (self.ids, self.logp, self.logp_a, self.log_tail)
        )
        return MuTopK(ids=ids, logp=logp, logp_a=logp_a, log_tail=log_tail, version=self.version)


def repeated(ids: Tensor, /) -> Tensor:
    """Bool, shape (N,): whether column 0 stands again among the other columns of `ids`, shape (N, K+1)."""
    return (ids[:, 1:] == ids[:, :1]).any(dim=1)


def top_k(logmu_NV: Tensor, sampled_N: Tensor, k: int, /, *, version: int = 0) -> MuTopK:
    """Columns of full rows: for engines that have them, and for tests.

    Parameters
    ----------
    logmu_NV : Tensor, shape (N, V)
        Log-probabilities, nats.
    sampled_N : Tensor, shape (N,)
        Sampled ids.
    k : int
        Entries of the row to keep, at most V.
    version : int
        Of the sampler's weights.
    """
    if not 1 <= k <= logmu_NV.shape[1]:
        raise ValueError(f"k must be between 1 and the vocabulary's {logmu_NV.shape[1]}, got {k}")
    logp, top = logmu_NV.topk(k, dim=-1)
    ids = torch.cat([sampled_N[:, None], top], dim=1)
    outside = logmu_NV.scatter(1, ids, -float("inf"))
    logp_a = logmu_NV.gather(1, sampled_N[:, None])[:, 0]
    log_tail = torch.logsumexp(outside, dim=-1)
    return MuTopK(ids=ids.int(), logp=logp, logp_a=logp_a, log_tail=log_tail, version=version)


def from_engine(
    ids: Sequence[int] | np.ndarray, logps: Sequence[float] | np.ndarray, k: int, /, *, version: int
) -> MuTopK:
    """Columns from the flat lists of vLLM's ``logprobs=k, flat_logprobs=True``.

    Each position holds k+1 entries, the sampled token first and again among the others where it is one of
    them. Ask for ``logprobs_mode="processed_logprobs"``: the default reports another distribution than was
    sampled.

    Parameters
    ----------
    ids, logps : sequences of length N * (k + 1)
        ``FlatLogprobs.token_ids`` and ``.logprobs``, of one completion or of several in a row.
    k : int
        The number asked for.
    version : int
        Of the sampler's weights.

    Raises
    ------
    ValueError
        If the lengths do not fit, or the masses of a row add up to more than one.
    """
    if len(ids) != len(logps) or len(ids) % (k + 1):
        raise ValueError(
            f"an engine asked for {k} log-probs returns {k + 1} entries a token, "
            f"got {len(ids)} ids and {len(logps)} log-probs"
        )
    columns = torch.from_numpy(np.asarray(ids, dtype=np.int32).reshape(-1, k + 1))
    values = torch.from_numpy(np.asarray(logps, dtype=np.float64).reshape(-1, k + 1))
    first = values[:, :1].masked_fill(repeated(columns)[:, None], -float("inf"))
    inside = logsumexp(torch.cat([first, values[:, 1:]], dim=1), axis=-1)
    # float32 log-probs of K entries add up to 1 within their rounding; a whole excess is another fault
    if not (inside <= 1e-4).all():
        raise ValueError(
            f"the columns of a row hold at most mass 1, got {float(inside.exp().max()):.4f}; "
            "the engine must report each id once and log-probs of one distribution"
        )
    # the engine reports no more than this; a tail below float32 resolution comes out as rounding or zero
    log_tail = log_expm1_neg(inside.clamp(max=0.0))
    return MuTopK(
        ids=columns,
        logp=values[:, 1:].float(),
        logp_a=values[:, 0].float(),
        log_tail=log_tail.float(),
        version=version,
    )


def join(parts: Sequence[MuTopK], /) -> MuTopK:
    """Concatenate batches of one sampler version."""
    versions = {part.version for part in parts}
    if len(versions) != 1:
        raise ValueError(f"parts of one batch come from one sampler version, got {sorted(versions)}")
    fields: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("ids", "logp", "logp_a", "log_tail")
    }
    return MuTopK(version=versions.pop(), **fields)


class TailReport(NamedTuple):
    """How much of the sampler's distribution a batch's columns leave out."""

    mean: float
    """Mean tail mass: about the share of the centring that is lost"""
    largest: float
    warning: str | None
    """One line where the mean is above `COARSE_TAIL`"""


def tail_report(mu: MuTopK, /, *, warn: bool = True) -> TailReport:
    """Report the tail mass of a batch, and warn where it is too much for top-K centring."""
    mass = mu.tail_mass
    mean, largest = float(mass.mean()), float(mass.max())
    warning = None
    if mean > COARSE_TAIL:
        k = mu.logp.shape[1]
        warning = (
            f"the sampler's top {k} leave a mean mass of {mean:.3f} outside, above {COARSE_TAIL}: up to that "
            "share of the centring is lost; ask the engine for more columns or use full rows"
        )
        if warn:
            warnings.warn(warning, stacklevel=2)
    return TailReport(mean, largest, warning)
