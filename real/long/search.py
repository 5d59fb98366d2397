"""Countdown by search: the response is a list of attempts, and it ends where one hits the target.

``714=32:`` may be answered ``7-1=06*4=243x2x;7+1=08*4=323!2!``: attempts of one width, a semicolon after each
miss, the end mark after the hit. Each value is held against the target digit by digit, in writing: trained to
stop without that, the model did not learn to see that a value equals the target. Prompts and the train/test
split are those of `real.countdown`.
"""

from __future__ import annotations

import random

from real.countdown import PROMPT_TOKENS, split_of
from real.long.attempt import OTHER, SAME, WIDTH, attempt, chains, solves
from real.task import CHECKPOINTS, Problem, Split, Task

ATTEMPTS = 6
"""At most; a search that needs more is no problem of this task"""
BETWEEN = ";"


def problems(count: int, /, *, seed: int, split: Split = "train") -> list[Problem]:
    """Draw problems with a search that solves them: attempts at random, none twice, until one hits.

    The length of a search is what chance gives it, cut at `ATTEMPTS`: it tells nothing about which attempt
    hits, so that stopping has to be learnt from the value.

    Parameters
    ----------
    count, seed, split
        As `real.countdown.problems`.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        if split_of((a, b, c)) != split:
            continue
        first, second, third = sorted((a, b, c))
        every = chains((first, second, third))
        target = rng.choice(every).value
        order = rng.sample(every, len(every))
        hit = next(i for i, chain in enumerate(order) if chain.value == target)
        if target >= 1 and hit < ATTEMPTS:
            search = BETWEEN.join(attempt(chain, target) for chain in order[: hit + 1])
            found.append(Problem(numbers=(a, b, c), target=target, solution=search))
    return found


SEARCH = Task(
    name="search",
    characters="0123456789+-*=:" + BETWEEN + SAME + OTHER,
    prompt_tokens=PROMPT_TOKENS,
    response_tokens=ATTEMPTS * (WIDTH + 1),
    checkpoint=CHECKPOINTS / "mini-long.safetensors",
    problems=problems,
    solves=solves,
)
