"""What a task is to the engine: its characters, its lengths, its problems, its verifier, its warm start.

The model, the samplers and the loop know a task by this record alone. Token 0 is padding and token 1 the end
mark, in every task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

PAD, EOS = 0, 1
MARKS = ("<pad>", "<eos>")
CHECKPOINTS = Path(__file__).parent / "checkpoints"

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem and one of its right responses."""

    numbers: tuple[int, ...]
    """In the order of the prompt, each 1..9"""
    target: int
    """1..99"""
    solution: str
    """A response that is right; never shown to the policy in RL"""

    @property
    def prompt(self) -> str:
        """The text that asks for it."""
        return "".join(map(str, self.numbers)) + f"={self.target:02d}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task over single characters with prompts of one width. Hashable."""

    name: str
    characters: str
    """Each is a token, after padding and end mark"""
    prompt_tokens: int
    """Of every prompt, so that batches need no padding on the left"""
    response_tokens: int
    """At most, the end mark included"""
    checkpoint: Path
    """The warm start that `python -m real.warmstart` makes"""
    problems: Callable[..., list[Problem]]
    """``problems(count, /, *, seed, split="train")``; the same seed gives the same list"""
    solves: Callable[[str, Sequence[int], int], bool]
    """Whether a response, its end mark left out, is right for these numbers and this target; never raises"""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words of the token ids."""
        return (*MARKS, *self.characters)

    def encode(self, text: str, /) -> list[int]:
        """Token ids of a text.

        Raises
        ------
        ValueError
            For a character outside the vocabulary.
        """
        ids = _ids(self.vocabulary)
        unknown = [c for c in text if c not in ids]
        if unknown:
            raise ValueError(f"text may hold only the characters {self.characters!r}, got {unknown[0]!r}")
        return [ids[c] for c in text]

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of token ids; pad and end marks show as words, which no response holds."""
        words = self.vocabulary
        return "".join(words[t] for t in tokens)


@lru_cache(maxsize=8)
def _ids(vocabulary: tuple[str, ...]) -> dict[str, int]:
    return {word: i for i, word in enumerate(vocabulary)}
