"""verl: the canonical JSONL from any V1 trainer.

Switched on by ``VERL_USE_EXTERNAL_MODULES=real.hooks.verl LAGFLOOR_DUMP=trace.jsonl``. verl's own dump holds
text; this one reads token ids and log-probs from the TransferQueue just before the actor's update.
``old_log_probs`` are the trainer's at the start of the step: they are pi here, and pi_s too where the
sample's weights are the trainer's. In bypass mode they are copies of the engine's: then both are null, not
zero discrepancy. On several nodes the two variables must reach the Ray workers:
``ray_kwargs.ray_init.runtime_env.env_vars``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from real.hooks.canonical import append, row

TENSORS = (
    "prompts",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "advantages",
    "rm_scores",
)


def rows(data: Any, tags: list[dict[str, Any]], *, step: int, bypass: bool) -> Iterator[dict[str, Any]]:
    """Canonical lines of a batch whose fields are nested tensors, one row a response."""
    columns = {name: data[name].unbind() for name in TENSORS if name in data}
    for i, (ids, tag) in enumerate(zip(columns["responses"], tags, strict=True)):
        cell = {name: column[i][: len(ids)] for name, column in columns.items() if name != "prompts"}
        version = (
            tag.get("max_global_steps")
            if tag.get("min_global_steps") == tag.get("max_global_steps")
            else None
        )
        pi = None if bypass else cell.get("old_log_probs")
        yield row(
            step=step,
            seq_id=i,
            prompt_ids=columns["prompts"][i],
            response_ids=ids,
            mask=cell["response_mask"],
            logp_mu=cell.get("rollout_log_probs"),
            logp_pi_s=pi if version == step - 1 else None,
            logp_pi=pi,
            advantage=cell.get("advantages"),
            version=version,
            trainer_version=step - 1,
            reward=float(cell["rm_scores"].sum()) if "rm_scores" in cell else None,
            source="verl",
        )


def install(path: str) -> None:
    """Make every V1 trainer of this process append its batches to `path` before it updates the actor."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    update = PPOTrainer._update_actor

    def dump_and_update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(TENSORS))
        correction = self.config.algorithm.get("rollout_correction") or {}
        append(
            path,
            rows(data, batch.tags, step=self.global_steps, bypass=bool(correction.get("bypass_mode", False))),
        )
        return update(self, batch, metrics)

    PPOTrainer._update_actor = dump_and_update


if "LAGFLOOR_DUMP" in os.environ:
    install(os.environ["LAGFLOOR_DUMP"])
