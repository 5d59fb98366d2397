"""The run of a full-size experiment: sample, reward, correct, step, measure at the new weights, sync.

The same order and the same seeds' purposes as `real.loop`; what differs is that rows are columns, and that
nothing of the size tokens x vocabulary exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from real import checkpoint as disk
from real import countdown
from real.evaluate import HELD_OUT_SEED, Evaluation
from real.fullsize.devices import DevicePlan, cards, place
from real.fullsize.engine import FullRollout, FullSampler, check_vocabulary, choice_of, engine_arguments
from real.fullsize.load import read_config, read_model, read_tokenizer
from real.fullsize.memory import estimate
from real.fullsize.prompts import prompt_tokens, rewards
from real.fullsize.resume import FullProgress, restore, save
from real.fullsize.settings import FullSize
from real.fullsize.tables import Update, padded, token_table
from real.fullsize.trainer import FullTrainer
from real.fused.stale import FrozenWeights
from real.loop import draw_seed
from real.samplers.guard import drawn, refuse_impossible
from real.sequences import sequence_table
from real.sync import SyncError
from real.trainer import Diverged
from theory.advantage import advantages
from theory.estimate import mean_estimate
from theory.experiment import Experiment
from theory.records import OFF_SUPPORT_BELOW, StepRecord, Trace, trace_of
from theory.resync import should_resync
from theory.token_measures import token_measures

LARGEST_EXACT = 1e-3
"""Rms of log(mu/pi_s), nats, that a batch right after a sync may show where both compute in float32"""
LARGEST_BFLOAT16 = 0.1
"""The same where one computes in bfloat16: ten times what its rounding leaves on small models"""
LARGEST_GROWTH = 3.0
"""Factor by which an engine that rounds may leave more after a sync than it left when it was loaded"""


class FullRun(NamedTuple):
    """What a run leaves."""

    trace: Trace
    evaluations: Mapping[int, Evaluation]
    """Held-out measures by step; empty where no evaluation was asked for"""
    tail_mass: Mapping[int, float]
    """Mean mass outside the sampler's columns, by step"""
    stopped: str | None
    """Why the run ended before its last step; None if it did not"""


def run(
    experiment: Experiment,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    tokenizer: Any = None,
) -> FullRun:
    """Run one experiment on a full-size model.

    Parameters
    ----------
    experiment : Experiment
        Its environment is a `FullSize`.
    on_step : callable, optional
        Gets each step's record; after a kill those since the last state come again.
    checkpoint : path, optional
        Folder for the state of the run, written at evaluated steps: two copies of the parameters.
    resume : bool
        Go on from the state in `checkpoint`; without one there the run starts at the beginning.
    tokenizer : optional
        In place of the model's own: for models without one.

    Returns
    -------
    FullRun

    Raises
    ------
    ValueError
        For settings that cannot run here, before anything is loaded.
    SyncError
        If the engine did not take the weights.
    """
    environment = experiment.environment
    if not isinstance(environment, FullSize):
        raise ValueError(f"a full-size run needs a FullSize environment, got {type(environment).__name__}")
    if resume and checkpoint is None:
        raise ValueError("resume needs the folder to resume from, got none; pass checkpoint=FOLDER")
    devices = place(environment.devices, cards())
    loop = FullLoop(experiment, environment, devices, tokenizer)
    try:
        return loop.run(on_step, folder=None if checkpoint is None else Path(checkpoint), again=resume)
    finally:
        loop.close()


class FullLoop:
    """One run in progress; `smoke` drives its parts one by one."""

    def __init__(
        self, experiment: Experiment, environment: FullSize, devices: DevicePlan, tokenizer: Any = None
    ) -> None:
        self.experiment, self.environment = experiment, environment
        config = read_config(environment.model)
        check_vocabulary(config, environment)
        self.need = estimate(config, environment, devices, responses=experiment.prompts * experiment.samples)
        choice = choice_of(environment, experiment.numerics, devices, seed=experiment.seed)
        arguments = engine_arguments(environment, choice, devices, self.need, seed=0)
        if tokenizer is not None:
            arguments["skip_tokenizer_init"] = True
        self.tokenizer = read_tokenizer(environment.model) if tokenizer is None else tokenizer
        self.rms_at_load: float | None = None
        self.rounds = choice.recipe is not None or environment.precision == "fp8"
        # the engine first: it measures the card's free memory, and takes its share before the trainer grows
        self.sampler = FullSampler(environment, choice, arguments)
        model = read_model(
            environment.model,
            device=devices.trainer,
            gradient_checkpointing=environment.gradient_checkpointing,
        )
        self.trainer = FullTrainer(
            model,
            experiment.correction,
            lr=experiment.lr,
            environment=environment,
            minibatches=experiment.minibatches,
        )
        self.initial = FrozenWeights(model, device="cpu") if environment.eval_prompts else None

    def close(self) -> None:
        """Give the engine's memory back."""
        self.sampler.close()

    def run(
        self,
        on_step: Callable[[StepRecord], None] | None,
        *,
        folder: Path | None = None,
        again: bool = False,
    ) -> FullRun:
        """From the start, or from the state in a folder, to the last step."""
        done = FullProgress()
        if not (again and folder is not None and restore(folder, self.experiment, self, done)):
            self._evaluate(0, done.evaluations)
        while done.step < self.experiment.steps and done.stopped is None:
            try:
                record = self._step(done.step + 1, done)
            except Diverged as error:
                done.stopped = f"step {done.step + 1}: {error}"
                break
            done.step = record.step
            done.records.append(record)
            if on_step is not None:
                on_step(record)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                disk.write_record(folder, record)
                if self._evaluated(record.step):
                    save(folder, self.experiment, self, done)
        return FullRun(trace_of(done.records), done.evaluations, done.tails, done.stopped)

    def _evaluated(self, step: int) -> bool:
        return step % self.environment.eval_every == 0 or step == self.experiment.steps

    def _step(self, step: int, done: FullProgress) -> StepRecord:
        """One update with its measures, the sync that is due, and the evaluation where one is due."""
        clock = time.perf_counter()
        made = self.update(step)
        measures = made.measures
        done.tails[step] = made.taken.tail.mean
        measures["resynced"] = self._sync_if_due(measures)
        measures["seconds_sync"] = (
            time.perf_counter() - clock - measures["seconds_sample"] - measures["seconds_train"]
        )
        clock = time.perf_counter()
        if self._evaluated(step):
            self._evaluate(step, done.evaluations)
        if step in done.evaluations:
            measures["accuracy"] = done.evaluations[step].accuracy.value
            measures["off_support"] = done.evaluations[step].off_support
        measures["seconds_evaluate"] = time.perf_counter() - clock
        return StepRecord(step=step, measures=measures, tokens=made.tokens, sequences=made.sequences)

    def rollout(self, step: int) -> tuple[FullRollout, Tensor]:
        """Sample one batch and judge it; rewards have shape (prompts, samples)."""
        experiment = self.experiment
        problems = countdown.problems(experiment.prompts, seed=draw_seed(experiment.seed, "problems", step))
        longest = self.environment.max_prompt_tokens
        prompts = [prompt_tokens(self.tokenizer, p, longest=longest) for p in problems]
        seed = draw_seed(experiment.seed, "responses", step)
        rollout = drawn(lambda: self.sampler.sample(prompts, experiment.samples, seed))
        refuse_impossible(rollout.mu.logp_a, rollout.mu.logp)
        reward_CN = torch.tensor(rewards(self.tokenizer, problems, rollout.responses))
        return rollout, reward_CN.reshape(experiment.prompts, experiment.samples)

    def update(self, step: int) -> Update:
        """One batch, one update, its measures and tables."""
        start = time.perf_counter()
        rollout, reward_CN = self.rollout(step)
        sampled = time.perf_counter()
        version = self.trainer.version
        advantage_B = advantages(reward_CN, baseline=self.experiment.baseline).reshape(-1)
        taken = self.trainer.step(rollout, advantage_B)
        trained = time.perf_counter()
        mask_BT, tables = padded(rollout, taken)
        measures = token_measures(*tables, mask=mask_BT)
        if taken.synced:
            self.check_sync(measures["discrepancy_rms"])
        measures |= {
            "reward": reward_CN.mean().item(),
            "lag_norm": self.trainer.lag_norm(),
            "synced": float(taken.synced),
            "seconds_sample": sampled - start,
            "seconds_train": trained - sampled,
        }
        if not np.isnan(taken.update_norm):
            measures["update_norm"] = taken.update_norm
        return Update(
            rollout=rollout,
            taken=taken,
            measures=measures,
            tokens=token_table(step, rollout, taken, advantage_B),
            sequences=sequence_table(
                step,
                samples=rollout.samples,
                reward=reward_CN,
                lengths=rollout.lengths,
                finish=rollout.finish,
                sampler_version=rollout.mu.version,
                trainer_version=version,
            ),
        )

    def check_sync(self, rms: float) -> None:
        """Refuse an engine that computes something else than the trainer at equal weights."""
        exact = self.environment.precision == "fp32" and self.trainer.device.type == "cpu"
        bound = LARGEST_EXACT if exact else LARGEST_BFLOAT16
        if self.rounds:  # how much depends on format and model: the engine as loaded is the measure
            self.rms_at_load = rms if self.rms_at_load is None else self.rms_at_load
            bound = LARGEST_GROWTH * self.rms_at_load
        if not rms <= bound:
            raise SyncError(
                f"right after a sync the engine must give the trainer's log-probs to {bound:g} nats rms, "
                f"got {rms:.3g}; it did not take the weights, or samples from another distribution"
            )

    def sync(self) -> float:
        """Push the trainer's weights; seconds it took."""
        start = time.perf_counter()
        self.sampler.sync(self.trainer.model.state_dict(), self.trainer.version)
        self.trainer.took_sync()
        return time.perf_counter() - start

    def _sync_if_due(self, measures: Mapping[str, float]) -> float:
        """Sync where the ESS rule or the schedule asks for it; 1.0 if it was the ESS rule."""
        rule, trainer = self.experiment.correction, self.trainer
        since = (trainer.version - trainer.frozen.version) // self.experiment.minibatches
        fires = should_resync(measures[f"ess_{rule.resync_level}"], rule.resync_below)
        due = should_resync(1.0, 0.0, steps_since=since, sync_every=self.experiment.sync_every)
        if fires or due:
            self.sync()
        return float(bool(fires))

    def _evaluate(self, step: int, evaluations: dict[int, Evaluation]) -> None:
        """Measure the trainer's policy with the engine: push its weights, then put the stale ones back."""
        environment, trainer = self.environment, self.trainer
        if environment.eval_prompts == 0 or self.initial is None:
            return
        problems = countdown.problems(environment.eval_prompts, seed=HELD_OUT_SEED, split="test")
        prompts = [prompt_tokens(self.tokenizer, p, longest=environment.max_prompt_tokens) for p in problems]
        lagging = trainer.version != trainer.frozen.version
        if lagging:
            self.sampler.sync(trainer.model.state_dict(), trainer.version)
        seed = draw_seed(self.experiment.seed, "evaluation", step)
        rollout = self.sampler.sample(prompts, environment.eval_samples, seed)
        if lagging:
            with trainer.frozen.inside(trainer.model):
                self.sampler.sync(trainer.model.state_dict(), trainer.frozen.version)
        right = [r > 0 for r in rewards(self.tokenizer, problems, rollout.responses)]
        with self.initial.inside(trainer.model):
            first = trainer.columns(rollout, rollout.mu.to(trainer.device), sampled_only=True).logp
        evaluations[step] = Evaluation(
            accuracy=mean_estimate([float(x) for x in right], unit="share"),
            entropy=float("nan"),
            off_support=(first.exp() < OFF_SUPPORT_BELOW).double().mean().item(),
            length=sum(rollout.lengths) / len(rollout.lengths),
        )
