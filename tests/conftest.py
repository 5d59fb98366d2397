"""Fixtures every test may use: array libraries, seeds, Hypothesis profiles, strict JAX numerics."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis
import libraries
import numpy as np
import pytest

# read by JAX when it loads: a silent broadcast or float64 -> float32 step becomes an error
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")

SEED = int(os.environ.get("LAGFLOOR_TEST_SEED", "0"))
"""Of every generator a test draws from; printed in the header"""

_SHARED: dict[str, Any] = {
    "deadline": None,  # JAX compiles inside the first example
    "print_blob": True,
    "suppress_health_check": [
        hypothesis.HealthCheck.function_scoped_fixture,  # `xp` is a module, the same for each example
        hypothesis.HealthCheck.too_slow,  # the machine may be busy; compile time is not generation time
    ],
}
hypothesis.settings.register_profile("dev", max_examples=30, **_SHARED)
hypothesis.settings.register_profile("ci", max_examples=100, derandomize=True, **_SHARED)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    """Say what makes a run repeatable."""
    return f"lagfloor: LAGFLOOR_TEST_SEED={SEED}, HYPOTHESIS_PROFILE={PROFILE}"


@pytest.fixture
def rng() -> np.random.Generator:
    """Generator of the run's seed; pytest shows the printed line when the test fails."""
    print(f"seed {SEED}")
    return np.random.default_rng(SEED)


@pytest.fixture(params=libraries.NAMES)
def xp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each array library that is installed, JAX with float64; a missing one skips with its name."""
    module = pytest.importorskip(request.param)
    with libraries.jax_x64() if request.param == "jax.numpy" else contextlib.nullcontext():
        yield module


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 in JAX for the length of a test."""
    pytest.importorskip("jax")
    with libraries.jax_x64():
        yield


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[Any]:
    """One vLLM engine in float32 for the whole session: starting it takes seconds, syncing it does not."""
    pytest.importorskip("vllm", reason="vllm is not installed", exc_type=ImportError)
    from real.samplers.vllm_sampler import VllmSampler

    with warnings.catch_warnings():
        # vLLM and what it imports deprecate things of their own at import and start; not ours to fix
        warnings.simplefilter("ignore")
        engine = VllmSampler()
    yield engine
    engine.close()
