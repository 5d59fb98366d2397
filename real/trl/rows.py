"""The sampler's row at every sampled token, caught where TRL generates: mu as really sampled, top K.

TRL keeps the log-prob of the sampled token only, and with K > 0 columns of vLLM it keeps the most likely
one's in its place. Here the generator is wrapped for one call: what it returns to TRL is the sampled token's,
what it saw is kept.

Suffixes: B responses, T response tokens, K columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rows:
    """Columns of mu at each sampled token, most likely first."""

    ids_BTK: Tensor
    logmu_BTK: Tensor
    """Nats; -inf where the engine could not sample, and at columns it did not report"""
    sampled: list[list[float]]
    """Log-prob of each sampled token under the distribution it was drawn from; one list a response"""

    def fitted(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Both tables at a width of `tokens`, cut or filled on the right with id 0 at log-prob -inf."""
        missing = max(0, tokens - self.ids_BTK.shape[1])
        pad = (0, 0, 0, missing)
        ids_BTK = torch.nn.functional.pad(self.ids_BTK[:, :tokens], pad)
        return ids_BTK, torch.nn.functional.pad(self.logmu_BTK[:, :tokens], pad, value=-float("inf"))


@contextmanager
def of_transformers(model: Any, columns: int) -> Iterator[list[Rows]]:
    """Catch the rows of each ``model.generate`` call; its scores are the processed logits, so mu itself."""
    caught: list[Rows] = []
    plain = model.generate

    def generate(*args: Any, **kwargs: Any) -> Tensor:
        out = plain(*args, **kwargs, return_dict_in_generate=True, output_scores=True)
        logmu_BTV = torch.log_softmax(torch.stack(out.scores, dim=1).float(), dim=-1)
        tokens_BT = out.sequences[:, -logmu_BTV.shape[1] :]
        top = logmu_BTV.topk(min(columns, logmu_BTV.shape[-1]), dim=-1)
        sampled_BT = logmu_BTV.gather(-1, tokens_BT[..., None])[..., 0]
        caught.append(Rows(top.indices, top.values, sampled_BT.tolist()))
        return out.sequences

    model.generate = generate
    try:
        yield caught
    finally:
        del model.generate


@contextmanager
def of_vllm(engine: Any, columns: int) -> Iterator[list[Rows]]:
    """Catch the rows of each ``VLLMGeneration.generate`` call, and give TRL the sampled tokens' log-probs."""
    caught: list[Rows] = []
    plain, plain_columns = engine.generate, engine.logprobs

    def generate(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        prompts, completions, logps, ids = plain(*args, **kwargs)
        rows = from_lists(completions, logps, ids, columns=columns)
        caught.append(rows)
        only_sampled = [[[lp] for lp in response] for response in rows.sampled]
        return prompts, completions, only_sampled, [[[t] for t in response] for response in completions]

    engine.generate, engine.logprobs = generate, columns
    try:
        yield caught
    finally:
        del engine.generate
        engine.logprobs = plain_columns


def from_lists(
    completions: list[list[int]], logps: list[list[list[Any]]], ids: list[list[list[int]]], *, columns: int
) -> Rows:
    """Tables from vLLM's lists: the top K in order of rank, and the sampled token where it is not among them.

    Only the first K enter the row: a column that is there because it was sampled would bias the centre.
    """
    width = max(len(c) for c in completions)
    ids_BTK = torch.zeros(len(completions), width, columns, dtype=torch.long)
    logmu_BTK = torch.full(ids_BTK.shape, -float("inf"))
    sampled = []
    for b, (tokens, response_logps, response_ids) in enumerate(zip(completions, logps, ids, strict=True)):
        sampled.append([])
        for t, (token, at, of) in enumerate(zip(tokens, response_logps, response_ids, strict=True)):
            values = [float("nan") if v is None else v for v in at]
            sampled[b].append(values[of.index(token)])
            k = min(columns, len(of))
            ids_BTK[b, t, :k] = torch.tensor(of[:k])
            logmu_BTK[b, t, :k] = torch.tensor(values[:k])
    return Rows(ids_BTK, logmu_BTK, sampled)
