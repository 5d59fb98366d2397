"""The same loop with Qwen3: a torch trainer against a vLLM sampler (or a torch one with the same interface).

Importing the package sets the process variables vLLM and OpenMP read at import (`real.process`), so import it
before torch. Start at `real.loop.run`; experiments come from `real.settings`.
"""

from real.process import prepare

prepare()
