"""What a sampler that dies or hands over nonsense is reported as: one line, on which the run can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from theory.faults import EngineFault

R = TypeVar("R")
AGAIN = "run again; a run with a checkpoint goes on from the last step kept"


def drawn(sample: Callable[[], R]) -> R:
    """Call a sampler; whatever it dies of is an `EngineFault`, and what it refuses stays a ValueError."""
    try:
        return sample()
    except ValueError:
        raise
    except Exception as error:
        line = str(error).splitlines()[0] if str(error) else "no message"
        raise EngineFault(f"the sampler died: {type(error).__name__}: {line}; {AGAIN}") from error


def refuse_impossible(own: Tensor, row: Tensor) -> None:
    """Refuse log-probs that no distribution has.

    Parameters
    ----------
    own : Tensor, any shape
        At the sampled tokens, nats: finite.
    row : Tensor, any shape
        At other tokens: -inf where the sampler cannot go, NaN nowhere.

    Raises
    ------
    EngineFault
        Saying how many are wrong.
    """
    broken = int((~torch.isfinite(own)).sum())
    if broken or torch.isnan(row).any():
        raise EngineFault(
            f"the sampler's log-probs must be finite at its own tokens and NaN nowhere, got {broken} of "
            f"{own.numel()} tokens that are not, or a NaN in a row; {AGAIN}"
        )
