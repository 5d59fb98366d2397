"""Errors of the command line, by the name every command knows them; they are those of `real.errors`."""

from real.errors import ADVICE, BadUsage, CannotRun, in_words, running, usage

__all__ = ["ADVICE", "BadUsage", "CannotRun", "in_words", "running", "usage"]
