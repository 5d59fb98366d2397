"""Hooks of about ten lines for other trainers: they write the canonical JSONL that `audit` reads.

`canonical` is the format; `trl`, `verl`, `slime` and `prime_rl` say in their docstrings how each is switched
on.
"""
