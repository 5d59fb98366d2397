"""Predictions against measurements: claims, checks, verdicts, stored runs, report and command line."""
