"""The feedback loop in miniature: a JAX simulator of sampler, trainer, noise and lag; seconds on a CPU."""
