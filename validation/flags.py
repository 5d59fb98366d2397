"""Flags that a command would ignore, and lists without a word: refused, never passed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def refuse_flags(options: Any, names: Iterable[str], where: str, /) -> None:
    """Refuse flags that were given and would be ignored.

    Parameters
    ----------
    options : dataclass
        Options of a command; a flag was given where it is not its default.
    names : iterable of str
        Fields that are not read here.
    where : str
        What does not read them, for the message.

    Raises
    ------
    ValueError
        Naming the first one given.
    """
    for name in names:
        got = getattr(options, name)
        if got != type(options).__dataclass_fields__[name].default:
            shown = "it" if got is True else repr(got)
            raise ValueError(f"--{name.replace('_', '-')} is not for {where}, got {shown}; leave it out")


def words_in(text: str, flag: str, /) -> list[str]:
    """Words of a comma-separated list; none where the flag was left out.

    Raises
    ------
    ValueError
        For a list of commas alone.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if text and not words:
        raise ValueError(
            f"--{flag} takes names separated by commas, got {text!r}; leave it out for the usual"
        )
    return words
