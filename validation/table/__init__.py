"""The articles' table: samplers x corrections x seeds, run in parallel, resumed, measured, judged, shown.

`rows` names samplers and corrections, `same` says which cells are one run, `plan` lists the runs, `work`
makes them, `measure` compares them with the on-policy runs, `gather` does both, `summary` has one row a cell,
`ranks` the correlations over checkpoints, `judge` and `claims` the verdicts, `screen` the terminal,
`fullsize` the same table for Qwen3-0.6B and 1.7B.
"""
