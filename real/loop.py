"""The run: sample, verify, correct, step, measure at the new weights, sync where a rule says so.

`run` takes an `Experiment` whose environment is a `real.settings.Mini` and returns its trace, its weights,
and its evaluations. Every random draw has a seed of its own, made from the run's seed, the purpose and the
step: nothing depends on global random state, on the correction, or on where a run was interrupted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real import measures, resume
from real.checkpoint import FINISH_REASONS
from real.evaluate import evaluate, prompt_ids
from real.fp8.recipe import recipe_of
from real.model import flatten, load
from real.outcome import Progress, Run, Snapshot
from real.rewards import ended, rewards
from real.samplers import open_sampler
from real.samplers.base import Rollout, Sampler
from real.samplers.guard import drawn, refuse_impossible
from real.sequences import sequence_table
from real.settings import Mini
from real.sync import Proof, SyncProof
from real.trainer import Diverged, Trainer
from theory.advantage import advantages
from theory.experiment import Experiment
from theory.records import StepRecord, trace_of
from theory.resync import should_resync

Purpose = Literal["problems", "responses", "evaluation"]
_PURPOSES: dict[Purpose, int] = {"problems": 0, "responses": 1, "evaluation": 2}


def draw_seed(seed: int, purpose: Purpose, step: int) -> int:
    """Seed of one draw of a run, below 2**62."""
    words = np.random.SeedSequence([seed, _PURPOSES[purpose], step]).generate_state(1, np.uint64)
    return int(words[0] >> 2)


def start_model(environment: Mini) -> Qwen3ForCausalLM:
    """Return the policy of step 0: the warm start, flattened."""
    task = environment.definition
    model = load(task.checkpoint if environment.model == "mini" else environment.model, task=task)
    flatten(model, environment.tau)
    return model


def run(
    experiment: Experiment,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    sampler: Sampler | None = None,
) -> Run:
    """Run one experiment.

    Parameters
    ----------
    experiment : Experiment
        Its environment is a `Mini`.
    on_step : callable, optional
        Gets each step's record, before the step is committed to the checkpoint: after a kill the last record
        may come a second time, with the same values.
    checkpoint : path, optional
        Folder for the state of the run; made if missing.
    resume : bool
        Go on from the state in `checkpoint`; without one there the run starts at the beginning.
    sampler : Sampler, optional
        A live sampler to use and to leave open: starting vLLM takes seconds, syncing it does not. Left out,
        the one the environment names is started and closed.

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        For settings this engine cannot run, or a checkpoint of another experiment.
    EngineFault
        If the sampler died, handed over log-probs that cannot be, or (SyncError) did not take the weights.
        The steps before are in the checkpoint.
    """
    environment = experiment.environment
    if not isinstance(environment, Mini):
        raise ValueError(
            f"the real engine runs experiments on a real.settings.Mini, got {type(environment).__name__}"
        )
    if resume and checkpoint is None:
        raise ValueError("resume needs the folder to resume from, got none; pass checkpoint=FOLDER")
    folder = None if checkpoint is None else Path(checkpoint)
    live = sampler or open_sampler(environment, experiment.numerics, seed=experiment.seed)
    try:
        return _Loop(experiment, environment, live, folder).run(on_step, again=resume)
    finally:
        if sampler is None:
            live.close()


class _Loop:
    """One run in progress."""

    def __init__(
        self, experiment: Experiment, environment: Mini, sampler: Sampler, folder: Path | None
    ) -> None:
        self.experiment, self.environment = experiment, environment
        self.sampler, self.folder = sampler, folder
        recipe = recipe_of(experiment.numerics, seed=experiment.seed)
        self.proof = Proof(recipe, experiment.numerics.kind, environment.definition)
        self.initial = start_model(environment)
        self.trainer = Trainer(
            copy.deepcopy(self.initial),
            experiment.correction,
            lr=experiment.lr,
            minibatches=experiment.minibatches,
            top_k_row=environment.top_k_row,
        )
        self.done = Progress()

    def run(self, on_step: Callable[[StepRecord], None] | None, *, again: bool) -> Run:
        """From the start, or from the checkpoint, to the last step."""
        done = self.done
        if not (again and self._restore()):
            self._sync()
            self._evaluate(rollout=None)
            self._save(None)
        while done.step < self.experiment.steps and done.stopped is None:
            try:
                record = self._step(done.step + 1)
            except Diverged as error:
                done.stopped = f"step {done.step + 1}: {error}"
                if done.step not in done.evaluations:
                    self._evaluate(rollout=None)
                self._save(None)
                break
            done.records.append(record)
            if on_step is not None:
                on_step(record)
            self._save(record)
        return Run(
            experiment=self.experiment,
            trace=trace_of(done.records),
            snapshots=done.snapshots,
            evaluations=done.evaluations,
            syncs=tuple(done.syncs),
            stopped=done.stopped,
        )

    def _step(self, step: int) -> StepRecord:
        """One batch, one update, its measures, and the sync that the rules ask for."""
        experiment, trainer, task = self.experiment, self.trainer, self.environment.definition
        problems = task.problems(experiment.prompts, seed=draw_seed(experiment.seed, "problems", step))
        synced, version = trainer.synced, trainer.version
        clock = _Clock()
        prompt_CP, seed = prompt_ids(problems, task), draw_seed(experiment.seed, "responses", step)
        rollout = drawn(lambda: self.sampler.sample(prompt_CP, experiment.samples, seed))
        refuse_impossible(rollout.logmu_BT[rollout.mask_BT], rollout.logmu_BTV[rollout.mask_BT])
        seconds = {"seconds_sample": clock.lap()}
        reward_CN = rewards(rollout, problems, task=task)
        advantage_CN = advantages(reward_CN, baseline=experiment.baseline)
        taken = trainer.step(rollout, advantage_CN)
        seconds["seconds_train"] = clock.lap()
        found = measures.lag_measures(rollout, taken.logpi_s_BTV, taken.logpi_BTV)
        found |= {
            "reward": reward_CN.mean().item(),
            "update_norm": taken.update_norm,
            "lag_norm": trainer.lag_norm(),
            "synced": float(synced),
        }
        self.done.step = step
        clock.lap()
        found |= self._evaluate(rollout=rollout)
        seconds["seconds_evaluate"] = clock.lap()
        found["resynced"] = self._sync_if_due(found)
        seconds["seconds_sync"] = clock.lap()
        finish = np.array(FINISH_REASONS)[ended(rollout).numpy().astype(np.uint8)]
        return StepRecord(
            step=step,
            measures=found | seconds,
            tokens=measures.token_table(step, rollout, taken.logpi_s_BTV, taken.logpi_BTV, advantage_CN),
            sequences=sequence_table(
                step,
                samples=rollout.samples,
                reward=reward_CN,
                lengths=rollout.mask_BT.sum(-1).tolist(),
                finish=finish,
                sampler_version=rollout.version,
                trainer_version=version,
            ),
        )

    def _sync_if_due(self, found: Mapping[str, float]) -> float:
        """Sync where the ESS rule or the schedule asks for it; 1.0 if it was the ESS rule alone."""
        rule, trainer = self.experiment.correction, self.trainer
        steps_since = (trainer.version - trainer.synced_version) // self.experiment.minibatches
        fires = should_resync(found[f"ess_{rule.resync_level}"], rule.resync_below)
        due = should_resync(1.0, 0.0, steps_since=steps_since, sync_every=self.experiment.sync_every)
        if fires or due:
            self._sync()
        return float(bool(fires and not due))

    def _sync(self) -> None:
        self.done.syncs.append(self._push(self.trainer.version))

    def _push(self, version: int) -> SyncProof:
        trainer = self.trainer
        proof = self.proof.push(self.sampler, trainer.model, trainer.frozen, version)
        trainer.synced_version = version
        return proof

    def _evaluate(self, *, rollout: Rollout | None) -> dict[str, float]:
        """Evaluate and keep the weights where the schedule asks for it; measures for the record.

        Without a rollout it is the start, or the end of a run that stopped: always evaluated.
        """
        step, environment, done = self.done.step, self.environment, self.done
        if rollout is not None and step % environment.eval_every and step != self.experiment.steps:
            return {}
        seed = draw_seed(self.experiment.seed, "evaluation", step)
        result = evaluate(self.trainer.model, environment, seed=seed, initial=self.initial)
        done.evaluations[step] = result
        done.snapshots[step] = Snapshot(
            weights=_cloned(self.trainer.model),
            sampler_weights=_cloned(self.trainer.frozen),
            prompt_CP=None if rollout is None else rollout.prompt_CP,
            response_BT=None if rollout is None else rollout.response_BT,
            mask_BT=None if rollout is None else rollout.mask_BT,
        )
        return {"accuracy": result.accuracy.value, "off_support": result.off_support}

    def _save(self, record: StepRecord | None) -> None:
        if self.folder is not None:
            resume.save(self.folder, self.experiment, self.trainer, self.done, record)

    def _restore(self) -> bool:
        return self.folder is not None and resume.restore(
            self.folder, self.experiment, self.trainer, self.done, self._push
        )


def _cloned(model: Qwen3ForCausalLM) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class _Clock:
    """Wall seconds between laps."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return seconds
