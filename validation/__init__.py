"""Predictions against measurements: claims, checks, verdicts, the store of runs, the report and the command
line."""
