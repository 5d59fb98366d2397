"""slime: the canonical JSONL from its training actors.

Switched on by ``--rollout-data-postprocess-path real.hooks.slime.write`` and
``LAGFLOOR_DUMP=/path/to/trace``. slime calls it once the log-probs and advantages of a batch are ready,
before the update. Its ``log_probs`` are the trainer's at the start of the step: they are pi here, and pi_s
too where the sampler was given these very weights, which only ``--colocate`` with an update interval of 1
guarantees. With context parallelism a rank holds parts of responses: those are left out.
"""

from __future__ import annotations

import os
from typing import Any

from real.hooks.canonical import append, row


def write(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Append this rank's responses to ``$LAGFLOOR_DUMP.rank{RANK}.jsonl``."""
    if not (dump := os.environ.get("LAGFLOOR_DUMP")):
        raise ValueError("slime's hook needs LAGFLOOR_DUMP=/path/to/trace, got none; set it for the actors")
    synced = getattr(args, "colocate", False) and getattr(args, "update_weights_interval", 1) == 1
    trainer, mu = rollout_data.get("log_probs"), rollout_data.get("rollout_log_probs")
    lines = []
    for i, n in enumerate(rollout_data["response_lengths"]):
        tokens, at = rollout_data["tokens"][i], {"logp_mu": mu, "logp_pi": trainer}
        at |= {"logp_pi_s": trainer if synced else None, "advantage": rollout_data.get("advantages")}
        values = {name: None if column is None else column[i] for name, column in at.items()}
        if any(v is not None and len(v) != n for v in values.values()):
            continue  # a context-parallel part
        lines.append(
            row(
                step=rollout_id + 1,
                seq_id=int(_at(rollout_data, "sample_indices", i, default=i)),
                prompt_ids=tokens[: len(tokens) - n],
                response_ids=tokens[len(tokens) - n :],
                mask=rollout_data["loss_masks"][i],
                version=_version(_at(rollout_data, "weight_versions", i)),
                trainer_version=rollout_id,
                reward=_at(rollout_data, "rewards", i),
                sampling={
                    "T": getattr(args, "rollout_temperature", None),
                    "top_p": getattr(args, "rollout_top_p", None),
                },
                source="slime",
                **values,
            )
        )
    append(f"{dump}.rank{os.environ.get('RANK', '0')}.jsonl", lines)


def _at(data: dict[str, Any], name: str, i: int, *, default: Any = None) -> Any:
    column = data.get(name)
    return default if column is None or column[i] is None else column[i]


def _version(names: Any) -> int | None:
    """Version of a response that one set of weights wrote; else, or if it is no number, not known."""
    distinct = set(names or ())
    return int(next(iter(distinct))) if len(distinct) == 1 and str(next(iter(distinct))).isdigit() else None
