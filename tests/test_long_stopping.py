"""The warm start of the search: made to stop at the target, and shown to."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors import safe_open
from tolerances import MONTE_CARLO_Z

from real.evaluate import evaluate, held_out, own_samples
from real.long.attempt import Chain, attempt
from real.long.search import SEARCH
from real.long.stopping import stopping
from real.loop import start_model
from real.recipe import RECIPES
from real.samplers.base import Rollout
from real.settings import longer_responses
from real.task import EOS, PAD, Problem
from theory.corrections import correction

HIT, MISS, WRONG = (
    attempt(Chain((7, 1, 4), ("-", sign), 6, value), 24) for sign, value in (("*", 24), ("+", 10), ("+", 11))
)
ASKED = Problem(numbers=(7, 1, 4), target=24, solution=HIT)


def rollout_of(*responses: str) -> Rollout:
    """Responses to one prompt; a full stop is the end mark."""
    rows = [[EOS if c == "." else SEARCH.encode(c)[0] for c in text] for text in responses]
    longest = max(map(len, rows))
    response_BT = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    mask_BT = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
    return Rollout(
        prompt_CP=torch.tensor([SEARCH.encode(ASKED.prompt)]),
        response_BT=response_BT,
        mask_BT=mask_BT,
        logmu_BTV=torch.zeros(*response_BT.shape, len(SEARCH.vocabulary)),
        version=0,
    )


def test_hits_and_misses_are_counted_with_what_came_after_them():
    found = stopping(
        rollout_of(f"{MISS};{HIT}.", f"{MISS}.", f"{HIT};{WRONG}.", f"{MISS};{HIT}", f"{MISS};7-1."), [ASKED]
    )
    assert found.attempts == 9
    assert found.whole == 8
    assert found.exact == 7
    # the hit of the fourth response was cut off: whether it would have stopped there is not known
    assert (found.hits, found.stops_at_hit) == (2, 1)
    assert (found.misses, found.stops_at_miss) == (5, 2)


def test_other_numbers_than_the_problems_are_no_attempt():
    other = attempt(Chain((7, 7, 4), ("-", "+"), 0, 4), 24)
    assert stopping(rollout_of(f"{other}."), [ASKED]).whole == 0


@pytest.fixture(scope="module")
def environment():
    """Four times the responses of a run's own evaluation."""
    return dataclasses.replace(longer_responses(correction("pg")).environment, eval_prompts=512)


@pytest.fixture(scope="module")
def start(environment):
    return start_model(environment)


def test_the_search_starts_between_15_and_35_percent_at_50_to_100_tokens(environment, start):
    found = evaluate(start, environment, seed=7)
    assert 0.15 <= found.accuracy.value <= 0.35
    assert found.accuracy.value - MONTE_CARLO_Z * found.accuracy.stderr > 0.15
    assert 50 <= found.length <= 100


def test_the_warm_start_stops_at_the_target_and_seldom_elsewhere(environment, start):
    found = stopping(own_samples(start, environment, seed=7), held_out(environment.eval_prompts, SEARCH))
    assert found.hits >= 100
    assert found.at_hit > 0.8
    assert found.at_miss < 0.05


def test_the_shipped_file_says_how_it_was_made_and_is_small():
    assert SEARCH.checkpoint.stat().st_size <= 1_000_000
    with safe_open(SEARCH.checkpoint, framework="pt") as file:
        metadata = file.metadata()
    assert (
        metadata["command"]
        == f"python -m real.warmstart --task search --steps {RECIPES['search'].steps} --seed 0"
    )
    assert metadata["task"] == "search"
    assert float(metadata["accuracy_held_out"]) > 0.15
