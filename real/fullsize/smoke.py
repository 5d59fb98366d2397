"""One update of a Qwen3-0.6B with random weights: seconds and peak memory of load, generate, update and sync.

    python -m real.fullsize.smoke

Writes a checkpoint of random weights (1.2 GB) to a temporary folder and runs the same loop as a real model:
vLLM, 2 prompts x 2 responses of 8 tokens, one update, one sync, and a second batch that proves the sync.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real import process

process.prepare()

import torch  # noqa: E402 - after its variables are set
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from real.command_line import start  # noqa: E402
from real.errors import running, usage  # noqa: E402
from real.fullsize.devices import cards, place  # noqa: E402
from real.fullsize.load import SHAPES  # noqa: E402
from real.fullsize.loop import FullLoop  # noqa: E402
from real.fullsize.settings import FullSize  # noqa: E402
from theory.corrections import correction  # noqa: E402
from theory.experiment import Experiment  # noqa: E402

GIB = 2**30
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
"""Qwen3's, cut down to user turns"""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer of 256 bytes and Qwen3's marks: text for a model that never learned any."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*marks, *alphabet])}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=marks[0], eos_token=marks[2], additional_special_tokens=marks
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_random(folder: Path, shape: dict[str, Any], *, seed: int = 0) -> int:
    """Write a checkpoint of random weights; its parameters."""
    config = Qwen3Config(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Qwen3ForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def peak_gib() -> float:
    """Highest resident memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def timed(what: str, run: Callable[[], Any]) -> Any:
    """Run it and print a line."""
    wall, cpu = time.perf_counter(), time.process_time()
    out = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:34s} {wall:7.1f} s wall {cpu:7.1f} s CPU   peak {peak_gib():5.2f} GiB", flush=True)
    return out


def smoke(
    folder: Path, shape: dict[str, Any], *, precision: str, correction_name: str, response_tokens: int = 8
) -> dict[str, float]:
    """Load, generate, update, sync, generate again; the measures of the second update."""
    parameters = timed("write random weights", lambda: write_random(folder, shape))
    environment = FullSize(
        model=str(folder),
        precision=precision,
        max_prompt_tokens=320,
        max_response_tokens=response_tokens,
        micro_batch_tokens=1024,
    )
    job = Experiment(
        environment=environment,
        correction=correction(correction_name),
        lr=0.1,
        steps=1,
        prompts=2,
        samples=2,
        baseline="none",  # every answer of a random model is wrong; a group's mean would leave no gradient
        sync_every=1,
    )
    loop = timed(
        "load engine and trainer",
        lambda: FullLoop(job, environment, place(environment.devices, cards()), byte_tokenizer()),
    )
    try:
        rollout, reward_CN = timed("generate 2 prompts x 2", lambda: loop.rollout(1))
        advantage_B = reward_CN.reshape(-1)
        taken = timed("update", lambda: loop.trainer.step(rollout, advantage_B))
        timed("sync", loop.sync)
        again = timed("second batch and update", lambda: loop.update(2))
        first = (rollout.mu.logp_a - taken.logpi_s_N).square().mean().sqrt().item()
        estimated = (loop.need.trainer_bytes + loop.need.sampler_bytes) / GIB
        print(
            f"{parameters / 1e6:.1f} M parameters, {len(rollout.mu)} + {len(again.rollout.mu)} tokens, "
            f"update norm {taken.update_norm:.4g}\n"
            f"log(mu/pi_s) rms {first:.2e} at load, {again.measures['discrepancy_rms']:.2e} after the sync\n"
            f"mean mass outside the top {environment.top_k}: {taken.tail.mean:.3f}\n"
            f"peak {peak_gib():.1f} GiB, estimated {estimated:.1f} GiB"
        )
        return again.measures
    finally:
        loop.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One update of a Qwen3 with random weights: seconds and peak memory of each part."""

    model: str = "Qwen/Qwen3-0.6B"
    """Whose shape"""
    precision: str = "fp32"
    """Of the sampler"""
    correction: str = "dlc"
    """Row of the corrections table"""


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    return start(Settings, "python -m real.fullsize.smoke", _main, arguments=arguments)


def _main(given: Settings) -> int:
    with usage():
        if given.model not in SHAPES:
            raise ValueError(f"unknown model {given.model!r}; known: {', '.join(sorted(SHAPES))}")
        FullSize(precision=given.precision)
        correction(given.correction)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, running():
        smoke(
            Path(folder),
            SHAPES[given.model],
            precision=given.precision,
            correction_name=given.correction,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
