"""Countdown for a chat model: token ids of its prompts in non-thinking mode, and the reward of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from real.countdown import Problem
from real.verl.task import SOURCE, compute_score, question


def prompt_tokens(tokenizer: Any, problem: Problem, /, *, longest: int) -> list[int]:
    """Token ids of one prompt: the task as a user turn, the assistant's turn opened without thinking.

    Raises
    ------
    ValueError
        If the prompt is longer than `longest` tokens.
    """
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question(problem)}],
        add_generation_prompt=True,
        enable_thinking=False,
        tokenize=True,
        return_dict=False,
    )
    if len(ids) > longest:
        raise ValueError(
            f"a prompt must have at most {longest} tokens, got {len(ids)}; raise max_prompt_tokens"
        )
    return list(ids)


def rewards(
    tokenizer: Any, problems: Sequence[Problem], responses: Sequence[Sequence[int]], /
) -> list[float]:
    """+1 for a response whose last ``<answer>`` solves its problem, -1 for any other; group-major."""
    samples = len(responses) // len(problems)
    found = []
    for i, tokens in enumerate(responses):
        problem = problems[i // samples]
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        truth = {"numbers": list(problem.numbers), "target": problem.target}
        found.append(compute_score(SOURCE, text, truth))
    return found
