"""The feedback loop in miniature: a JAX simulator of sampler, trainer, noise and lag; seconds on a CPU.

`toy.settings` makes experiments, `toy.simulate` runs them (`ensemble`: many seeds in one compiled call,
`run`: one seed, `sweep`: many cells in threads), `toy.measure` compares runs exactly. The order for a
reader is task, policy, environment, engine, families, update, observe, loop, simulate.
"""
