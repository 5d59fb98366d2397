"""Plain SGD on a full-size Qwen3: micro-batches, the loss on K+1 columns, pi_s in a forward-only pass.

Suffixes: B responses, T tokens of the longest, N tokens of all responses in a row, n tokens of a micro-batch,
H hidden, V vocabulary, K columns beside the sampled token.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real.fullsize.batches import MicroBatch, micro_batches
from real.fullsize.engine import FullRollout
from real.fullsize.settings import FullSize
from real.fused.columns import MuTopK, Selected, TailReport, tail_report
from real.fused.loss import CoefficientFunction, corrected_loss, sel_logp
from real.fused.rule import column_coefficients, constant_coefficients, needs_whole_batch
from real.fused.stale import FrozenWeights, StaleColumns
from real.trainer import Diverged
from theory.centering import coefficients
from theory.corrections import Correction, Logps
from theory.ess import ess_fraction, response_ess
from theory.weights import log_ratio, lr_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class FullStep:
    """What an update leaves behind for the measures."""

    logpi_s_N: Tensor
    """Log-probs of the sampled tokens by the trainer at the sampler's weights"""
    logpi_N: Tensor
    """The same after the update"""
    update_norm: float
    """Euclidean norm of the parameter change; NaN with several minibatches, where it was not measured"""
    tail: TailReport
    synced: bool
    """Whether the sampler had the trainer's weights: then no pass for pi_s was made"""


class FullTrainer:
    """The weights that learn, and the frozen copy of those the sampler holds.

    Parameters
    ----------
    model : Qwen3ForCausalLM
        Float32 parameters, on its device.
    rule : Correction
        Any row of the corrections table.
    lr : float
        Step of plain SGD.
    environment : FullSize
        Micro-batch size, temperature, where the frozen copy lives.
    minibatches : int
        Updates per batch, each on whole prompts.
    """

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        rule: Correction,
        *,
        lr: float,
        environment: FullSize,
        minibatches: int = 1,
    ) -> None:
        self.model, self.rule, self.lr, self.environment = model, rule, lr, environment
        self.minibatches = minibatches
        self.device = next(model.parameters()).device
        on_cpu = environment.frozen_on_cpu and self.device.type != "cpu"
        self.frozen = FrozenWeights(model, device="cpu" if on_cpu else None)
        self.stale = StaleColumns()
        self.version = 0

    def took_sync(self) -> None:
        """Remember that the sampler has just been given the model's weights."""
        self.frozen.take(self.model, self.version)

    def step(self, rollout: FullRollout, advantage_B: Tensor) -> FullStep:
        """Update on one batch; the loss is averaged over the tokens of each minibatch.

        Raises
        ------
        ValueError
            If the rollout is of another version than the frozen copy, or has fewer prompts than minibatches.
        Diverged
            If a gradient or a log-prob is not finite; the last update that was is kept.
        """
        mu = rollout.mu.to(self.device)
        if mu.version != self.frozen.version:
            raise ValueError(
                f"pi_s is that of version {self.frozen.version}, got a rollout of version {mu.version}; "
                "sample again after the sync"
            )
        if len(rollout.prompts) < self.minibatches:
            raise ValueError(
                f"minibatches must be <= prompts ({len(rollout.prompts)}), got {self.minibatches}"
            )
        lengths = torch.tensor(rollout.lengths)
        advantage_N = advantage_B.repeat_interleave(lengths).to(self.device, torch.float32)
        tail = tail_report(mu, warn=self.rule.centered)
        synced = mu.version == self.version
        stale = self.stale.of(
            mu, lambda: self._stale_columns(rollout, mu), trainer_version=self.version,
            temperature=self.environment.temperature,
        )  # fmt: skip
        old = self.columns(rollout, mu) if self.minibatches > 1 or self._needs_pass else None
        if stale is None and self.minibatches > 1:
            stale = old
        used: list[tuple[Tensor, Tensor]] = []
        norms = []
        for part in torch.arange(len(rollout.prompts)).tensor_split(self.minibatches):
            responses = [int(c) * rollout.samples + s for c in part for s in range(rollout.samples)]
            norms.append(self._update(rollout, mu, advantage_N, responses, stale, old, used))
        logpi_s_N = torch.empty(len(mu), device=self.device)
        for at, logp in used if stale is None else [(torch.arange(len(mu)), stale.logp[:, 0].float())]:
            logpi_s_N[at] = logp
        logpi_N = self.columns(rollout, mu, sampled_only=True).logp[:, 0]
        if not torch.isfinite(logpi_N).all():
            raise Diverged("log-probs after the update are not finite; lower lr or resync earlier")
        return FullStep(
            logpi_s_N=logpi_s_N.cpu(),
            logpi_N=logpi_N.cpu(),
            update_norm=norms[0] if len(norms) == 1 else math.nan,
            tail=tail,
            synced=synced,
        )

    @property
    def _needs_pass(self) -> bool:
        """Whether constants need the policy at the whole batch before the update."""
        return needs_whole_batch(self.rule) or self.rule.lr_power != 0

    @torch.no_grad()
    def columns(self, rollout: FullRollout, mu: MuTopK, *, sampled_only: bool = False) -> Selected:
        """Forward-only pass of the model as it is: log-probs at the rollout's columns, and their tail."""
        ids = mu.ids[:, :1] if sampled_only else mu.ids
        logp = torch.empty(ids.shape, device=self.device)
        log_tail = torch.empty(len(ids), device=self.device)
        for micro in self._micro(rollout):
            at = micro.tokens_n.to(self.device)
            hidden_nH = self._hidden(micro)
            found = sel_logp(hidden_nH, self._head(), ids[at], temperature=self.environment.temperature)
            logp[at], log_tail[at] = found
        return Selected(logp, log_tail)

    def lag_norm(self) -> float:
        """Euclidean norm of the trainer's minus the sampler's weights."""
        return self.frozen.distance(self.model)

    def _stale_columns(self, rollout: FullRollout, mu: MuTopK) -> Selected:
        with self.frozen.inside(self.model):
            return self.columns(rollout, mu)

    def _micro(self, rollout: FullRollout, only: Sequence[int] | None = None) -> list[MicroBatch]:
        return micro_batches(
            rollout.prompts, rollout.responses, tokens=self.environment.micro_batch_tokens, only=only
        )

    def _low(self) -> contextlib.AbstractContextManager[object]:
        """Compute in bfloat16 from float32 parameters on a card; on a CPU bfloat16 is slower, not faster."""
        if self.device.type == "cpu":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _hidden(self, micro: MicroBatch) -> Tensor:
        """Return the inputs of the head at the positions that predict response tokens, shape (n, H)."""
        with self._low():
            out_bLH = self.model.model(
                input_ids=micro.input_bL.to(self.device), use_cache=False
            ).last_hidden_state
        hidden_nH = out_bLH[micro.predicts_bL.to(self.device)]
        return hidden_nH if self.device.type == "cpu" else hidden_nH.bfloat16()

    def _head(self) -> Tensor:
        weight = self.model.lm_head.weight
        return weight if self.device.type == "cpu" else weight.bfloat16()

    def _update(
        self,
        rollout: FullRollout,
        mu: MuTopK,
        advantage_N: Tensor,
        responses: list[int],
        stale: Selected | None,
        old: Selected | None,
        used: list[tuple[Tensor, Tensor]],
    ) -> float:
        """One SGD step on some responses, micro-batch by micro-batch; returns its norm."""
        parts = self._micro(rollout, responses)
        total = sum(len(micro.tokens_n) for micro in parts)
        if total == 0:
            raise ValueError("a minibatch needs at least one response token, got none")
        now = self.columns(rollout, mu, sampled_only=True) if self._needs_pass else None
        whole = None if now is None else self._whole(rollout, mu, advantage_N, responses, stale, old, now)
        self.model.zero_grad(set_to_none=True)
        before = old if self.minibatches > 1 else None
        for micro in parts:
            at = micro.tokens_n.to(self.device)
            part = mu.part(at)
            function: CoefficientFunction
            if whole is not None and needs_whole_batch(self.rule):
                function, ids = constant_coefficients(whole[0][at]), part.ids[:, :1]
            else:
                ids = part.ids if self.rule.centered else part.ids[:, :1]
                if not self.rule.centered:
                    part = part.sampled_only()
                width = slice(0, ids.shape[1])
                function = column_coefficients(
                    self.rule,
                    part,
                    advantage_N[at],
                    stale=None if stale is None else _narrow(stale, at, width),
                    old=None if before is None else _narrow(before, at, width),
                )
            weight_n = torch.full((len(at),), 1.0 / total, device=self.device)
            out = corrected_loss(
                self._hidden(micro),
                self._head(),
                ids,
                function,
                temperature=self.environment.temperature,
                token_weight=weight_n,
            )
            out.loss.backward()
            used.append((micro.tokens_n, out.logp[:, 0].float()))
        return self._descend(1.0 if whole is None else whole[1])

    def _whole(
        self,
        rollout: FullRollout,
        mu: MuTopK,
        advantage_N: Tensor,
        responses: list[int],
        stale: Selected | None,
        old: Selected | None,
        now: Selected,
    ) -> tuple[Tensor, float]:
        """Constants of the sampled tokens, shape (N,), and the factor on lr, for rules of the whole batch."""
        spread = _Spread(rollout.lengths, responses, self.device)
        pi_N = now.logp[:, 0]
        token = Logps(
            mu=spread.of(mu.logp_a),
            pi_s=spread.of(pi_N if stale is None else stale.logp[:, 0].float()),
            pi=spread.of(pi_N),
            pi_old=None if old is None or self.minibatches == 1 else spread.of(old.logp[:, 0].float()),
        )
        factor = 1.0
        if self.rule.lr_power != 0:
            own_BT = log_ratio(self.rule.ratio, token)
            if self.rule.level == "token":
                ess = ess_fraction(own_BT[spread.mask_BT])
            else:
                ess = response_ess(own_BT, mask=spread.mask_BT, geometric=self.rule.level == "geometric")
            factor = float(lr_factor(self.rule, ess))
        constants_N = torch.zeros_like(pi_N)
        if needs_whole_batch(self.rule):
            c_BT = coefficients(self.rule, token, spread.of(advantage_N), mask=spread.mask_BT).token
            constants_N[spread.index_BT[spread.mask_BT]] = c_BT[spread.mask_BT]
        return constants_N, factor

    @torch.no_grad()
    def _descend(self, factor: float) -> float:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise Diverged(
                f"the gradient of update {self.version + 1} is not finite; lower lr or resync earlier"
            )
        rate = self.lr * factor
        for p in self.model.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=rate)
        self.model.zero_grad(set_to_none=True)
        self.version += 1
        return rate * norm


class _Spread:
    """Tokens in a row as a padded table of the chosen responses, and back."""

    def __init__(self, lengths: list[int], responses: list[int], device: torch.device) -> None:
        starts = torch.tensor([0, *lengths]).cumsum(0)[:-1][responses]
        length_B = torch.tensor(lengths)[responses]
        offset_T = torch.arange(max(int(length_B.max()), 1))
        self.mask_BT = (offset_T < length_B[:, None]).to(device)
        self.index_BT = (starts[:, None] + offset_T).clamp(max=sum(lengths) - 1).to(device)

    def of(self, x_N: Tensor) -> Tensor:
        return x_N[self.index_BT]


def _narrow(selected: Selected, at: Tensor, columns: slice) -> Selected:
    return Selected(selected.logp[at][:, columns], selected.log_tail[at])
