"""Low precision in the sampler: emulated on any machine, or real on Hopper.

`formats` has the arithmetic, `recipe` says which of it an engine applies, `emulated` is that engine in vLLM
and `qwen3` in torch, `hopper` has vLLM's own kernels, and `precision` chooses among them by name.
"""
