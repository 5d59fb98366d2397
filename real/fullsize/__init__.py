"""The same experiment on a full-size Qwen3: any local folder or hub id, on one card, two, or a CPU.

`settings` says what runs, `shapes` and `memory` what it takes, `devices` where, `engine` samples with vLLM
and hands over the top K, `trainer` steps in micro-batches with the fused loss, `loop` puts them together,
`plan` prints all of it without starting anything, and `smoke` runs one update of a Qwen3-0.6B with random
weights.
"""
