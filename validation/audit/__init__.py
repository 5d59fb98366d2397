"""Audit of foreign logs: what is wrong with a run, from what its trainer already writes.

A log passes through in this order: `files` opens it, a reader of `readers` turns each record into rows (one
response each), `block` packs rows into columns, `collect` keeps exact sums and a bounded sample, `detectors`
name
faults from them, `run` ranks the findings, and `document`, `terminal` and `page` say what was found.

Three log-probabilities may stand behind a token: mu (the engine's, as reported), pi_s (the trainer's at the
sampler's
weights) and pi (the trainer's now). d = log mu - log pi_s is numerics, g = log pi_s - log pi is lag. Most
logs hold
two of the three; then the split is not identified and the audit says so.
"""
