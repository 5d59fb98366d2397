"""Longer responses: Countdown by search, written out attempt by attempt, 11 to 96 tokens a response."""
