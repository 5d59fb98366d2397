"""What an engine says when it cannot go on: a fault of the machine or the sampler, not of the settings."""

from __future__ import annotations


class EngineFault(RuntimeError):
    """An engine died, or handed over what cannot be; the steps committed before it are kept."""
