"""The run: sample, verify, correct, step, measure at the new weights, sync where a rule says so.

`run` takes an `Experiment` whose environment is a `real.settings.Mini` and returns its trace, its weights,
and its evaluations. Every random draw has a seed of its own, made from the run's seed, the purpose and the
step: nothing depends on global random state, on the correction, or on where a run was interrupted.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from real import checkpoint as disk
from real import countdown, measures
from real.checkpoint import Snapshot
from real.evaluate import Evaluation, evaluate, prompt_ids
from real.model import CHECKPOINT, flatten, load, row_logps
from real.rewards import ended, rewards
from real.samplers import open_sampler
from real.samplers.base import Rollout, Sampler
from real.settings import Mini
from real.sync import SyncProof, push
from real.trainer import Diverged, Trainer
from theory.advantage import advantages
from theory.estimate import Estimate
from theory.experiment import Experiment
from theory.records import StepRecord, Trace, trace_of
from theory.resync import should_resync

Purpose = Literal["problems", "responses", "evaluation"]
_PURPOSES: dict[Purpose, int] = {"problems": 0, "responses": 1, "evaluation": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a run leaves."""

    experiment: Experiment
    trace: Trace
    snapshots: Mapping[int, Snapshot]
    """Weights at the evaluated steps; 0 is the start, the last one the end"""
    evaluations: Mapping[int, Evaluation]
    """Held-out measures at the same steps"""
    syncs: tuple[SyncProof, ...]
    """Every weight sync with its cost and its proof"""
    stopped: str | None = None
    """Why the run ended before its last step; None if it did not"""


@dataclass(slots=True)
class _Progress:
    """What grows during a run, besides the weights."""

    step: int = 0
    records: list[StepRecord] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    syncs: list[SyncProof] = field(default_factory=list)


def draw_seed(seed: int, purpose: Purpose, step: int) -> int:
    """Seed of one draw of a run, below 2**62."""
    words = np.random.SeedSequence([seed, _PURPOSES[purpose], step]).generate_state(1, np.uint64)
    return int(words[0] >> 2)


def start_model(environment: Mini) -> Qwen3ForCausalLM:
    """Return the policy of step 0: the warm start, flattened."""
    model = load(CHECKPOINT if environment.model == "mini" else environment.model)
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
    SyncError
        If the engine did not take the weights.
    """
    environment = experiment.environment
    if not isinstance(environment, Mini):
        raise ValueError(
            f"the real engine runs experiments on a real.settings.Mini, got {type(environment).__name__}"
        )
    if experiment.numerics.kind != "exact":
        raise ValueError(f"the real engine runs numerics 'exact', got {experiment.numerics.kind!r}")
    if resume and checkpoint is None:
        raise ValueError(
            "resume needs the folder to resume from, got checkpoint=None; pass checkpoint=FOLDER"
        )
    folder = None if checkpoint is None else Path(checkpoint)
    live = open_sampler(environment) if sampler is None else sampler
    try:
        return _Loop(experiment, environment, live, folder).run(on_step, resume=resume)
    finally:
        if sampler is None:
            live.close()


class _Loop:
    """One run in progress."""

    def __init__(
        self, experiment: Experiment, environment: Mini, sampler: Sampler, folder: Path | None
    ) -> None:
        self.experiment, self.environment, self.sampler, self.folder = (
            experiment,
            environment,
            sampler,
            folder,
        )
        self.initial = start_model(environment).requires_grad_(False)
        self.trainer = Trainer(
            copy.deepcopy(self.initial).requires_grad_(True),
            experiment.correction,
            lr=experiment.lr,
            minibatches=experiment.minibatches,
            top_k_row=environment.top_k_row,
        )
        self.updates_per_step = experiment.minibatches
        self.done = _Progress()

    def run(self, on_step: Callable[[StepRecord], None] | None, *, resume: bool) -> Run:
        """From the start, or from the checkpoint, to the last step."""
        if not (resume and self._restore()):
            self._sync()
            self._evaluate(rollout=None)
            self._save(None)
        stopped = None
        while self.done.step < self.experiment.steps:
            try:
                record = self._step()
            except Diverged as error:
                stopped = f"step {self.done.step}: {error}"
                self.done.step -= 1
                self._evaluate(rollout=None)
                break
            self.done.records.append(record)
            if on_step is not None:
                on_step(record)
            self._save(record)
        return Run(
            experiment=self.experiment,
            trace=trace_of(self.done.records),
            snapshots=self.done.snapshots,
            evaluations=self.done.evaluations,
            syncs=tuple(self.done.syncs),
            stopped=stopped,
        )

    def _step(self) -> StepRecord:
        """One batch, one update, its measures, and the sync that the rules ask for."""
        experiment, trainer = self.experiment, self.trainer
        self.done.step += 1
        step = self.done.step
        problems = countdown.problems(experiment.prompts, seed=draw_seed(experiment.seed, "problems", step))
        synced = trainer.synced
        clock = _Clock()
        rollout = self.sampler.sample(
            prompt_ids(problems), experiment.samples, draw_seed(experiment.seed, "responses", step)
        )
        seconds = {"seconds_sample": clock.lap()}
        reward_CN = rewards(rollout, problems)
        advantage_CN = advantages(reward_CN, baseline=experiment.baseline)
        used_version = trainer.version
        taken = trainer.step(rollout, advantage_CN)
        with torch.no_grad():
            logpi_BTV = row_logps(trainer.model, rollout.prompt_CP, rollout.response_BT)
        seconds["seconds_train"] = clock.lap()
        found = measures.lag_measures(rollout, taken.logpi_s_BTV, logpi_BTV)
        found |= {
            "reward": reward_CN.mean().item(),
            "update_norm": taken.update_norm,
            "lag_norm": trainer.lag_norm(),
            "synced": float(synced),
        }
        clock.lap()
        found |= self._evaluate(rollout=rollout)
        seconds["seconds_evaluate"] = clock.lap()
        found["resynced"] = self._sync_if_due(found)
        seconds["seconds_sync"] = clock.lap()
        finish = np.array(disk.FINISH_REASONS)[ended(rollout).numpy().astype(np.uint8)]
        return StepRecord(
            step=step,
            measures=found | seconds,
            tokens=measures.token_table(step, rollout, taken.logpi_s_BTV, logpi_BTV, advantage_CN),
            sequences=measures.sequence_table(step, rollout, reward_CN, finish, used_version),
        )

    def _sync_if_due(self, found: Mapping[str, float]) -> float:
        """Sync where the ESS rule or the schedule asks for it; 1.0 if it was the ESS rule."""
        rule, trainer = self.experiment.correction, self.trainer
        steps_since = (trainer.version - trainer.synced_version) // self.updates_per_step
        fires = should_resync(found[f"ess_{rule.resync_level}"], rule.resync_below)
        due = should_resync(1.0, 0.0, steps_since=steps_since, sync_every=self.experiment.sync_every)
        if fires or due:
            self._sync()
        return float(bool(fires))

    def _sync(self) -> None:
        trainer = self.trainer
        self.done.syncs.append(push(self.sampler, trainer.model, trainer.frozen, trainer.version))
        trainer.synced_version = trainer.version

    def _evaluate(self, *, rollout: Rollout | None) -> dict[str, float]:
        """Evaluate and keep the weights where the schedule asks for it; measures for the record."""
        step, environment = self.done.step, self.environment
        last = step == self.experiment.steps or (rollout is None and step > 0)
        if step % environment.eval_every and not last:
            return {}
        seed = draw_seed(self.experiment.seed, "evaluation", step)
        result = evaluate(self.trainer.model, environment, seed=seed, initial=self.initial)
        self.done.evaluations[step] = result
        self.done.snapshots[step] = Snapshot(
            weights=_cloned(self.trainer.model),
            sampler_weights=_cloned(self.trainer.frozen),
            prompt_CP=None if rollout is None else rollout.prompt_CP,
            response_BT=None if rollout is None else rollout.response_BT,
            mask_BT=None if rollout is None else rollout.mask_BT,
        )
        return {"accuracy": result.accuracy.value, "off_support": result.off_support}

    def _save(self, record: StepRecord | None) -> None:
        """Commit the step to the checkpoint, the state last."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        step = self.done.step
        if record is not None:
            disk.write_record(self.folder, record)
        if step in self.done.snapshots:
            disk.write_snapshot(self.folder, step, self.done.snapshots[step])
        trainer = self.trainer
        state = {
            "experiment": self.experiment.fingerprint(),
            "step": step,
            "version": trainer.version,
            "synced_version": trainer.synced_version,
            "evaluations": {s: dataclasses.asdict(e) for s, e in self.done.evaluations.items()},
            "syncs": [dataclasses.asdict(s) for s in self.done.syncs],
        }
        weights = disk.prefixed("model", trainer.model.state_dict())
        weights |= disk.prefixed("sampler", trainer.frozen.state_dict())
        disk.write(self.folder / "state.safetensors", weights, state)

    def _restore(self) -> bool:
        """Take up the state in the folder; False if there is none."""
        folder = self.folder
        if folder is None or not (folder / "state.safetensors").exists():
            return False
        weights, state = disk.read(folder / "state.safetensors")
        mine = self.experiment.fingerprint()
        if state["experiment"] != mine:
            raise ValueError(
                f"{folder} holds experiment {state['experiment']}, got {mine}; "
                "resume with the same settings, or choose another folder"
            )
        trainer, done = self.trainer, self.done
        done.step = state["step"]
        done.evaluations = {int(s): _evaluation(e) for s, e in state["evaluations"].items()}
        done.syncs = [SyncProof(**s) for s in state["syncs"]]
        done.records = [disk.read_record(folder, s) for s in range(1, done.step + 1)]
        done.snapshots = {s: disk.read_snapshot(folder, s) for s in done.evaluations}
        # the sampler gets the weights it held, not those the trainer has reached since
        trainer.model.load_state_dict(disk.unprefixed("sampler", weights))
        push(self.sampler, trainer.model, trainer.frozen, state["synced_version"])
        trainer.model.load_state_dict(disk.unprefixed("model", weights))
        trainer.version, trainer.synced_version = state["version"], state["synced_version"]
        return True


def _evaluation(data: dict[str, Any]) -> Evaluation:
    fields: dict[str, Any] = data | {"accuracy": Estimate(**data["accuracy"])}
    return Evaluation(**fields)


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
