"""``audit PATH...``: what is wrong with a run, from its own logs."""

from validation.audit.command import Command as Options
from validation.audit.command import run as main

__all__ = ["Options", "main"]
