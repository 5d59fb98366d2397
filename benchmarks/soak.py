"""Soak of the real engine: a long run under random kills, NaN and sampler deaths, beside one left in peace.

    python benchmarks/soak.py [--steps 1000] [--faults 24] [--sampler torch|vllm] [--out DIR]

Each sitting of the run is a process of its own with one fault planned, which then strikes for real: SIGKILL
at a random moment of a step; NaN in the sampler's rows; NaN in the trainer's gradient; the sampler closed
under the loop. The next sitting resumes. At the end all the run recorded, and its weights, are compared with
the undisturbed run's; the torch sampler's must be equal bit for bit. What each fault said, the steps kept and
the memory by step are printed and written to DIR/soak.json. Exits 1 if anything was lost or left unsaid.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FAULTS = ("kill", "nan-rows", "nan-gradient", "death")
SAYS = {
    "kill": "",
    "nan-rows": "log-probs must be finite",
    "nan-gradient": "is not finite",
    "death": "the sampler died",
}
"""What a fault must be reported with; a SIGKILL leaves nobody to speak"""


@dataclass(frozen=True, slots=True)
class Sitting:
    """One process of the run."""

    fault: str
    step: int
    said: str
    kept: int
    """Steps in the checkpoint after it"""
    seconds: float


def experiment(steps: int, sampler: Literal["torch", "vllm"], seed: int) -> Any:
    from real.settings import Mini, working_point_a
    from theory.corrections import correction

    environment = Mini(sampler=sampler, eval_every=max(steps // 10, 1), eval_prompts=64, eval_samples=1)
    return working_point_a(
        correction("dlc"),
        environment=environment,
        prompts=16,
        samples=8,
        steps=steps,
        sync_every=16,
        lr=0.05,
        seed=seed,
    )


def sit(folder: Path, steps: int, sampler: Literal["torch", "vllm"], seed: int, fault: str, at: int) -> int:
    """Run or go on in this process, with one fault; says each step done."""
    from real.process import prepare

    prepare()
    from safetensors.torch import save_file

    import real.loop as loop
    from real.samplers import open_sampler
    from theory.faults import EngineFault

    asked = experiment(steps, sampler, seed)
    inner = open_sampler(asked.environment, asked.numerics, seed=seed)
    sample, reached = inner.sample, [0]

    def faulty(prompt_CP: Any, samples: int, seed: int) -> Any:
        if fault == "death" and reached[0] + 1 == at:
            inner.close()
            raise RuntimeError("the engine's process ended with signal 9")
        rollout = sample(prompt_CP, samples, seed)
        if fault == "nan-rows" and reached[0] + 1 == at:
            rollout.logmu_BTV[0, 0] = float("nan")
        return rollout

    inner.sample = faulty

    class Poisoned(loop.Trainer):
        def step(self, rollout: Any, advantage_CN: Any) -> Any:
            if fault == "nan-gradient" and self.version + 1 == at:
                weight = next(self.model.parameters())
                weight.register_hook(lambda gradient: gradient * float("nan"))
            return super().step(rollout, advantage_CN)

    loop.Trainer = Poisoned
    state = folder / "state"
    done = kept(state)
    reached[0] = done

    def told(record: Any) -> None:
        reached[0] = record.step
        print(record.step, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)

    try:
        run = loop.run(asked, on_step=told, checkpoint=state, resume=True, sampler=inner)
    except EngineFault as error:
        print(f"fault: {error}", flush=True)
        return 1
    if run.stopped is not None:
        print(f"fault: {run.stopped}", flush=True)
        return 1
    save_file(dict(run.snapshots[steps].weights), folder / "weights.safetensors")
    _write(folder, run.trace)
    return 0


def _write(folder: Path, trace: Any) -> None:
    import numpy as np

    for table in ("steps", "tokens", "sequences"):
        columns = {k: v for k, v in getattr(trace, table).items() if not k.startswith("seconds_")}
        np.savez(folder / f"{table}.npz", **columns)


def kept(state: Path) -> int:
    """Steps a checkpoint holds."""
    from real.checkpoint import STATE, read

    if not (state / STATE).exists():
        return 0
    return int(read(state / STATE)[1]["step"])


def process(folder: Path, options: argparse.Namespace, fault: str, at: int, kill_after: float) -> Sitting:
    """One sitting, watched; killed `kill_after` seconds after it said the step before the fault's."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--sit", str(folder), "--fault", fault, "--at", str(at)]
    command += ["--steps", str(options.steps), "--sampler", options.sampler, "--seed", str(options.seed)]
    said, rss = "", {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("fault: "):
                said = line.removeprefix("fault: ").strip()
                continue
            words = line.split()
            if len(words) != 2 or not words[0].isdigit():
                continue
            step, rss[int(words[0])] = int(words[0]), int(words[1])
            if fault == "kill" and step >= at - 1:
                time.sleep(kill_after)
                child.send_signal(signal.SIGKILL)
    if rss:
        options.memory.append((min(rss), rss[min(rss)], max(rss), rss[max(rss)]))
    if fault == "none" and child.returncode != 0:
        raise SystemExit(
            f"soak: a sitting without a fault ended with {child.returncode}: {said or 'no word'}"
        )
    return Sitting(fault, at, said, kept(folder / "state"), time.perf_counter() - start)


def equal(one: Path, other: Path) -> list[str]:
    """Names of what differs between two runs' files; tables and weights."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    wrong = []
    for table in ("steps", "tokens", "sequences"):
        a, b = (np.load(f / f"{table}.npz", allow_pickle=False) for f in (one, other))
        for name in sorted(set(a.files) | set(b.files)):
            same = name in a.files and name in b.files
            same = same and np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")
            wrong += [] if same else [f"{table}.{name}"]
    a, b = (load_file(f / "weights.safetensors") for f in (one, other))
    return wrong + [name for name in a if not torch.equal(a[name], b[name])]


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of the real engine under random faults.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--sampler", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("report/soak"))
    parser.add_argument("--sit", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fault", default="none", help=argparse.SUPPRESS)
    parser.add_argument("--at", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sit is not None:
        return sit(options.sit, options.steps, options.sampler, options.seed, options.fault, options.at)
    options.memory = []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folders = options.out / "disturbed", options.out / "peaceful"
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SystemExit(
                f"soak: {folder} must be empty, got files of an earlier soak; choose another --out"
            )
    draw = random.Random(options.seed)
    steps = sorted(draw.sample(range(2, options.steps), options.faults))
    kinds = [FAULTS[i % len(FAULTS)] for i in range(options.faults)]
    draw.shuffle(kinds)
    sittings, unsaid, lost = [], [], []
    for at, fault in zip(steps, kinds, strict=True):
        done = process(folders[0], options, fault, at, draw.uniform(0, 0.3))
        sittings.append(done)
        print(f"step {at:5d} {fault:13s} kept {done.kept:5d}  {done.seconds:6.1f} s  {done.said}", flush=True)
        unsaid += [] if SAYS[fault] in done.said else [done]
        # a kill may strike after its step was committed, no fault may take a step that was
        lost += [] if done.kept >= at - 2 else [done]
    sittings.append(process(folders[0], options, "none", 0, 0.0))
    process(folders[1], options, "none", 0, 0.0)
    wrong = equal(*folders)
    first, last = options.memory[-1][1], options.memory[-1][3]
    result = {
        "steps": options.steps,
        "faults": options.faults,
        "sampler": options.sampler,
        "seed": options.seed,
        "sittings": [asdict(s) for s in sittings],
        "unsaid": len(unsaid),
        "lost": len(lost),
        "differs": wrong,
        "peak_mb_first_step": first,
        "peak_mb_last_step": last,
    }
    (options.out / "soak.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    print(
        f"{options.steps} steps, {options.faults} faults: {len(unsaid)} left unsaid, {len(lost)} lost steps, "
        f"{len(wrong)} tables or weights differ from the run left in peace; peak memory of that run "
        f"{first} MB at its first step, {last} MB at its last"
    )
    if options.sampler == "vllm":
        wrong = []  # kernels pick their shapes by what is cached: equal in law, not bit for bit
    return int(bool(unsaid or lost or wrong))


if __name__ == "__main__":
    raise SystemExit(main())
