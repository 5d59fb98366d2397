"""pi_s at a batch's columns: one forward-only pass at the sampler's weights, or none where it is known."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from real.fused.columns import MuTopK, Selected


class FrozenWeights:
    """Copy of a trainer's parameters at the last sync.

    Parameters
    ----------
    model : nn.Module
        Copied now; tied parameters once.
    device : str or torch.device, optional
        Where to keep it; None: beside each parameter. "cpu" frees a card at the price of a transfer each
        pass.
    """

    def __init__(self, model: nn.Module, *, device: torch.device | str | None = None) -> None:
        self.device = device
        self.version = 0
        self._weights = [self._kept(p) for p in model.parameters()]

    def _kept(self, parameter: Tensor) -> Tensor:
        return parameter.detach().to(self.device or parameter.device, copy=True)

    @torch.no_grad()
    def take(self, model: nn.Module, version: int) -> None:
        """Overwrite the copy with the model's weights of that version."""
        for kept, parameter in zip(self._weights, model.parameters(), strict=True):
            kept.copy_(parameter)
        self.version = version

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Have the model compute with the copy: pi_s from the trainer's own kernels, dtype and packing."""
        live = [p.data for p in model.parameters()]
        try:
            for parameter, kept in zip(model.parameters(), self._weights, strict=True):
                parameter.data = kept.to(parameter.device, parameter.dtype)
            yield
        finally:
            for parameter, data in zip(model.parameters(), live, strict=True):
                parameter.data = data

    @torch.no_grad()
    def distance(self, model: nn.Module) -> float:
        """Euclidean norm of the model's weights minus the copy, summed in float64."""
        pairs = zip(model.parameters(), self._weights, strict=True)
        return math.sqrt(sum(float((p - w.to(p.device)).double().square().sum()) for p, w in pairs))

    def tensors(self) -> list[Tensor]:
        """Return the copy itself, in the order of the model's parameters."""
        return list(self._weights)

    @property
    def nbytes(self) -> int:
        """Bytes the copy takes."""
        return sum(w.nbytes for w in self._weights)


class StaleColumns:
    """Remembers pi_s of the batches of one sampler version, so that epochs and minibatches share one pass."""

    def __init__(self) -> None:
        self.passes = 0
        """Forward-only passes made so far"""
        self._version: int | None = None
        self._known: dict[str, Selected] = {}

    def of(
        self,
        mu: MuTopK,
        compute: Callable[[], Selected],
        /,
        *,
        trainer_version: int,
        temperature: float = 1.0,
    ) -> Selected | None:
        """Return pi_s of a batch.

        Parameters
        ----------
        mu : MuTopK
            The batch; its version is the sampler's.
        compute : callable
            Makes the pass with the weights of that version; called at most once per batch.
        trainer_version : int
            Updates behind the trainer's weights.
        temperature : float
            Of the pass; another one is another pass.

        Returns
        -------
        Selected or None
            None where nothing was updated since the sync: pi_s is the policy itself, and no pass is made.
        """
        if mu.version == trainer_version:
            return None
        if mu.version != self._version:
            self._version, self._known = mu.version, {}
        digest = hashlib.sha256(mu.ids.cpu().contiguous().numpy().tobytes())
        digest.update(mu.logp_a.cpu().contiguous().numpy().tobytes())
        key = f"{digest.hexdigest()}/{temperature!r}"
        if key not in self._known:
            self._known[key] = compute()
            self.passes += 1
        return self._known[key]
