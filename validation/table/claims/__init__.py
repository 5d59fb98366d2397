"""Claims that need several samplers, and so the table: one file a claim, margins as constants with reasons.

Each has ``checks(bench) -> list[Check]``. What can be read within one sampler is left to
`validation.checks`. All margins were written before the first table was seen.
"""
