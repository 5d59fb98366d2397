"""prime-rl: the canonical JSONL from its own token exports.

Set ``trainer.enable_token_export = true`` and rewrite what it exports, during or after the run:

    python -m real.hooks.prime_rl OUTPUT/token_exports trace.jsonl

prime-rl logs the engine's log-probs and the trainer's at the loss; it never computes the trainer's at the
sampler's weights, so pi_s is null and numerics and lag stay in one number: `audit` says what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from real.hooks.canonical import append, row


def canonical(record: dict[str, Any]) -> dict[str, Any]:
    """One exported line (schema 1), its full-length lists cut to the response."""
    sampled = record["loss_mask"]
    first = sampled.index(True) if True in sampled else len(sampled)
    tail = {name: values[first:] for name, values in record.items() if isinstance(values, list)}
    return row(
        step=record["step"] + 1,
        seq_id=f"{record['rank']}-{record['export_sequence_idx']}",
        prompt_ids=record["token_ids"][:first],
        response_ids=tail["token_ids"],
        mask=tail["loss_mask"],
        logp_mu=[
            lp if m else None for lp, m in zip(tail["inference_logprobs"], tail["loss_mask"], strict=True)
        ],
        logp_pi=tail["trainer_logprobs"],
        entropy=None,  # prime-rl's is that of pi, not of pi_s
        advantage=tail.get("advantages"),
        trainer_version=record["step"],
        source="prime-rl",
    )


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Canonical lines of a folder of exports, step by step."""
    files = sorted(
        folder.glob("step_*/rank_*.jsonl"), key=lambda f: (int(f.parent.name.split("_")[1]), f.name)
    )
    if not files:
        raise ValueError(
            f"a folder of token exports holds step_N/rank_R.jsonl, found none in {folder}; "
            "set trainer.enable_token_export = true"
        )
    for file in files:
        with file.open("rb") as lines:
            yield from (canonical(orjson.loads(line)) for line in lines)


def main(arguments: list[str]) -> int:
    """Rewrite a folder; exit code 2 for wrong arguments."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        count = append(arguments[1], rows(Path(arguments[0])))
    except (ValueError, KeyError) as error:
        print(f"prime_rl: {error}", file=sys.stderr)
        return 2
    print(f"{count} responses written to {arguments[1]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
