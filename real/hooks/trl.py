"""TRL: the canonical JSONL from a stock GRPOTrainer.

Switched on by ``trainer.add_callback(Dump(trainer, "trace.jsonl"))``. With ``use_vllm`` TRL keeps the
engine's log-probs (mu) and the trainer's at generation (``old_per_token_logps``). A stock trainer pushes its
weights before it generates, so those are pi_s. The trainer's log-probs after the update are not computed by
TRL: pi is null; `real.trl` measures it. Without vLLM generation returns no log-probs: mu is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from real.hooks.canonical import append, row


class Dump(TrainerCallback):
    """Append each generation batch to a file after its first update; one file a process."""

    def __init__(self, trainer: Any, path: str) -> None:
        processes, index = trainer.accelerator.num_processes, trainer.accelerator.process_index
        self.trainer, self.path, self.seen = trainer, path if processes == 1 else f"{path}.rank{index}", None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what was generated since the last call."""
        batches = self.trainer._buffered_inputs
        if batches is not None and batches is not self.seen:
            append(self.path, rows(batches, step=state.global_step))
            self.seen = batches


def rows(batches: list[dict[str, Any]], *, step: int, source: str = "trl") -> Iterator[dict[str, Any]]:
    """Canonical lines of a generation batch, split into micro-batches as TRL buffers it."""
    names = {"logp_mu": "sampling_per_token_logps", "logp_pi_s": "old_per_token_logps"}
    for m, batch in enumerate(batches):
        for i, n in enumerate(batch["completion_mask"].sum(-1).tolist()):
            counted = batch["completion_mask"] * batch.get("tool_mask", 1)
            yield row(
                step=step,
                seq_id=m * len(counted) + i,
                prompt_ids=batch["prompt_ids"][i][batch["prompt_mask"][i].bool()],
                response_ids=batch["completion_ids"][i, :n],
                mask=counted[i, :n],
                advantage=float(batch["advantages"][i]),
                version=step - 1,
                trainer_version=step - 1,
                source=source,
                **{field: batch[name][i, :n] for field, name in names.items() if name in batch},
            )
