"""A dry run: what a full-size run would do and take, and the engine's arguments; nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from real.fullsize.devices import Card, DevicePlan, place
from real.fullsize.engine import check_vocabulary, choice_of, engine_arguments
from real.fullsize.load import read_config
from real.fullsize.memory import MemoryEstimate, estimate, parameters
from real.fullsize.settings import FullSize
from theory.experiment import Experiment

GIB = 2**30


def assumed_cards(count: int, gib: float, capability: tuple[int, int] = (9, 0)) -> tuple[Card, ...]:
    """Cards to plan for on a machine that has none."""
    if count < 1 or not 0 < gib < float("inf"):
        raise ValueError(f"a plan needs a card of some memory, got {count} of {gib} GiB; assume 1 of 80")
    return tuple(
        Card(name="an assumed Hopper card", bytes=int(gib * GIB), capability=capability) for _ in range(count)
    )


def plan(experiment: Experiment, found: Sequence[Card], /) -> str:
    """Describe a run on the given cards.

    Raises
    ------
    ValueError
        Where the run itself would be refused.
    """
    environment = experiment.environment
    if not isinstance(environment, FullSize):
        raise ValueError(f"a plan needs a FullSize environment, got {type(environment).__name__}")
    devices = place(environment.devices, found)
    config = read_config(environment.model, known_shapes=True)
    check_vocabulary(config, environment)
    responses = experiment.prompts * experiment.samples
    need = estimate(config, environment, devices, responses=responses)
    choice = choice_of(environment, experiment.numerics, devices, seed=experiment.seed)
    arguments = engine_arguments(environment, choice, devices, need)
    lines = [
        f"model      {environment.model}: {sum(parameters(config)) / 1e6:.1f} M parameters, "
        f"vocabulary {config.vocab_size}",
        f"sampler    vLLM, precision {environment.precision}, on {_where(devices.sampler, devices)}",
        f"trainer    float32 parameters, {'bfloat16' if devices.on_card else 'float32'} products, float32 "
        f"log-probs, on {_where(devices.trainer, devices)}",
        f"each step  {experiment.prompts} prompts x {experiment.samples} responses of at most "
        f"{environment.max_response_tokens} tokens, micro-batches of {environment.micro_batch_tokens} tokens"
        f"{', one activation a layer kept' if environment.gradient_checkpointing else ''}",
        f"sync       every {experiment.sync_every} steps"
        + (
            f", and when ESS({experiment.correction.resync_level}) < {experiment.correction.resync_below}"
            if experiment.correction.resync_below
            else ""
        ),
        f"row        top {environment.top_k} of each position; the mass outside is reported, and warned of "
        "above .1",
        "",
        *_memory("trainer", need.trainer, need.trainer_bytes),
        *_memory("sampler", need.sampler, need.sampler_bytes),
        *_fits(devices, need),
        "",
        "variables  "
        + (" ".join(f"{k}={v}" for k, v in choice.environment.items()) or "none beyond the usual"),
        f"vLLM       LLM({environment.model!r},",
        *(f"             {name}={value!r}," for name, value in sorted(arguments.items())),
        "           )",
    ]
    return "\n".join(lines)


def _where(device: str, devices: DevicePlan) -> str:
    if not device.startswith("cuda"):
        return "the CPU"
    card = devices.cards[int(device.removeprefix("cuda:"))]
    return f"{device}, {card.name} ({card.bytes / GIB:.0f} GiB)"


def _memory(who: str, parts: object, total: int) -> list[str]:
    assert isinstance(parts, dict)
    rows = [f"  {value / GIB:7.2f} GiB  {name}" for name, value in parts.items() if value]
    return [f"{who}, estimated {total / GIB:.1f} GiB", *rows]


def _fits(devices: DevicePlan, need: MemoryEstimate) -> list[str]:
    if not devices.on_card:
        return [f"together  {(need.trainer_bytes + need.sampler_bytes) / GIB:.1f} GiB of host memory"]
    if devices.shared:
        total = devices.cards[0].bytes
        return [
            f"together  {(need.trainer_bytes + need.sampler_bytes) / GIB:.1f} of {total / GIB:.0f} GiB; what "
            "the trainer leaves goes to keys and values"
        ]
    fits = need.trainer_bytes <= devices.cards[1].bytes and need.sampler_bytes <= devices.cards[0].bytes
    return ["each fits its card" if fits else "DOES NOT FIT: use frozen_on_cpu or smaller micro-batches"]
