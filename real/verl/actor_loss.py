"""The actor's loss as an object for ``set_loss_fn``: all fields of a batch, and the logits for a centre.

verl calls the loss function of a batch marked ``distillation_use_topk`` twice: inside the forward with the
logits, and after it. The first call of a training step gives the surrogate of each position; the first call
of a forward without gradient gives pi_s at the columns of the sampler's row, one number a position and
column, since verl allows no more. So DLC costs no forward that verl does not make anyway, and no line of verl
is changed.

Suffixes: N positions of all sequences of a micro-batch one after the other (position t predicts token t + 1),
V vocabulary, K columns, B responses, T response tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.metric import AggregationType, Metric
from verl.utils.tensordict_utils import get_non_tensor_data
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from real.verl.losses import rule_of
from real.verl.sums import lag_sums
from theory.arrays import log_remainder
from theory.centering import coefficients, surrogate
from theory.corrections import Logps

ROW_IDS, ROW_LOGMU = "teacher_ids", "teacher_logprobs"
"""Where verl carries the top K of a distribution to the actor: here the sampler's own"""
ROW_LOGPI_S = "lag_row_logpi_s_"
"""Prefix of the K fields that hold pi_s at those columns"""
VOTES = "lag_votes"
"""Field of 0/1: tokens that the weights of the last push sampled"""


class ActorLoss:
    """Loss of the actor under ``config.policy_loss``; installed once, then pickled to the workers.

    Parameters
    ----------
    config : verl.workers.config.ActorConfig
        Its ``policy_loss.loss_mode`` names the row.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.rule = rule_of(config.policy_loss)
        self.columns = config.policy_loss.get("top_k", 20)
        if self.rule.centered and (config.entropy_coeff != 0 or config.use_kl_loss):
            raise ValueError(
                "a centred row adds no entropy or KL term; set entropy_coeff=0 and use_kl_loss=false"
            )

    def __call__(
        self,
        model_output: dict[str, Tensor] | None = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Tensor | None = None,
        data_format: str = "thd",
    ) -> Any:
        """One of verl's three calls; see the module."""
        if student_logits is not None:
            if get_non_tensor_data(data=data, key="sp_size", default=1) not in (1, None):
                raise ValueError(
                    "a centred row needs ulysses_sequence_parallel_size=1: its logits must be whole"
                )
            with_grad = torch.is_grad_enabled()
            return self._values(student_logits[0], data) if with_grad else self._pi_s(student_logits[0], data)
        assert model_output is not None
        if not torch.is_grad_enabled():
            return torch.zeros((), device=model_output["log_probs"].device), {}
        pi_BT = no_padding_2_padding(model_output["log_probs"], data)
        if self.rule.centered:
            loss, metrics = self._aggregate(no_padding_2_padding(model_output["lag_value"], data), data)
        else:
            loss, metrics = ppo_loss(self.config, model_output, _with_exact_weights(data), dp_group)
        votes = VOTES if VOTES in data else "response_mask"
        fields = data.select("old_log_probs", "response_mask", votes).to_padded_tensor()
        counted_BT = fields[votes].bool() & fields["response_mask"].bool()
        sums = lag_sums(fields["old_log_probs"], pi_BT, counted_BT)
        return loss, metrics | Metric.from_dict(sums, aggregation=AggregationType.MEAN)

    def _pi_s(self, logits_NV: Tensor, data: Any) -> dict[str, Tensor]:
        """Log-probs at the row's columns, each its own output of shape (1, N)."""
        row_NK = _at(logits_NV, data[ROW_IDS].values())
        return {f"{ROW_LOGPI_S}{k}": row_NK[None, :, k] for k in range(row_NK.shape[1])}

    def _values(self, logits_NV: Tensor, data: Any) -> dict[str, Tensor]:
        """Surrogate of each position, shape (1, N), 0 where no response token follows."""
        ids_NK, columns = data[ROW_IDS].values(), data[ROW_IDS].values().shape[1]
        following_N = torch.roll(data["input_ids"].values(), -1)
        pi_NK, pi_N = _at(logits_NV, ids_NK), _at(logits_NV, following_N[:, None])[:, 0]
        pi_s_NK = torch.stack([data[f"{ROW_LOGPI_S}{k}"].values() for k in range(columns)], dim=-1)
        mask_N = _positions(data, "response_mask").bool()
        with torch.no_grad():
            row = Logps(data[ROW_LOGMU].values().to(pi_NK.dtype), pi_s_NK.to(pi_NK.dtype), pi_NK.detach())
            constants = coefficients(
                self.rule,
                Logps(
                    _positions(data, "rollout_log_probs"), _positions(data, "old_log_probs"), pi_N.detach()
                ),
                _positions(data, "advantages"),
                mask=mask_N,
                row=row,
                log_tail=Logps(*(log_remainder(x) for x in row[:3])),
            )
        return {"lag_value": surrogate(constants, pi_N, pi_NK)[None]}

    def _aggregate(self, value_BT: Tensor, data: Any) -> tuple[Tensor, dict[str, Any]]:
        """Loss of the micro-batch, normalised over the global batch as verl's own."""
        info = self.config.global_batch_info
        info.update({name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")})
        info["loss_scale_factor"] = self.config.loss_scale_factor
        loss = agg_loss(
            loss_mat=-value_BT,
            loss_mask=data.select("response_mask").to_padded_tensor()["response_mask"].bool(),
            loss_agg_mode=self.config.loss_agg_mode,
            **info,
        )
        return loss, {"actor/pg_loss": Metric(value=loss, aggregation=AggregationType.SUM)}


def _at(logits_NV: Tensor, ids_NK: Tensor) -> Tensor:
    """Log-probs at some columns, shape (N, K), in float32."""
    logits_NV = logits_NV.float()
    return logits_NV.gather(-1, ids_NK.long()) - logits_NV.logsumexp(dim=-1, keepdim=True)


def _positions(data: Any, name: str) -> Tensor:
    """Field of the response tokens, put at the positions that predict them; 0 elsewhere, shape (N,)."""
    prompts = data["prompts"].offsets().diff().tolist()
    parts = []
    for field, prompt in zip(data[name].unbind(), prompts, strict=True):
        parts += [field.new_zeros(prompt - 1), field, field.new_zeros(1)]
    return torch.cat(parts)


def _with_exact_weights(data: Any) -> Any:
    """Return the batch with pi_s/mu from the engine's own log-probs in place of verl's cut weights."""
    if "rollout_log_probs" not in data:
        return data
    old, mu = data["old_log_probs"], data["rollout_log_probs"]
    weights = [torch.exp(s - m) for s, m in zip(old.unbind(), mu.unbind(), strict=True)]
    data["rollout_is_weights"] = torch.nested.as_nested_tensor(weights, layout=torch.jagged)
    return data
