"""GRPO with any correction of the core, a sampler that is held, and the lag's measures in TRL's own log.

A step: the sampler generates from the weights it was last pushed; the trainer scores the batch at those
weights (pi_s) and at its own (pi); the loss is the core's; after the update the batch is scored once more at
the new weights, which gives the measures, the decision to push, and the lines of the trace. TRL does
everything else.

Suffixes: B responses, T response tokens, K columns of the sampler's row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer  # pyright: ignore[reportAttributeAccessIssue]

from real.hooks.canonical import append, row
from real.trl.cpu_engine import load_whole
from real.trl.rows import Rows, of_transformers, of_vllm
from real.trl.supported import refuse
from theory.arrays import log_remainder
from theory.centering import coefficients, surrogate
from theory.corrections import Correction, Logps
from theory.monitor import read_batch
from theory.resync import should_resync
from theory.trigger import Trigger


class LagGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with the correction core. All of TRL's arguments, and five more.

    Parameters
    ----------
    correction : Correction
        From `theory.corrections.correction`; its ``resync_below`` and ``resync_level`` are the rule of the
        push.
    sync_every : int
        Scheduled period in updates: 1 pushes before every generation as TRL does, 64 is the articles' stale
        sampler, 0 leaves the push to the rule alone.
    top_k : int
        Columns of the sampler's row that a centred correction sees; vLLM reports up to 20 unless told
        otherwise.
    trigger : Trigger, optional
        Ask `theory.monitor` for the push in place of the correction's plain ESS: tail put back, missing mass.
    dump : str, optional
        File the canonical trace is appended to; one a process when there are several.

    Raises
    ------
    ValueError
        For settings of TRL that the correction could not honour.
    """

    def __init__(
        self,
        *args: Any,
        correction: Correction,
        sync_every: int = 1,
        top_k: int = 20,
        trigger: Trigger | None = None,
        dump: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        refuse(self, correction)
        if sync_every < 0 or top_k < 1:
            raise ValueError(f"sync_every must be >= 0 and top_k >= 1, got {sync_every} and {top_k}")
        self.correction, self.sync_every, self.trigger = correction, sync_every, trigger
        self.top_k = min(top_k, self._plain_model().config.vocab_size)
        processes, index = self.accelerator.num_processes, self.accelerator.process_index
        self.dump = dump if dump is None or processes == 1 else f"{dump}.rank{index}"
        if self.use_vllm and self.vllm_mode == "colocate" and self.accelerator.device.type == "cpu":
            load_whole(self.vllm_generation)
        # the core corrects: TRL's own ratio would do it a second time
        self.vllm_importance_sampling_correction = False
        self._push_next, self._engine_is_held = True, True
        self._held: dict[str, Tensor] = {}
        self._held_version = 0
        self._rows: Rows | None = None
        self._rewards: Tensor | None = None
        self.add_callback(_AfterUpdate(self))

    # the weights of the sampler

    def _plain_model(self) -> Any:
        return self.accelerator.unwrap_model(self.model)

    @contextmanager
    def _sampler_weights(self) -> Iterator[Any]:
        """Let the model hold the sampler's weights for a while; pointers are exchanged, nothing is copied."""
        model = self._plain_model()
        live = {name: p.data for name, p in model.named_parameters()}
        try:
            for name, p in model.named_parameters():
                p.data = self._held[name]
            yield model
        finally:
            for name, p in model.named_parameters():
                p.data = live[name]

    def _push(self) -> None:
        """Give the sampler the trainer's weights and remember them: from now on pi_s is theirs."""
        self._held = {n: p.detach().clone() for n, p in self._plain_model().named_parameters()}
        self._held_version = self.state.global_step
        self._push_next = False
        if self.use_vllm:
            self.vllm_generation.sync_weights()
        self._engine_is_held = True

    # generation

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.model.training:
            # TRL evaluates the trainer's weights: the engine gets the held ones back before it samples again
            self._engine_is_held = not self.use_vllm
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if self._push_next:
            self._push()
        with self._sampler_weights() as model:
            if self.use_vllm:
                if not self._engine_is_held:
                    self.vllm_generation.sync_weights()
                    self._engine_is_held = True
                self._last_loaded_step = self.state.global_step  # TRL compares it, and would push otherwise
                caught_rows = of_vllm(self.vllm_generation, self.top_k)
            else:
                caught_rows = of_transformers(model, self.top_k)
            with caught_rows as caught:
                completions, _ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        (self._rows,) = caught
        return completions, [s[: len(c)] for s, c in zip(self._rows.sampled, completions, strict=True)]

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        per_function = super()._calculate_rewards(*args, **kwargs)
        self._rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(dim=1)
        return per_function

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return out
        assert self._rows is not None
        assert self._rewards is not None
        count, tokens = out["completion_ids"].shape
        ids_BTK, logmu_BTK = (x.to(out["completion_ids"].device) for x in self._rows.fitted(tokens))
        with torch.no_grad(), self._sampler_weights() as model:
            pi_s_BT, pi_s_BTK = self._logps(model, out, ids_BTK)
        first = self.accelerator.process_index * count
        sequence = first + torch.arange(count, device=pi_s_BT.device)
        # whatever has a row for each response is shuffled and split along with the rest
        return out | {
            "row_ids": ids_BTK,
            "row_logmu": logmu_BTK,
            "logpi_s": pi_s_BT,
            "row_logpi_s": pi_s_BTK,
            "reward": self._rewards[first : first + count],
            "sequence": sequence,
            "group": sequence // self.num_generations,
        }

    # the loss

    def _logps(self, model: Any, inputs: dict[str, Any], ids_BTK: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs at the sampling temperature of the sampled tokens (B, T) and of the columns (B, T, K)."""
        tokens_BT = inputs["completion_ids"]
        logits_BTV = model(
            input_ids=torch.cat([inputs["prompt_ids"], tokens_BT], dim=1),
            attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            logits_to_keep=tokens_BT.shape[1] + 1,
            use_cache=False,
        ).logits[:, :-1]
        logits_BTV = logits_BTV.float() / self.temperature
        total_BT1 = logits_BTV.logsumexp(dim=-1, keepdim=True)
        picked = [logits_BTV.gather(-1, ids) - total_BT1 for ids in (tokens_BT[..., None], ids_BTK)]
        return picked[0][..., 0], picked[1]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        mask_BT = _counted(inputs)
        pi_BT, pi_BTK = self._logps(model, inputs, inputs["row_ids"])
        mu_BT, old_BT = inputs["sampling_per_token_logps"], inputs.get("old_per_token_logps")
        with torch.no_grad():
            row, log_tail = None, None
            if self.correction.centered:
                row = Logps(inputs["row_logmu"], inputs["row_logpi_s"], pi_BTK.detach())
                log_tail = Logps(*(log_remainder(x) for x in row[:3]))
            constants = coefficients(
                self.correction,
                Logps(mu_BT, inputs["logpi_s"], pi_BT.detach(), old_BT),
                inputs["advantages"][:, None].expand(pi_BT.shape),
                mask=mask_BT,
                row=row,
                log_tail=log_tail,
            )
        value_BT = surrogate(constants, pi_BT, pi_BTK)
        # the mean over the tokens of one accumulation window, as TRL's loss_type 'dapo' takes it
        window = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes * window
        return -value_BT[mask_BT].sum() / tokens

    # after the update

    @torch.no_grad()
    def _after_update(self) -> None:
        """Score the batch at the new weights where the next step generates: measures, decision, trace."""
        batches = self._buffered_inputs
        if batches is None or self._step % (self.args.steps_per_generation * self.num_iterations) != 0:
            return
        model = self._plain_model()
        pi = [self._logps(model, b, b["row_ids"])[0] for b in batches]
        mu_BT, pi_s_BT = (
            torch.cat([b[name] for b in batches]) for name in ("sampling_per_token_logps", "logpi_s")
        )
        every = self._gathered(mu_BT, pi_s_BT, torch.cat(pi), torch.cat([_counted(b) for b in batches]))
        reading = read_batch(*every[:3], mask=every[3], trigger=self.trigger, resamples=0)
        held = self.state.global_step - self._held_version
        rule = self.correction
        plain = getattr(reading, f"ess_{rule.resync_level}")
        by_lag = reading.resync if self.trigger else should_resync(plain, rule.resync_below)
        due = should_resync(1.0, 0.0, steps_since=held, sync_every=self.sync_every)
        self._push_next = bool(by_lag or due)
        measures = reading.measures() | {"resynced": float(by_lag), "steps_since_sync": float(held)}
        measures |= {"ess_corrected": reading.ess_corrected, "missing_mass": reading.missing.value}
        for name, value in measures.items():
            self._metrics["train"][f"lag/{name}"].append(value)
        if self.dump is not None:
            append(self.dump, self._lines(batches, pi))

    def _gathered(self, *tensors: Tensor) -> list[Tensor]:
        """Put the tables of all processes below each other, so that measures are pooled and not averaged."""
        wide = [self.accelerator.pad_across_processes(x, dim=1) for x in tensors]
        return [self.accelerator.gather(x) for x in wide]

    def _lines(self, batches: list[dict[str, Any]], logpi: list[Tensor]) -> Iterator[dict[str, Any]]:
        """Canonical lines of the batch."""
        step, seen = self.state.global_step, {"logp_mu": "sampling_per_token_logps", "logp_pi_s": "logpi_s"}
        for batch, pi_BT in zip(batches, logpi, strict=True):
            for b, n in enumerate(batch["completion_mask"].sum(-1).tolist()):
                yield row(
                    step=step,
                    seq_id=int(batch["sequence"][b]),
                    group_id=int(batch["group"][b]),
                    prompt_ids=batch["prompt_ids"][b][batch["prompt_mask"][b].bool()],
                    response_ids=batch["completion_ids"][b, :n],
                    mask=_counted(batch)[b, :n],
                    logp_pi=pi_BT[b, :n],
                    advantage=float(batch["advantages"][b]),
                    version=self._held_version,
                    trainer_version=step,
                    reward=float(batch["reward"][b]),
                    sampling={"T": self.temperature, "top_p": self.top_p, "T_trainer": self.temperature},
                    source="real.trl",
                    **{field: batch[name][b, :n] for field, name in seen.items()},
                )


class _AfterUpdate(TrainerCallback):
    """Calls back at the end of each optimizer step, before TRL logs it."""

    def __init__(self, trainer: LagGRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._after_update()


def _counted(inputs: dict[str, Any]) -> Tensor:
    """Response tokens that count in the loss, shape (B, T)."""
    return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
