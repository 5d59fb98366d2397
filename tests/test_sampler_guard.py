"""A sampler's death and its impossible log-probs: one line each, and what it refuses is left as it is."""

from __future__ import annotations

import pytest
import torch

from real.samplers.guard import drawn, refuse_impossible
from theory.faults import EngineFault


def raising(error):
    def call():
        raise error

    return call


def test_what_is_drawn_comes_back():
    assert drawn(lambda: 3) == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("engine core\nis dead"), "died: RuntimeError: engine core;"),
        (MemoryError(), "died: MemoryError: no message;"),
        (AssertionError("x"), "died: AssertionError: x;"),
    ],
)
def test_whatever_a_sampler_dies_of_is_one_line(error, said):
    with pytest.raises(EngineFault, match=said) as caught:
        drawn(raising(error))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("no prompts"), KeyboardInterrupt()])
def test_a_refusal_and_a_ctrl_c_are_no_death(error):
    with pytest.raises(type(error)):
        drawn(raising(error))


def test_a_row_may_exclude_tokens_and_own_tokens_may_not_be_excluded():
    own, row = torch.tensor([-0.1, -2.0]), torch.tensor([[-0.1, -float("inf")]])
    refuse_impossible(own, row)
    refuse_impossible(own[:0], row[:0])
    for bad in (float("nan"), -float("inf"), float("inf")):
        with pytest.raises(EngineFault, match="got 1 of 2 tokens"):
            refuse_impossible(torch.tensor([-0.1, bad]), row)
    with pytest.raises(EngineFault, match="a NaN in a row"):
        refuse_impossible(own, torch.tensor([[float("nan"), -1.0]]))
