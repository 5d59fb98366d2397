"""Make the warm start from nothing: supervised training on random solutions; about a CPU-minute.

``python -m real.warmstart`` writes the checkpoint that ships with the project, with its recipe and its
measured accuracy in the file's metadata. The file appears whole or not at all: it is written beside its place
and moved there.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

import torch
import transformers
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor

from real import countdown
from real.countdown import EOS, PAD, RESPONSE_TOKENS, Problem
from real.evaluate import evaluate
from real.model import CHECKPOINT, at_tokens, build, row_logps, without_tied
from real.settings import Mini

STEPS = 853
"""What 70 CPU-seconds gave when the recipe was found; accuracy at temperature 1 then is about .4"""
BATCH = 128
POOL = 60_000
PEAK_LR = 4e-3
WARMUP = 100
"""Steps over which the learning rate rises to its peak; from there it falls linearly"""
LAST_LR = 0.02
"""Share of the peak that the learning rate never falls below"""


def schedule(step: int, steps: int, /) -> float:
    """Share of the peak learning rate at `step` of `steps`, counted from 0."""
    return min(1.0, (step + 1) / WARMUP) * max(LAST_LR, 1.0 - step / steps)


def examples(pool: list[Problem], /) -> tuple[Tensor, Tensor]:
    """Prompts and padded solutions as token ids, shapes (B, P) and (B, T)."""
    prompt_BP = torch.tensor([countdown.encode(p.prompt) for p in pool])
    answers = [[*countdown.encode(p.solution), EOS] for p in pool]
    return prompt_BP, torch.tensor([a + [PAD] * (RESPONSE_TOKENS - len(a)) for a in answers])


def train(*, seed: int, steps: int, progress: Progress | None = None) -> transformers.Qwen3ForCausalLM:
    """Train the mini model from random weights on random solutions of training problems."""
    prompt_NP, answer_NT = examples(countdown.problems(POOL, seed=seed, split="train"))
    model = build(seed=seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.99), weight_decay=0.01)
    draw = torch.Generator().manual_seed(seed)
    task = progress.add_task("warm start", total=steps, loss=float("nan")) if progress else None
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * schedule(step, steps)
        pick_B = torch.randint(0, POOL, (BATCH,), generator=draw)
        answer_BT = answer_NT[pick_B]
        mask_BT = answer_BT != PAD
        logp_BT = at_tokens(row_logps(model, prompt_NP[pick_B], answer_BT), answer_BT)
        loss = -logp_BT[mask_BT].mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None and task is not None:
            progress.update(task, advance=1, loss=loss.item())
    return model.eval()


def save(model: transformers.Qwen3ForCausalLM, path: Path, metadata: dict[str, str]) -> None:
    """Write the checkpoint whole: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    try:
        save_file(without_tied(model.state_dict()), beside, metadata=metadata)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Train, measure on held-out problems, write; 0 when the file is there, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m real.warmstart", description="Make the warm start from nothing."
    )
    parser.add_argument(
        "--out", type=Path, default=CHECKPOINT, help="file to write (default: the shipped one)"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.steps < 1:
        print(f"--steps must be >= 1, got {options.steps}", file=sys.stderr)
        return 2
    started = time.process_time()
    try:
        columns = (
            *Progress.get_default_columns()[:-1],
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
        )
        with Progress(*columns) as progress:
            model = train(seed=options.seed, steps=options.steps, progress=progress)
        seconds = time.process_time() - started
        right = evaluate(model, Mini(sampler="torch"), seed=options.seed).accuracy
        command = f"python -m real.warmstart --steps {options.steps} --seed {options.seed}"
        metadata = {
            "command": command,
            "seed": str(options.seed),
            "steps": str(options.steps),
            "cpu_seconds": f"{seconds:.0f}",
            "accuracy_held_out": f"{right.value:.4f}",
            "accuracy_stderr": f"{right.stderr:.4f}",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        }
        save(model, options.out, metadata)
    except KeyboardInterrupt:
        print("interrupted: nothing was written; start again with the same command", file=sys.stderr)
        return 130
    print(
        f"{options.out}: accuracy {right.value:.3f} +- {right.stderr:.3f} on held-out problems, "
        f"{seconds:.0f} CPU-s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
