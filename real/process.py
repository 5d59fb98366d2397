"""Variables that torch, OpenMP and vLLM read once, when they are imported. Imports nothing heavy itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        # the engine lives in this process: weights go over by reference, and no spawn guard is needed
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # a model of 125 k parameters is slower on two threads; actively waiting threads on a busy machine
        # cost 10x
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # on an engine error vLLM prints its whole state at level ERROR: hundreds of kB before the one line
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
)


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Those that keep a hub id from being looked up"""

_OURS: set[str] = set()
"""Names this process has set; a child inherits the values and takes them for its user's"""


def prepare() -> None:
    """Set each of `VARIABLES` that the user has not set."""
    for name in VARIABLES.keys() - os.environ.keys():
        os.environ[name] = VARIABLES[name]
        _OURS.add(name)


def allow_hub() -> None:
    """Let a hub id be looked up, unless the user has said offline; before transformers is imported."""
    for name in OFFLINE:
        if name in _OURS or name not in os.environ:
            os.environ[name] = "0"
