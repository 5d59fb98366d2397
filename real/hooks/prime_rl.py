"""prime-rl: the canonical JSONL from its own token exports.

Set ``trainer.enable_token_export = true`` and rewrite what it exports, during or after the run; a trace that
is there is replaced, whole:

    python -m real.hooks.prime_rl OUTPUT/token_exports trace.jsonl

prime-rl logs the engine's log-probs and the trainer's at the loss; it never computes the trainer's at the
sampler's weights, so pi_s is null and numerics and lag stay in one number: `audit` says what to do about it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import tyro

from real.command_line import start
from real.errors import usage
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
    named = (f for f in folder.glob("step_*/rank_*.jsonl") if _step(f).isdecimal())
    files = sorted(named, key=lambda f: (int(_step(f)), f.name))
    if not files:
        raise ValueError(
            f"a folder of token exports holds step_N/rank_R.jsonl, found none in {folder}; "
            "set trainer.enable_token_export = true"
        )
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield canonical(orjson.loads(line))
                except (ValueError, TypeError, AttributeError, KeyError) as error:
                    why = f"no {error}" if isinstance(error, KeyError) else str(error)
                    raise ValueError(
                        f"{file}:{number}: a line must be a token export of schema 1, got another ({why}); "
                        "repair it, or take its file out"
                    ) from None


def _step(file: Path) -> str:
    return file.parent.name.removeprefix("step_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Rewrite prime-rl's token exports as the canonical trace."""

    exports: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="EXPORTS")]
    """folder of step_N/rank_R.jsonl"""
    trace: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRACE")]
    """file to write; one that is there is replaced"""


def main(arguments: list[str] | None = None) -> int:
    """Rewrite a folder from the command line."""
    return start(Options, "python -m real.hooks.prime_rl", _main, arguments=arguments)


def _rewrite(exports: Path, trace: Path) -> int:
    """Put the trace in its place as a whole, or write to what is no file."""
    if trace.exists() and not trace.is_file():
        return append(trace, rows(exports))
    beside = trace.with_name(f".tmp-{os.getpid()}-{trace.name}")
    try:
        count = append(beside, rows(exports))
        os.replace(beside, trace)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    return count


def _main(options: Options) -> int:
    with usage():
        count = _rewrite(options.exports, options.trace.resolve())
    print(f"{count} responses written to {options.trace}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
