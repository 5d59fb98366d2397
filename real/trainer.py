"""One step of plain SGD under a correction: the shared core's constants, torch's own derivative.

Suffixes: C prompts, N samples of each, B = C*N responses (group-major), T response tokens, V vocabulary, K
columns of the sampler's row.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.model import at_tokens, row_logps
from real.samplers.base import Rollout
from theory.arrays import log_remainder
from theory.centering import coefficients, surrogate
from theory.corrections import Correction, Logps
from theory.ess import ess_fraction, response_ess
from theory.weights import log_ratio, lr_factor


class Diverged(RuntimeError):
    """The policy is no longer finite; the weights are those before the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an update leaves behind for the measures."""

    logpi_s_BTV: Tensor
    """Rows of the trainer at the sampler's weights"""
    logpi_BTV: Tensor
    """Rows of the trainer after the update: one more forward, the price of an ESS at the new weights"""
    update_norm: float
    """Euclidean norm of the parameter change"""


class Trainer:
    """The weights that learn, and the frozen copy of those the sampler holds."""

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        rule: Correction,
        *,
        lr: float,
        minibatches: int = 1,
        top_k_row: int | None = None,
    ) -> None:
        self.model = model
        # requires_grad stays on, though nothing differentiates it: torch picks the kernel of a matrix product
        # by it, and pi_s must be the trainer's own numerics to the last bit
        self.frozen = copy.deepcopy(model)
        self.version = 0
        self.synced_version = 0
        self.rule, self.lr, self.minibatches, self.top_k_row = rule, lr, minibatches, top_k_row
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    @property
    def synced(self) -> bool:
        """Whether nothing has been updated since the sync: then pi_s is pi."""
        return self.version == self.synced_version

    def lag_norm(self) -> float:
        """Euclidean norm of the trainer's minus the sampler's weights."""
        return _distance(list(self.model.parameters()), list(self.frozen.parameters()))

    def step(self, rollout: Rollout, advantage_CN: Tensor) -> Step:
        """Update on one batch: `minibatches` updates, each on whole prompts, loss averaged over its tokens.

        Raises
        ------
        ValueError
            If the rollout was not sampled from the weights the frozen copy holds, or has fewer prompts than
            minibatches.
        Diverged
            If a gradient or a log-prob is not finite; the weights are put back.
        """
        if rollout.version != self.synced_version:
            raise ValueError(
                f"pi_s is that of version {self.synced_version}, got a rollout of version {rollout.version}; "
                "sample again after the sync"
            )
        prompts = len(rollout.prompt_CP)
        if prompts < self.minibatches:
            raise ValueError(f"minibatches must be <= prompts ({prompts}), got {self.minibatches}")
        # one row for pi_s and, after it, one for pi before the batch: each only where it can differ from pi
        row_s_BTV = None if self.synced else _no_grad_rows(self.frozen, rollout)
        row_old_BTV = _no_grad_rows(self.model, rollout) if self.minibatches > 1 else None
        if row_s_BTV is None:
            row_s_BTV = row_old_BTV
        before = [p.detach().clone() for p in self.model.parameters()]
        start = self.version
        advantage_BT = advantage_CN.reshape(-1, 1).expand(rollout.mask_BT.shape)
        used_BTV = row_s_BTV
        try:
            for chunk in torch.arange(prompts).tensor_split(self.minibatches):
                c = slice(int(chunk[0]), int(chunk[-1]) + 1)
                b = slice(c.start * rollout.samples, c.stop * rollout.samples)
                used_BTV = self._update(
                    _part(rollout, c, b),
                    advantage_BT[b],
                    None if row_s_BTV is None else row_s_BTV[b],
                    None if row_old_BTV is None else row_old_BTV[b],
                )
            if row_s_BTV is None:  # synced, one update: its own forward was pi_s
                row_s_BTV = used_BTV
            logpi_BTV = _no_grad_rows(self.model, rollout)
            if not torch.isfinite(logpi_BTV[rollout.mask_BT]).all():
                raise Diverged("log-probs after the update are not finite; lower lr or resync earlier")
        except Diverged:
            self._restore(before, start)
            raise
        assert row_s_BTV is not None
        return Step(
            logpi_s_BTV=row_s_BTV,
            logpi_BTV=logpi_BTV,
            update_norm=_distance(list(self.model.parameters()), before),
        )

    @torch.no_grad()
    def _restore(self, weights: list[Tensor], version: int) -> None:
        for parameter, value in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(value)
        self.version = version

    def _update(
        self, part: Rollout, advantage_BT: Tensor, row_s_BTV: Tensor | None, row_old_BTV: Tensor | None
    ) -> Tensor:
        """One optimizer step; returns the rows of pi_s it used."""
        row_BTV = row_logps(self.model, part.prompt_CP, part.response_BT)
        detached_BTV = row_BTV.detach()
        if row_s_BTV is None:
            row_s_BTV = detached_BTV
        tokens = part.response_BT
        token = Logps(
            mu=part.logmu_BT,
            pi_s=at_tokens(row_s_BTV, tokens),
            pi=at_tokens(detached_BTV, tokens),
            pi_old=None if row_old_BTV is None else at_tokens(row_old_BTV, tokens),
        )
        with torch.no_grad():
            rate = self.lr * self._lr_factor(token, part.mask_BT)
            columns, row, log_tail = None, None, None
            if self.rule.centered:
                columns, row, log_tail = self._columns(part.logmu_BTV, row_s_BTV, detached_BTV, row_old_BTV)
            constants = coefficients(
                self.rule, token, advantage_BT, mask=part.mask_BT, row=row, log_tail=log_tail
            )
        logpi_row = None if not self.rule.centered else _pick(row_BTV, columns)
        value_BT = surrogate(constants, at_tokens(row_BTV, tokens), logpi_row)
        loss = -value_BT[part.mask_BT].mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not math.isfinite(norm.item()):
            raise Diverged(
                f"the gradient of update {self.version + 1} is not finite; lower lr or resync earlier"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.version += 1
        return row_s_BTV

    def _lr_factor(self, token: Logps, mask_BT: Tensor) -> float:
        """Factor on the step from the ESS of the rule's own ratio, at the level of the rule."""
        if self.rule.lr_power == 0:
            return 1.0
        own_BT = log_ratio(self.rule.ratio, token)
        if self.rule.level == "token":
            ess = ess_fraction(own_BT[mask_BT])
        else:
            ess = response_ess(own_BT, mask=mask_BT, geometric=self.rule.level == "geometric")
        return float(lr_factor(self.rule, ess))

    def _columns(
        self, mu_BTV: Tensor, pi_s_BTV: Tensor, pi_BTV: Tensor, old_BTV: Tensor | None
    ) -> tuple[Tensor | None, Logps, Logps | None]:
        """Columns of the sampler's row a centre sees: all of them, or its top K and the tail's mass."""
        if self.top_k_row is None or self.top_k_row >= mu_BTV.shape[-1]:
            return None, Logps(mu_BTV, pi_s_BTV, pi_BTV, old_BTV), None
        columns_BTK = mu_BTV.topk(self.top_k_row, dim=-1).indices
        row = Logps(
            *(None if r is None else _pick(r, columns_BTK) for r in (mu_BTV, pi_s_BTV, pi_BTV, old_BTV))
        )
        return columns_BTK, row, Logps(*(None if r is None else log_remainder(r) for r in row))


def _pick(row_BTV: Tensor, columns_BTK: Tensor | None) -> Tensor:
    return row_BTV if columns_BTK is None else row_BTV.gather(-1, columns_BTK)


@torch.no_grad()
def _no_grad_rows(model: Qwen3ForCausalLM, rollout: Rollout) -> Tensor:
    return row_logps(model, rollout.prompt_CP, rollout.response_BT)


def _part(rollout: Rollout, c: slice, b: slice) -> Rollout:
    """Cut out some prompts of a rollout with all their responses."""
    return Rollout(
        prompt_CP=rollout.prompt_CP[c],
        response_BT=rollout.response_BT[b],
        mask_BT=rollout.mask_BT[b],
        logmu_BTV=rollout.logmu_BTV[b],
        version=rollout.version,
    )


@torch.no_grad()
def _distance(a: list[Tensor], b: list[Tensor]) -> float:
    """Euclidean norm of a difference of parameter lists, summed in float64."""
    return math.sqrt(sum((x.double() - y.double()).square().sum().item() for x, y in zip(a, b, strict=True)))
