"""The same loop with Qwen3: a torch trainer against a vLLM sampler (or a torch one with the same interface)."""
