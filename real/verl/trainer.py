"""verl's separate asynchronous trainer with the sampler's weights held until the lag asks for a push.

    trainer.v1.trainer_mode=lag_gated
    +trainer.v1.lag_gated.sync_every=64              # most updates the sampler is held; 0: no schedule
    +trainer.v1.lag_gated.measure=forward            # or loss: at the weights before the update, for free
    +trainer.v1.lag_gated.dump=trace.jsonl           # the canonical trace, with measure=forward
    +trainer.v1.lag_gated.trigger.ess_below=0.5      # ask theory.monitor: tail put back, missing mass

The threshold and its level are those of the row in ``actor.policy_loss``: ``lagfloor-dlc`` has 1/2 over
tokens, and ``+actor_rollout_ref.actor.policy_loss.changes.resync_below=0.5`` gives it to any other. Loaded on
the driver by ``VERL_USE_EXTERNAL_MODULES=real.verl.trainer``.

Every sample is corrected with pi_s of the weights that sampled it: the trainer keeps snapshots of the last
pushed weights on the CPU and scores each batch once per version in it. What is pushed, sampled and updated is
verl's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.workers.utils.padding import response_from_nested

from real.hooks.canonical import append
from real.hooks.verl import TENSORS, rows
from real.verl.actor_loss import ROW_LOGPI_S, VOTES, ActorLoss
from real.verl.gate import Gate
from real.verl.losses import rule_of
from real.verl.required import refuse
from real.verl.sums import measures_of_sums
from theory.monitor import read_batch
from theory.trigger import Trigger

logger = logging.getLogger(__name__)

KEPT_VERSIONS = 3
"""Snapshots on the CPU: that of the last push, and two for batches still in flight"""


@register_trainer("lag_gated")
class LagGatedTrainer(PPOTrainerSeparateAsync):
    """See the module. All of verl's settings, and those under ``trainer.v1.lag_gated``."""

    def __init__(self, config: Any) -> None:
        refuse(config)
        settings = config.trainer.v1.get("lag_gated") or {}
        self._rule = rule_of(config.actor_rollout_ref.actor.policy_loss)
        trigger = settings.get("trigger")
        self._trigger = None if trigger is None else Trigger(**trigger)
        self._gate = Gate(
            resync_below=self._rule.resync_below,
            sync_every=settings.get("sync_every", 0),
            monitored=self._trigger is not None,
        )
        self._by_forward = settings.get("measure", "forward") == "forward"
        self._dump = settings.get("dump")
        self._versions: list[int] = []
        self._measures: dict[str, float] = {}
        self._asked = False
        super().__init__(config)

    # what the sampler holds

    def on_init_end(self) -> None:
        """Install the loss after verl's first push."""
        super().on_init_end()
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(ActorLoss(actor))
        self._remember_push()

    def _remember_push(self) -> None:
        """Keep a snapshot of the weights just pushed, and forget the oldest."""
        self._versions.append(self.global_steps)
        self.actor_rollout_wg.save_model_to_cpu(_snapshot(self.global_steps))
        for version in self._versions[:-KEPT_VERSIONS]:
            self.actor_rollout_wg.clear_cpu_model(_snapshot(version))
        self._versions = self._versions[-KEPT_VERSIONS:]

    def on_step_end(self) -> None:
        """Push, or do not: the one place where verl pushes."""
        held = self.global_steps - self._versions[-1]
        ess = self._measures.get(f"ess_{self._rule.resync_level}")
        fires = self._gate.fires(ess, held, asked=self._asked)
        if fires:
            super().on_step_end()
            self._remember_push()
        else:
            if self.prev_step_profile:
                self._stop_rollout_profiling()
            with marked_timer("update_weights", self.timing_raw):
                self._pending_sync_metrics = {}
        self._pending_sync_metrics |= {"lag/pushed": float(fires), "lag/steps_since_sync": float(held)}

    def on_validate_begin(self) -> None:
        """Push before validation, so that it judges the trainer's weights; it counts as a push."""
        if self._versions and self._versions[-1] != self.global_steps:
            self.standalone_checkpoint_manager.update_weights(self.global_steps)
            self._remember_push()
        super().on_validate_begin()

    # pi_s of every sample

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        plain = super(PPOTrainerSeparateAsync, self)._compute_old_log_prob
        sampled_by = np.array([_version(tag) for tag in batch.tags])
        scored_at = np.array([_nearest(v, self._versions) for v in sampled_by])
        mixed = [tag.get("min_global_steps") != tag.get("max_global_steps") for tag in batch.tags]
        metrics["lag/version_missing"] = float((scored_at != sampled_by).mean())
        metrics["lag/mixed_version"] = float(np.mean(mixed))
        self._put_votes(batch, sampled_by == self._versions[-1])
        workers, tags, own = self.actor_rollout_wg, batch.tags, []
        workers.save_model_to_cpu("live")
        for version in np.unique(scored_at):
            workers.restore_model_from_cpu(_snapshot(version))
            with self._asking(**({"compute_loss": True} | _TOP_K if self._rule.centered else {})):
                batch = plain(batch, metrics)
            batch.tags = tags
            keys = [key for key, at in zip(batch.keys, scored_at, strict=True) if at == version]
            own.append((keys, tq.kv_batch_get(keys, batch.partition_id, select_fields=self._scored_fields())))
        workers.restore_model_from_cpu("live")
        workers.clear_cpu_model("live")
        if len(own) > 1:  # each pass overwrote the samples of the others
            for keys, fields in own:
                tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def _scored_fields(self) -> list[str]:
        if not self._rule.centered:
            return ["old_log_probs"]
        columns = self.config.actor_rollout_ref.actor.policy_loss.get("top_k", 20)
        return ["old_log_probs", *(f"{ROW_LOGPI_S}{k}" for k in range(columns))]

    def _put_votes(self, batch: Any, votes: np.ndarray) -> None:
        mask = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["response_mask"])[
            "response_mask"
        ]
        each = [m * int(vote) for m, vote in zip(mask.unbind(), votes, strict=True)]
        fields = TensorDict({VOTES: torch.nested.as_nested_tensor(each, layout=torch.jagged)}, len(each))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    @contextmanager
    def _asking(self, **extra: Any) -> Iterator[None]:
        """Add settings to what verl's methods tell the workers, on the way: the methods overwrite them."""
        workers = self.actor_rollout_wg
        self.actor_rollout_wg = _Asking(workers, extra) if extra else workers
        try:
            yield
        finally:
            self.actor_rollout_wg = workers

    # update and measures

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        tags = batch.tags
        with self._asking(**(_TOP_K if self._rule.centered else {})):
            batch = super()._update_actor(batch, metrics)
        self._measures = measures_of_sums(metrics)
        if self._by_forward:
            self._measures = self._score_again(batch, tags)
        moved = metrics.get("actor/grad_norm", 0.0) > 0 and metrics.get("actor/lr", 0.0) > 0
        if self._by_forward and moved and self._measures.get("lag_rms") == 0:
            logger.warning("no lag after an update: the snapshot may be the live weights themselves")
        metrics.update({f"lag/{name}": value for name, value in self._measures.items()})
        return batch

    def _score_again(self, batch: Any, tags: list[dict[str, Any]]) -> dict[str, float]:
        """Score the batch at the new weights: measures over the voting tokens, and the trace."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info |= {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
        batch.extra_info["distillation_use_topk"] = False
        self.actor_rollout_wg.compute_log_prob(batch)
        data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=[*TENSORS, VOTES, "log_probs"])
        data["log_probs"] = response_from_nested(data["log_probs"], data["response_mask"])
        if self._dump is not None:
            append(self._dump, rows(data, tags, step=self.global_steps, bypass=False, after_update=True))
        names = [n for n in ("old_log_probs", "log_probs", "rollout_log_probs", VOTES) if n in data]
        padded = data.select(*names).to_padded_tensor()
        votes_BT = padded[VOTES].bool()
        self._asked = False
        if not votes_BT.any():
            return {}
        reading = read_batch(
            padded.get("rollout_log_probs", None),
            padded["old_log_probs"],
            padded["log_probs"],
            mask=votes_BT,
            trigger=self._trigger,
            resamples=0,
        )
        self._asked = reading.resync
        # NaN, broken log-probs, is no missing vote: it is kept for the gate to see
        broken = {"ess_token": reading.ess_token, "ess_sequence": reading.ess_sequence}
        more = {"ess_corrected": reading.ess_corrected, "missing_mass": reading.missing.value}
        return broken | reading.measures() | more


_TOP_K = {"distillation_use_topk": True}
"""How a batch asks verl for a call with the logits"""


class _Asking:
    """The worker group, with settings added to the batches of two of its methods and taken away after."""

    def __init__(self, workers: Any, extra: dict[str, Any]) -> None:
        self._workers, self._extra = workers, extra

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._workers, name)
        if name not in ("compute_log_prob", "update_actor"):
            return method

        def asked(batch: Any) -> Any:
            batch.extra_info.update(self._extra)
            try:
                return method(batch)
            finally:
                batch.extra_info["distillation_use_topk"] = False

        return asked


def _snapshot(version: int) -> str:
    return f"lag-{version}"


def _version(tag: dict[str, Any]) -> int:
    """Version of the weights that ended a sample; -1 where verl did not tag it."""
    version = tag.get("max_global_steps")
    return -1 if version is None else version


def _nearest(version: int, kept: list[int]) -> int:
    """Kept snapshot closest to a sample's weights from below, or the oldest there is."""
    return max((v for v in kept if v <= version), default=min(kept))
