"""Make a task's warm start from nothing: supervised training on random solutions.

``python -m real.warmstart`` and ``python -m real.warmstart --task search``, about a CPU-minute each, write
the checkpoints that ship with the project, with their recipe and their measured accuracy in the file's
metadata. The file appears whole or not at all: it is written beside its place and moved there. A recipe that
is stopped goes on with the same command, to the same weights.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file

from real import checkpoint
from real.command_line import start
from real.errors import BadUsage, running
from real.evaluate import evaluate
from real.model import at_tokens, build, row_logps, without_tied
from real.recipe import RECIPES, Recipe, examples
from real.settings import Mini
from real.tasks import TASKS, TaskName

WARMUP = 100
"""Steps over which the learning rate rises to its peak; from there it falls linearly"""
LAST_LR = 0.02
"""Share of the peak that the learning rate never falls below"""
SAVE_EVERY = 50
"""Steps between states on disk: some seconds of the longer recipe"""


def schedule(step: int, steps: int, /) -> float:
    """Share of the peak learning rate at `step` of `steps`, counted from 0, if it falls over all of them."""
    return min(1.0, (step + 1) / WARMUP) * max(LAST_LR, 1.0 - step / steps)


def train(
    name: TaskName = "countdown",
    /,
    *,
    seed: int,
    recipe: Recipe | None = None,
    state: Path | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> transformers.Qwen3ForCausalLM:
    """Train the mini model from random weights on random solutions of training problems.

    Parameters
    ----------
    name : str
        The task.
    seed : int
        Of the weights, the pool and the batches.
    recipe : Recipe, optional
        The task's own if left out.
    state : path, optional
        File that is gone on from if it is there, and written every `SAVE_EVERY` steps.
    on_step : callable, optional
        Gets the steps done and the loss.

    Raises
    ------
    ValueError
        If the state is of another recipe, task or seed, or is broken.
    """
    task, recipe = TASKS[name], recipe or RECIPES[name]
    pool = examples(task.problems(recipe.pool, seed=seed, split="train"), task, recipe)
    model = build(task, seed=seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.99), weight_decay=0.01)
    draw = torch.Generator().manual_seed(seed)
    made_by = {"task": name, "seed": seed, "recipe": dataclasses.asdict(recipe)}
    done = 0 if state is None else _restore(state, made_by, model, optimizer, draw)
    for step in range(done, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_lr * schedule(step, recipe.horizon or recipe.steps)
        prompt_BP, answer_BT, weight_BT = pool.batch(recipe, draw)
        logp_BT = at_tokens(row_logps(model, prompt_BP, answer_BT), answer_BT)
        live_BT = weight_BT > 0
        loss = -(weight_BT * logp_BT)[live_BT].sum() / weight_BT[live_BT].sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if on_step is not None:
            on_step(step + 1, loss.item())
        if state is not None and (step + 1) % SAVE_EVERY == 0:
            _save_state(state, made_by, step + 1, model, optimizer, draw)
    return model.eval()


def _save_state(
    path: Path,
    made_by: dict[str, object],
    step: int,
    model: transformers.Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    draw: torch.Generator,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = checkpoint.prefixed("model", model.state_dict()) | {"draw": draw.get_state()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= checkpoint.prefixed(f"moments.{i}", moments)
    checkpoint.write(path, tensors, {"made_by": made_by, "step": step})


def _restore(
    path: Path,
    made_by: dict[str, object],
    model: transformers.Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    draw: torch.Generator,
) -> int:
    """Take up a state; 0 steps if there is none."""
    if not path.exists():
        return 0
    tensors, data = checkpoint.read(path)
    if data["made_by"] != made_by:
        raise ValueError(f"{path} is the state of another recipe; delete it, or go on with that recipe")
    model.load_state_dict(checkpoint.unprefixed("model", tensors))
    draw.set_state(tensors["draw"])
    held = optimizer.state_dict()
    count = len(held["param_groups"][0]["params"])
    held["state"] = {i: checkpoint.unprefixed(f"moments.{i}", tensors) for i in range(count)}
    optimizer.load_state_dict(held)
    return data["step"]


def save(model: transformers.Qwen3ForCausalLM, path: Path, metadata: dict[str, str]) -> None:
    """Write the checkpoint whole: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    try:
        save_file(without_tied(model.state_dict()), beside, metadata=metadata)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Make a task's warm start from nothing."""

    task: TaskName = "countdown"
    """What the model learns"""
    out: Path | None = None
    """File to write; the task's shipped one if left out"""
    steps: int | None = None
    """Updates; those of the task's recipe if left out"""
    seed: int = 0
    """Of the weights and of the draws"""


def main(arguments: list[str] | None = None) -> int:
    """Train, measure on held-out problems, write; 0 when the file is there, 130 after Ctrl-C."""
    return start(Settings, "python -m real.warmstart", _main, arguments=arguments)


def _main(options: Settings) -> int:
    name = options.task
    recipe = RECIPES[name]
    if options.steps is not None:
        if options.steps < 1:
            raise BadUsage(f"--steps must be >= 1, got {options.steps}; leave it out for the recipe's")
        recipe = dataclasses.replace(recipe, steps=options.steps)
    out: Path = options.out or TASKS[name].checkpoint
    state = out.with_name(out.name + ".state")
    command = f"python -m real.warmstart --task {name} --steps {recipe.steps} --seed {options.seed}"
    started = time.process_time()
    try:
        with running():
            model = _train_shown(name, seed=options.seed, recipe=recipe, state=state)
            seconds = time.process_time() - started
            environment = Mini(sampler="torch", task=name, tau=1.0)
            right = evaluate(model, environment, seed=options.seed).accuracy
            metadata = {
                "task": name,
                "command": command,
                "seed": str(options.seed),
                "steps": str(recipe.steps),
                "cpu_seconds_last_sitting": f"{seconds:.0f}",
                "accuracy_held_out": f"{right.value:.4f}",
                "accuracy_stderr": f"{right.stderr:.4f}",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            }
            save(model, out, metadata)
            state.unlink(missing_ok=True)
    except KeyboardInterrupt:
        kept = f"{state} keeps what was done" if state.exists() else "nothing was written"
        raise KeyboardInterrupt(f"{kept}; go on with the same command") from None
    print(
        f"{out}: accuracy {right.value:.3f} +- {right.stderr:.3f} on held-out problems, {seconds:.0f} CPU-s"
    )
    return 0


def _train_shown(name: TaskName, *, seed: int, recipe: Recipe, state: Path) -> transformers.Qwen3ForCausalLM:
    columns = (
        *Progress.get_default_columns()[:-1],
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with Progress(*columns) as progress:
        shown = progress.add_task(f"warm start, {name}", total=recipe.steps, loss=float("nan"))
        return train(
            name,
            seed=seed,
            recipe=recipe,
            state=state,
            on_step=lambda done, loss: progress.update(shown, completed=done, loss=loss),
        )


if __name__ == "__main__":
    sys.exit(main())
