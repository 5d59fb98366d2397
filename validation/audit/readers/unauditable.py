"""Files that hold no log-probs: what they are and which switch would make them auditable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Advice(NamedTuple):
    """A format without log-probs."""

    source: str
    recognise: Callable[[Mapping[str, Any]], bool]
    switch_on: str


_HOOK = "write ids and log-probs with a hook of real/hooks (docs/integration.md) and audit that file"


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    wanted = set(names)
    return lambda record: wanted <= record.keys()


ADVICE: tuple[Advice, ...] = (
    Advice(
        "verl rollout_data_dir",
        _has("input", "output", "score"),
        f"verl dumps decoded text; set actor_rollout_ref.rollout.calculate_log_probs=True and {_HOOK}",
    ),
    Advice(
        "AReaL rollout dump",
        _has("head_version", "tail_version", "completion"),
        "AReaL dumps text and versions; write input_ids, loss_mask, logprobs and versions of its samples as"
        " JSON lines",
    ),
    Advice(
        "ms-swift completions.jsonl",
        lambda r: {"prompt", "completion"} <= r.keys() and isinstance(r["completion"], list),
        "ms-swift dumps text; write response_token_ids, response_loss_mask and rollout_logprobs with the"
        " trainer's log-probs as JSON lines",
    ),
    Advice(
        "Tinker rollout summaries",
        _has("sampling_client_step"),
        "Tinker's summaries hold lengths only; write each datum with fwd_bwd.loss_fn_outputs as JSON lines",
    ),
    Advice(
        "TRL completions",
        _has("prompt", "completion"),
        f"TRL's completions hold text; {_HOOK}",
    ),
)

PARQUET = Advice(
    "parquet completions (TRL log_completions)",
    lambda record: False,
    f"the parquet file has no column of log-probs; {_HOOK}",
)
PICKLE = (
    "a pickle can run code, so it is never opened here (SkyRL dump_data_batch, verl DataProto); convert it in"
    " your own environment: load it there and write logp_mu, logp_pi_s, token_ids and mask as JSON lines, one"
    " response a line"
)


def advice_for(record: Mapping[str, Any], /) -> Advice | None:
    """Return the known format without log-probs that a record belongs to."""
    return next((a for a in ADVICE if a.recognise(record)), None)
