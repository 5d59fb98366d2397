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


def rows(
    data: Any, tags: list[dict[str, Any]], *, step: int, bypass: bool, after_update: bool = False
) -> Iterator[dict[str, Any]]:
    """Canonical lines of a batch whose fields are nested tensors, one row a response.

    Parameters
    ----------
    data : TensorDict
        Fields of `TENSORS`, and ``log_probs`` at the new weights with `after_update`.
    tags : list of dict
        verl's tags of the samples: the versions of the weights that sampled them.
    step : int
        The update's index, from 1.
    bypass : bool
        Whether ``old_log_probs`` are copies of the engine's.
    after_update : bool
        Whether ``old_log_probs`` are pi_s of each sample, as under `real.verl.trainer`.
    """
    columns = {name: data[name].unbind() for name in (*TENSORS, "log_probs") if name in data}
    for i, (ids, tag) in enumerate(zip(columns["responses"], tags, strict=True)):
        cell = {name: column[i][: len(ids)] for name, column in columns.items() if name != "prompts"}
        same = tag.get("min_global_steps") == tag.get("max_global_steps")
        version = tag.get("max_global_steps") if same else None
        old = None if bypass else cell.get("old_log_probs")
        yield row(
            step=step,
            seq_id=i,
            prompt_ids=columns["prompts"][i],
            response_ids=ids,
            mask=cell["response_mask"],
            logp_mu=cell.get("rollout_log_probs"),
            logp_pi_s=old if after_update or version == step - 1 else None,
            logp_pi=cell["log_probs"] if after_update else old,
            advantage=cell.get("advantages"),
            version=version,
            trainer_version=step if after_update else step - 1,
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
