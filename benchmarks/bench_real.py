"""Cost of a mini-Qwen3 RL step of 64 x 8 samples and of a weight sync, in CPU-seconds of this process.

    OMP_NUM_THREADS=1 python -m pytest benchmarks/bench_real.py --benchmark-only -s

CPU-seconds, since the machine may be busy. A step is everything between two records: problems, sampling,
verifying, the update under DLC with a stale pi_s (the dearest case: three forwards and a backward), ESS and
all other measures at the new weights, both tables. Nothing is asserted: targets are printed beside what was
measured.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import pytest

from real.loop import run, start_model
from real.samplers import open_sampler
from real.samplers.base import Sampler
from real.settings import Mini, working_point_a
from real.sync import Proof
from theory.corrections import correction
from theory.experiment import Numerics
from theory.records import StepRecord

STEPS = 12
STEP_TARGET = 1.0
"""CPU-seconds of a step with the torch sampler"""
SYNC_TARGET = 0.1
"""Seconds of a weight sync"""
# the least there is to evaluate, at the start and the end alone: the steps between are clean
QUICK = {"eval_every": 10**6, "eval_prompts": 1, "eval_samples": 1}


@pytest.fixture(params=["torch", "vllm"])
def sampler(request: pytest.FixtureRequest) -> Any:
    if request.param == "vllm":
        pytest.importorskip("vllm", exc_type=ImportError)
    chosen = open_sampler(Mini(sampler=request.param), Numerics())
    yield request.param, chosen
    chosen.close()


@pytest.mark.filterwarnings("ignore")  # of vLLM and what it imports, at its start
@pytest.mark.parametrize("sync_every", [1, 64])
def test_an_rl_step(benchmark: Any, sampler: tuple[str, Sampler], sync_every: int) -> None:
    name, engine = sampler
    environment = Mini(sampler=name, **QUICK)  # pyright: ignore[reportArgumentType]
    experiment = working_point_a(
        correction("dlc", resync_below=0.0),
        environment=environment,
        steps=STEPS,
        sync_every=sync_every,
        seed=90,
    )
    at: list[float] = []
    records: list[StepRecord] = []

    def note(record: StepRecord) -> None:
        at.append(time.process_time())
        records.append(record)

    benchmark.pedantic(run, (experiment,), {"on_step": note, "sampler": engine}, rounds=1)
    steps = [b - a for a, b in pairwise(at)][1:-1]  # warm, and without the last evaluation
    cpu = statistics.median(steps)
    benchmark.extra_info["cpu_seconds_a_step"] = cpu
    phases = {
        phase: statistics.median(r.measures[f"seconds_{phase}"] for r in records[2:-1])
        for phase in ("sample", "train", "sync")
    }
    target = f" (target {STEP_TARGET:g})" if name == "torch" else ""
    print(f"\n{name}, sync every {sync_every}: {cpu:.3f} CPU-s a step{target}; wall by phase", end=" ")
    print(", ".join(f"{phase} {seconds:.3f}" for phase, seconds in phases.items()))


@pytest.mark.filterwarnings("ignore")
def test_a_weight_sync(benchmark: Any, sampler: tuple[str, Sampler]) -> None:
    name, engine = sampler
    model, frozen = start_model(Mini()), start_model(Mini())
    proof = Proof()
    proof.push(engine, model, frozen, 0)
    proofs, cpu = [], []
    for version in range(1, 20):
        start = time.process_time()
        engine.sync(model.state_dict(), version)
        cpu.append(time.process_time() - start)
        proofs.append(proof.push(engine, model, frozen, version))
    benchmark.pedantic(engine.sync, (model.state_dict(), 20), rounds=5)
    push, check = (statistics.median(getattr(p, f) for p in proofs) for f in ("seconds", "seconds_proof"))
    print(f"\n{name}: sync {statistics.median(cpu):.4f} CPU-s, {push:.4f} s wall (target {SYNC_TARGET:g});")
    print(f"its proof {check:.4f} s wall: log-probs differ by {max(p.rms for p in proofs):.2e} nats rms,")
    print(f"at most {max(p.largest for p in proofs):.2e}")
