"""GRPO on Countdown with the mini-Qwen3 in TRL: a stale sampler, and one that is pushed by the lag.

python -m real.trl.countdown --correction pg                        # collapses
python -m real.trl.countdown --correction pg --resync-below 0.5     # does not
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from real import process
from real.command_line import start
from real.errors import running, usage
from theory.corrections import correction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from real.trl.trainer import LagGRPOTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run; by default at working point B of `real.settings`: group baseline, lr .3, plain SGD."""

    correction: str = "dlc"
    """Row of the corrections table"""
    resync_below: float | None = None
    """ESS share that pushes the sampler; None: the correction's own, 0: never"""
    sync_every: int = 64
    """Scheduled push in updates; 1 is on-policy, 64 of 40 steps is the articles' stale sampler"""
    steps: int = 40
    prompts: int = 64
    samples: int = 8
    lr: float = 0.3
    tau: float = 1.6
    """The logits of the warm start are divided by it"""
    vllm: bool = False
    """Sample with vLLM in this process in place of transformers"""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """What vLLM computes in; the trainer is float32, so bfloat16 is a discrepancy of its own"""
    eval_every: int = 8
    """Updates between evaluations of the trainer on held-out problems, by TRL itself"""
    eval_prompts: int = 256
    seed: int = 1
    dump: str | None = None
    """File for the canonical trace"""
    log: str | None = None
    """File for what TRL logged, one JSON object a step"""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the mini model's twenty characters as a tokenizer of transformers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from real.countdown import TOKEN_ID, VOCABULARY

    pad, eos = VOCABULARY[:2]
    plain = Tokenizer(models.WordLevel(TOKEN_ID | {pad: 0, eos: 1}, unk_token=pad))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token=pad, eos_token=eos, padding_side="left")


def reward(
    completion_ids: Sequence[list[int]], numbers: Sequence[Any], target: Sequence[int], **_: Any
) -> list[float]:
    """+1 for a response that ends and solves its problem, -1 for any other; TRL's signature."""
    from real.countdown import EOS, decode
    from real.verifier import solves

    return [
        1.0 if ids and ids[-1] == EOS and solves(decode(ids[:-1]), n, t) else -1.0
        for ids, n, t in zip(completion_ids, numbers, target, strict=True)
    ]


def parts(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return model, data and reward of a run, as arguments of GRPOTrainer; the folder holds them for vLLM.

    Model and tokenizer are in the folder too.

    Parameters
    ----------
    settings : Settings
        The run.
    folder : Path
        Existing; vLLM starts from it.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    from real.countdown import problems
    from real.model import flatten, load

    start, words = load(), tokenizer()
    flatten(start, settings.tau)
    start.save_pretrained(folder)
    words.save_pretrained(folder)
    train, held_out = (
        Dataset.from_list(
            [{"prompt": p.prompt, "numbers": list(p.numbers), "target": p.target} for p in pool]
        )
        for pool in (
            problems(settings.steps * settings.prompts, seed=settings.seed, split="train"),
            problems(settings.eval_prompts, seed=0, split="test"),
        )
    )
    return {
        "model": AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        "reward_funcs": reward,
        "train_dataset": train,
        "eval_dataset": held_out,
        "processing_class": words,
    }


def grpo_arguments(settings: Settings, folder: Path, *, accumulation: int = 1) -> dict[str, Any]:
    """Arguments of TRL's GRPOConfig: plain SGD, no clipping, no KL term, the mean over tokens, a CPU.

    Parameters
    ----------
    settings, folder
        As in `parts`.
    accumulation : int
        Micro-batches an update is made of.
    """
    from real.countdown import RESPONSE_TOKENS

    return {
        "output_dir": str(folder),
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.prompts * settings.samples // accumulation,
        "gradient_accumulation_steps": accumulation,
        "num_generations": settings.samples,
        "eval_strategy": "steps",
        "eval_steps": settings.eval_every,
        "per_device_eval_batch_size": settings.eval_prompts,
        "num_generations_eval": 1,
        "max_completion_length": RESPONSE_TOKENS,
        "learning_rate": settings.lr,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "scale_rewards": "none",
        "beta": 0.0,
        "loss_type": "dapo",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": settings.seed,
        "use_vllm": settings.vllm,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 64,
    }


def trainer(settings: Settings, folder: Path, *, accumulation: int = 1, **changes: Any) -> LagGRPOTrainer:
    """Set a run up; `changes` are other arguments of GRPOConfig, the rest is as in `grpo_arguments`."""
    from trl import GRPOConfig  # pyright: ignore[reportAttributeAccessIssue]

    from real.trl.cpu_engine import small_engine
    from real.trl.trainer import LagGRPOTrainer

    rule: dict[str, Any] = {} if settings.resync_below is None else {"resync_below": settings.resync_below}
    fields = grpo_arguments(settings, folder, accumulation=accumulation) | changes
    with small_engine(dtype=settings.precision) if settings.vllm else nullcontext():
        return LagGRPOTrainer(
            args=GRPOConfig(**fields),
            correction=correction(settings.correction, **rule),
            sync_every=settings.sync_every,
            dump=settings.dump,
            **parts(settings, folder),
        )


def run(settings: Settings, /) -> list[dict[str, Any]]:
    """Train and return what TRL logged, one dictionary a step; where it was evaluated, with ``accuracy``."""
    with tempfile.TemporaryDirectory() as folder:
        job = trainer(settings, Path(folder))
        job.train()
        history = job.state.log_history
    accuracy = {e["step"]: {"accuracy": (e["eval_reward"] + 1) / 2} for e in history if "eval_reward" in e}
    return [entry | accuracy.get(entry["step"], {}) for entry in history if "reward" in entry]


SHOWN = (
    "reward",
    "accuracy",
    "lag/ess_token",
    "lag/ess_sequence",
    "lag/discrepancy_rms",
    "lag/lag_rms",
    "lag/k_hat",
)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line: one line a step, the whole log in ``--log``."""
    process.prepare()
    return start(Settings, "python -m real.trl.countdown", _main, arguments=arguments)


def _main(settings: Settings) -> int:
    with usage():
        correction(settings.correction)
    started = time.perf_counter()
    with running():
        log = run(settings)
    seconds = time.perf_counter() - started
    print("step " + " ".join(f"{name.removeprefix('lag/'):>15}" for name in SHOWN) + "  pushed")
    for entry in log:
        cells = (entry.get(name) for name in SHOWN)
        line = " ".join(f"{'-' if c is None else format(c, '.4g'):>15}" for c in cells)
        print(f"{entry['step']:4} {line}  {'yes' if entry.get('lag/resynced') else ''}")
    train = sum(entry["step_time"] for entry in log) / len(log)
    print(f"{seconds:.1f} s in all; a step trains for {train:.2f} s")
    if settings.log is not None:
        Path(settings.log).write_text("".join(json.dumps(e) + "\n" for e in log))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
