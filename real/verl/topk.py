"""The sampler's row, kept: an agent loop that asks the engine for the top K at each position of a response.

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=real.verl.topk.TopKAgentLoopManager

verl's vLLM server returns the sampled token's log-prob only. It does return the top K of a *prompt*, so a
finished response is sent once more as one, to a server of the same pool: prefill kernels in the place of
decode, and the same weights unless a push came between. The engine returns 20 columns unless
``engine_kwargs.vllm.max_logprobs`` is raised.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import ray
import torch
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from real.verl.actor_loss import ROW_IDS, ROW_LOGMU

_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__


class TopKAgentLoopWorker(_Worker):
    """The worker of verl, which also stores the sampler's top K of each position."""

    async def _compute_teacher_logprobs(
        self, output: Any, prompt_ids: list[int], response_ids: list[int], validate: bool, **_: Any
    ) -> None:
        """Fill verl's place for the rows of a teacher; the teacher is the sampler."""
        if validate:
            return
        columns = self.config.actor_rollout_ref.actor.policy_loss.get("top_k", 20)
        rows = await engine_rows(self.llm_client, prompt_ids + response_ids, columns)
        output.extra_fields[ROW_IDS], output.extra_fields[ROW_LOGMU] = rows


class TopKAgentLoopManager(AgentLoopManagerTQ):
    """The manager of verl with that worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(TopKAgentLoopWorker)


async def engine_rows(client: Any, tokens: list[int], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Top columns of the engine at each position of a sequence: ids and log-probs, (len(tokens), columns).

    Position t is the distribution of token t + 1; the last one predicts nothing and is filled by verl.
    """
    # the base client: the asynchronous one rebuilds the answer and loses the rows
    answer = await LLMServerClient.generate(
        client,
        request_id=uuid4().hex,
        prompt_ids=tokens,
        sampling_params={"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": columns},
    )
    ids = torch.tensor(answer.extra_fields["prompt_ids"], dtype=torch.int32)
    logps = torch.tensor(answer.extra_fields["prompt_logprobs"])
    if len(ids) != len(tokens) or ids.shape[1] != columns:
        raise ValueError(
            f"the engine must return {columns} columns for {len(tokens)} tokens, got {tuple(ids.shape)}; "
            "raise actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs"
        )
    return ids, logps
