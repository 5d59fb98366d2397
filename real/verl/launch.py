"""The articles' experiment on verl: Countdown, a Qwen3, vLLM, four samplers, any correction.

    python -m real.verl.launch --sampler gated --correction dlc           # on two GPUs: one trains, one
    samples python -m real.verl.launch --sampler fp8-stale --correction is --print-only

The settings are checked against the installed verl (its own schema, its own validation, our requirements)
before anything starts. Where the articles do not say a number, the field below says whose it is.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from real.command_line import start
from real.errors import usage
from real.verl import task

SamplerName = Literal["bf16", "fp8", "stale", "fp8-stale", "gated", "fp8-gated"]

FP8 = (
    "actor_rollout_ref.rollout.quantization=fp8",  # 128 x 128 blocks of e4m3, dynamic activations
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8",
)
STALE = 64
"""The articles' stale sampler is pushed every 64 steps of 40: never"""

SAMPLERS: Mapping[str, tuple[int, bool, tuple[str, ...]]] = MappingProxyType(
    {
        "bf16": (1, False, ()),
        "fp8": (1, False, FP8),
        "stale": (STALE, False, ()),
        "fp8-stale": (STALE, False, FP8),
        "gated": (STALE, True, ()),
        "fp8-gated": (STALE, True, FP8),
    }
)
"""Push period in updates, whether the lag pushes too, and what the engine adds"""

MODULES = "real.verl.plugin,real.verl.trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run; articles' numbers unless a field says otherwise."""

    sampler: SamplerName = "gated"
    correction: str = "dlc"
    """Row of the corrections table"""
    resync_below: float = 0.5
    """ESS share that pushes a gated sampler"""
    model: str = "Qwen/Qwen3-0.6B"
    """Hub name or folder; the second article also runs Qwen/Qwen3-1.7B"""
    data: Path = Path("data/countdown")
    """Folder of the Parquet files; written if it does not exist"""
    lr: float = 0.1
    """Of plain SGD. Ours: the articles do not give it; scan it on policy first"""
    steps: int = 40
    prompts: int = 64
    samples: int = 8
    baseline: Literal["none", "global", "group"] = "none"
    """Ours: the articles say rewards of +-1; with "group" centring changes nothing on a shared prefix"""
    response_tokens: int = 256
    """Longest answer; ours"""
    train_gpus: int = 1
    sample_gpus: int = 1
    micro_batch: int = 16
    """Responses a GPU takes at once; ours, changes memory and speed alone"""
    seed: int = 0
    dump: Path | None = None
    """File of the canonical trace, for `audit`"""
    print_only: bool = False
    """Show the command in place of running it"""


def overrides(settings: Settings, /) -> list[str]:
    """Return the settings of a run on verl's command line.

    Raises
    ------
    ValueError
        For an unknown sampler or correction, or a row verl has no loss for.
    """
    from theory.corrections import correction

    if settings.sampler not in SAMPLERS:
        known = ", ".join(get_args(SamplerName))
        raise ValueError(f"unknown sampler {settings.sampler!r}; known: {known}")
    row = correction(settings.correction) if settings.correction != "clip-on-lag" else correction("dlc")
    every, gated, engine = SAMPLERS[settings.sampler]
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    estimator = "grpo" if settings.baseline == "group" else f"lagfloor-{settings.baseline}"
    folder = settings.data.resolve()
    out = [
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'test.parquet'}",
        f"data.train_batch_size={settings.prompts}",
        "data.max_prompt_length=192",
        f"data.max_response_length={settings.response_tokens}",
        "data.shuffle=false",  # the file is a random draw; its order is the seed's
        "+data.apply_chat_template_kwargs.enable_thinking=false",
        f"reward.custom_reward_function.path={task.__file__}",
        f"algorithm.adv_estimator={estimator}",
        "algorithm.norm_adv_by_std_in_grpo=false",
        "algorithm.use_kl_in_reward=false",
        "algorithm.rollout_correction.bypass_mode=false",
        f"actor_rollout_ref.model.path={settings.model}",
        "actor_rollout_ref.hybrid_engine=false",
        f"{actor}.strategy=fsdp2",
        f"{actor}.policy_loss._target_=real.verl.losses.LagPolicyLossConfig",
        f"{actor}.policy_loss.loss_mode=lagfloor-{settings.correction}",
        f"+{actor}.policy_loss.changes.resync_below={settings.resync_below if gated else 0.0}",
        f"{actor}.loss_agg_mode=token-mean",
        f"{actor}.use_kl_loss=false",
        f"{actor}.entropy_coeff=0",
        f"{actor}.ppo_epochs=1",
        f"{actor}.ppo_mini_batch_size={settings.prompts}",
        f"{actor}.ppo_micro_batch_size_per_gpu={settings.micro_batch}",
        f"{actor}.optim.optimizer=SGD",
        f"{actor}.optim.lr={settings.lr}",
        f"{actor}.optim.weight_decay=0",
        f"{actor}.optim.clip_grad=1e9",  # none: it would hide a collapse
        f"{rollout}.name=vllm",
        f"{rollout}.n={settings.samples}",
        f"{rollout}.temperature=1.0",
        f"{rollout}.top_p=1.0",
        f"{rollout}.top_k=-1",
        f"{rollout}.seed={settings.seed}",
        f"{rollout}.calculate_log_probs=true",
        f"{rollout}.logprobs_mode=processed_logprobs",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.nnodes=1",
        f"{rollout}.n_gpus_per_node={settings.sample_gpus}",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={settings.micro_batch}",
        f"{rollout}.checkpoint_engine.backend=nccl",
        "trainer.v1.trainer_mode=lag_gated",
        "trainer.v1.separate_async.parameter_sync_step=1",
        # no batch in flight: only then is a sampler that is pushed each step on-policy
        "trainer.v1.separate_async.num_warmup_batches=0",
        "trainer.v1.sampler.max_off_policy_threshold=null",
        f"+trainer.v1.lag_gated.sync_every={every}",
        "+trainer.v1.lag_gated.measure=forward",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={settings.train_gpus}",
        f"trainer.total_training_steps={settings.steps}",
        "trainer.total_epochs=1",
        # a validation pushes: only before the first and after the last step
        f"trainer.test_freq={settings.steps}",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.logger=[console]",
        "trainer.project_name=lagfloor",
        f"trainer.experiment_name={settings.sampler}-{settings.correction}-{settings.seed}",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES='{MODULES}'",
        *engine,
    ]
    if row.centered and settings.correction != "clip-on-lag":
        out += [
            f"+{rollout}.agent.agent_loop_manager_class=real.verl.topk.TopKAgentLoopManager",
            "actor_rollout_ref.model.use_fused_kernels=false",
        ]
    if settings.dump is not None:
        out.append(f"+trainer.v1.lag_gated.dump={settings.dump.resolve()}")
    return out


def compose(chosen: list[str], /) -> Any:
    """Compose the config of the installed verl under these settings, validated by verl and by our trainer.

    Raises
    ------
    ValueError
        For a setting verl does not have or does not accept.
    """
    import hydra
    import verl.trainer.main_ppo
    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from real.verl.required import refuse

    folder = Path(verl.trainer.main_ppo.__file__).parent / "config"
    try:
        with hydra.initialize_config_dir(str(folder), version_base=None):
            config = hydra.compose("ppo_trainer", overrides=chosen)
        validate_config(config, need_reference_policy(config), need_critic(config))
    except (HydraException, AssertionError) as error:
        raise ValueError(f"the installed verl does not accept the settings: {error}") from error
    refuse(config)
    return config


def main(arguments: list[str] | None = None) -> int:
    """Check, show, run."""
    return start(Settings, "python -m real.verl.launch", _main, arguments=arguments)


def _main(settings: Settings) -> int:
    os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", MODULES)
    with usage():
        chosen = overrides(settings)
        try:
            compose(chosen)
            checked = True
        except ImportError as error:
            checked = False
            print(f"not checked: verl cannot be imported here ({error})", file=sys.stderr)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *chosen]
    if settings.print_only or not checked:
        print(f"VERL_USE_EXTERNAL_MODULES={MODULES} \\\n  " + " \\\n  ".join(map(shlex.quote, command)))
        return 0 if checked else 1
    if not (settings.data / "train.parquet").exists():
        task.write(settings.data, seed=settings.seed)
    os.execv(command[0], command)


if __name__ == "__main__":
    raise SystemExit(main())
