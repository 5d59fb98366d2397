"""The run: what it reports, when it syncs, and that a killed one goes on bit for bit."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from real.checkpoint import STATE
from real.evaluate import kl_on_prefixes
from real.loop import draw_seed, run, start_model
from real.samplers.torch_sampler import TorchSampler
from real.settings import Mini, working_point_a, working_point_b
from theory.corrections import correction
from theory.experiment import Experiment, Numerics
from theory.faults import EngineFault
from theory.records import SEQUENCE_COLUMNS, STEP_COLUMNS, TOKEN_COLUMNS, StepRecord

SMALL = Mini(eval_every=2, eval_prompts=32, eval_samples=1)


def small(name="dlc", **changes):
    """A run of a second or two."""
    rule = changes.pop("rule", None) or correction(name)
    fields = {"environment": SMALL, "prompts": 8, "samples": 4, "steps": 5, "sync_every": 64, "seed": 3}
    return working_point_a(rule, **(fields | changes))


@pytest.fixture(scope="module")
def stale():
    return run(small())


@pytest.fixture(scope="module")
def synced():
    return run(small("is", sync_every=1))


def assert_same_run(a, b):
    """Bit for bit, but for the clock."""
    for table in ("steps", "tokens", "sequences"):
        one, other = getattr(a.trace, table), getattr(b.trace, table)
        assert one.keys() == other.keys()
        for name in one:
            if not name.startswith("seconds_"):
                equal_nan = one[name].dtype.kind == "f"
                assert np.array_equal(one[name], other[name], equal_nan=equal_nan), f"{table}.{name}"
    assert a.snapshots.keys() == b.snapshots.keys()
    for step, snapshot in a.snapshots.items():
        for field in ("weights", "sampler_weights"):
            one, other = getattr(snapshot, field), getattr(b.snapshots[step], field)
            assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert a.evaluations == b.evaluations


def test_every_step_reports_defined_columns_and_no_step_reports_an_unknown_one(stale):
    steps = stale.trace.steps
    assert steps["step"].tolist() == [1, 2, 3, 4, 5]
    always = set(STEP_COLUMNS) - {"ess_exact", "accuracy", "off_support"}
    assert always <= steps.keys()
    for name in always:
        assert np.isfinite(steps[name]).all(), name
    evaluated = np.isfinite(steps["accuracy"])
    assert steps["step"][evaluated].tolist() == [2, 4, 5]
    assert set(TOKEN_COLUMNS) == stale.trace.tokens.keys()
    assert set(SEQUENCE_COLUMNS) == stale.trace.sequences.keys()


def test_the_tables_agree_with_each_other_and_with_the_steps(stale):
    tokens, sequences, steps = stale.trace.tokens, stale.trace.sequences, stale.trace.steps
    assert len(sequences["step"]) == 5 * 8 * 4
    for step in (1, 4):
        t, s = tokens["step"] == step, sequences["step"] == step
        assert np.array_equal(np.bincount(tokens["sequence"][t]), sequences["length"][s])
        log_w = (tokens["logpi"][t].astype(np.float64) - tokens["logpi_s"][t])[tokens["mask"][t]]
        w = np.exp(log_w)
        at = steps["step"] == step
        assert steps["ess_token"][at] == pytest.approx(w.sum() ** 2 / (w.size * (w**2).sum()), rel=1e-9)
        assert steps["k2"][at] == pytest.approx(log_w.var(), rel=1e-9)
        assert steps["reward"][at] == pytest.approx(sequences["reward"][s].mean(), rel=1e-6)


def test_each_record_reaches_the_caller_once_and_in_order():
    seen: list[StepRecord] = []
    result = run(small(), on_step=seen.append)
    assert [r.step for r in seen] == [1, 2, 3, 4, 5]
    assert [r.measures["k2"] for r in seen] == result.trace.steps["k2"].tolist()


def test_the_same_seed_gives_the_same_run_whatever_the_global_random_state_is(stale):
    torch.manual_seed(77)
    np.random.seed(77)  # noqa: NPY002 - the global state is what must not matter
    assert_same_run(run(small()), stale)


def test_another_seed_gives_another_run_and_other_problems(stale):
    other = run(small(seed=4))
    assert other.trace.steps["k2"].tolist() != stale.trace.steps["k2"].tolist()
    assert not np.array_equal(other.trace.sequences["reward"], stale.trace.sequences["reward"])


def test_the_first_batch_does_not_depend_on_the_correction(stale, synced):
    """Runs of one seed are paired: same problems, same responses, until the weights differ."""
    for column in ("token", "logmu", "advantage"):
        first = [r.trace.tokens[column][r.trace.tokens["step"] == 1] for r in (stale, synced)]
        assert np.array_equal(*first)


def test_seeds_of_different_purposes_and_steps_are_different():
    seeds = {
        draw_seed(s, p, k)
        for s in range(4)
        for p in ("problems", "responses", "evaluation")
        for k in range(9)
    }
    assert len(seeds) == 4 * 3 * 9
    assert all(0 <= s < 2**62 for s in seeds)


def test_a_schedule_of_one_syncs_after_every_step(synced):
    assert synced.trace.steps["synced"].tolist() == [1] * 5
    assert synced.trace.steps["resynced"].tolist() == [0] * 5
    assert [s.version for s in synced.syncs] == [0, 1, 2, 3, 4, 5]
    assert (
        synced.trace.sequences["sampler_version"].tolist()
        == synced.trace.sequences["trainer_version"].tolist()
    )


def test_a_schedule_of_two_syncs_after_every_second_step():
    result = run(small("is", sync_every=2))
    assert result.trace.steps["synced"].tolist() == [1, 0, 1, 0, 1]
    assert [s.version for s in result.syncs] == [0, 2, 4]


def test_a_schedule_counts_steps_and_not_minibatches():
    result = run(small("is", sync_every=2, minibatches=2, steps=4))
    assert result.trace.steps["synced"].tolist() == [1, 0, 1, 0]
    assert [s.version for s in result.syncs] == [0, 4, 8]


def test_a_stale_sampler_keeps_its_weights_and_lag_grows(stale):
    assert stale.trace.steps["synced"].tolist() == [1, 0, 0, 0, 0]
    assert set(stale.trace.sequences["sampler_version"]) == {0}
    assert stale.trace.sequences["trainer_version"].tolist() == np.repeat(range(5), 32).tolist()
    lag = stale.trace.steps["lag_norm"]
    assert (np.diff(lag) > 0).all()
    start = stale.snapshots[0].weights
    last = stale.snapshots[5]
    assert all(torch.equal(t, start[n]) for n, t in last.sampler_weights.items())
    assert not all(torch.equal(t, start[n]) for n, t in last.weights.items())


def test_the_ess_rule_syncs_when_and_only_when_ess_is_below_its_threshold():
    calm = run(small(rule=correction("is", resync_below=0.01), lr=0.02))
    eager = run(small(rule=correction("is", resync_below=1.0)))
    assert calm.trace.steps["resynced"].tolist() == [0] * 5
    ess, resynced = eager.trace.steps["ess_token"], eager.trace.steps["resynced"]
    assert resynced.tolist() == (ess < 1).astype(float).tolist() == [1] * 5
    assert eager.trace.steps["synced"].tolist() == [1] * 5
    by_response = run(small(rule=correction("is", resync_below=0.9, resync_level="sequence")))
    steps = by_response.trace.steps
    assert steps["resynced"].tolist() == (steps["ess_sequence"] < 0.9).astype(float).tolist()


def test_an_exact_sampler_has_no_discrepancy_and_a_rounding_one_has(synced):
    assert synced.trace.steps["discrepancy_rms"].max() < 1e-5
    rough = run(small("is", sync_every=1, steps=2, numerics=Numerics(kind="fp8")))
    assert (rough.trace.steps["discrepancy_rms"] > 1e-2).all()


def test_a_diverging_run_stops_with_its_reason_and_its_last_finite_weights(tmp_path):
    result = run(small("pg", lr=1e30), checkpoint=tmp_path)
    assert result.stopped is not None
    assert "not finite" in result.stopped
    last = max(result.snapshots)
    assert last == len(result.trace.steps["step"]) < 5
    assert all(torch.isfinite(t).all() for t in result.snapshots[last].weights.values())
    again = run(small("pg", lr=1e30), checkpoint=tmp_path, resume=True)
    assert again.stopped == result.stopped


class Dying(TorchSampler):
    """A sampler that dies at its third batch, or hands over a row no distribution has."""

    def __init__(self, *, poison: bool) -> None:
        super().__init__()
        self.poison, self.batches = poison, 0

    def sample(self, prompt_CP, samples, seed):
        self.batches += 1
        if self.batches == 3 and not self.poison:
            self.close()
            raise RuntimeError("engine core is dead\nlong traceback")
        rollout = super().sample(prompt_CP, samples, seed)
        if self.batches == 3:
            rollout.logmu_BTV[0, 0] = float("nan")
        return rollout


@pytest.mark.parametrize(("poison", "said"), [(False, "died: RuntimeError: engine"), (True, "be finite")])
def test_a_faulty_sampler_is_named_and_the_run_goes_on_bit_for_bit(tmp_path, stale, poison, said):
    with pytest.raises(EngineFault, match=said) as fault:
        run(small(), checkpoint=tmp_path, sampler=Dying(poison=poison))
    assert "\n" not in str(fault.value)
    assert_same_run(run(small(), checkpoint=tmp_path, resume=True), stale)


def test_a_gradient_broken_once_by_the_machine_does_not_end_the_run_for_good(tmp_path, stale, monkeypatch):
    from real import loop

    class Poisoned(loop.Trainer):
        def step(self, rollout, advantage_CN):
            if self.version == 2:
                next(self.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
            return super().step(rollout, advantage_CN)

    with monkeypatch.context() as faulty:
        faulty.setattr(loop, "Trainer", Poisoned)
        stopped = run(small(), checkpoint=tmp_path)
    assert stopped.stopped is not None
    assert len(stopped.trace.steps["step"]) == 2
    assert_same_run(run(small(), checkpoint=tmp_path, resume=True), stale)


def test_the_batch_kept_with_a_snapshot_gives_the_distance_on_the_samplers_prefixes(stale):
    from real.samplers.base import Rollout

    snapshot = stale.snapshots[5]
    trainer, sampler = start_model(SMALL), start_model(SMALL)
    trainer.load_state_dict(snapshot.weights)
    sampler.load_state_dict(snapshot.sampler_weights)
    assert snapshot.prompt_CP is not None
    assert snapshot.response_BT is not None
    assert snapshot.mask_BT is not None
    shape = (*snapshot.response_BT.shape, 20)
    rollout = Rollout(
        prompt_CP=snapshot.prompt_CP,
        response_BT=snapshot.response_BT,
        mask_BT=snapshot.mask_BT,
        logmu_BTV=torch.zeros(shape),
        version=0,
    )
    assert kl_on_prefixes(sampler, trainer, rollout) == pytest.approx(
        stale.trace.steps["kl_sampler"][-1], rel=1e-4
    )


def test_a_live_sampler_serves_several_runs_and_is_left_open(stale):
    sampler = TorchSampler()
    run(small("pg", lr=0.5, steps=2), sampler=sampler)
    assert_same_run(run(small(), sampler=sampler), stale)


KILLED = """
    import sys
    from test_real_loop import small
    from real.loop import run

    run(small(), checkpoint=sys.argv[1], on_step=lambda r: print(r.step, flush=True))
"""


@pytest.mark.parametrize("after", [1, 3])
def test_a_run_killed_at_any_moment_goes_on_bit_for_bit(tmp_path, stale, after):
    """SIGKILL leaves no time to tidy up; a record is printed before its step is committed."""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        cwd=here.parent,
        env={"PYTHONPATH": f"{here.parent}:{here}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        for _ in range(after):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    resumed = run(small(), checkpoint=tmp_path, resume=True)
    assert_same_run(resumed, stale)
    assert_same_run(run(small(), checkpoint=tmp_path, resume=True), stale)


def test_resuming_under_a_schedule_keeps_the_count_of_steps_since_the_sync(tmp_path):
    experiment = small("is", sync_every=3, steps=5)
    whole = run(experiment)

    class Stop(Exception):
        pass

    def stop(record):
        if record.step == 3:
            raise Stop

    with pytest.raises(Stop):
        run(experiment, checkpoint=tmp_path, on_step=stop)
    resumed = run(experiment, checkpoint=tmp_path, resume=True)
    assert_same_run(resumed, whole)
    assert [s.version for s in resumed.syncs] == [s.version for s in whole.syncs]


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    run(small(steps=1), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="holds experiment") as caught:
        run(small(steps=1, seed=9), checkpoint=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


FILES = (STATE, "step-00001.safetensors", "snapshot-00000.safetensors")
# a missing state is no damage: that folder has no run, which starts at the beginning
DAMAGES = [(n, d) for n in FILES for d in ("cut", "gone", "noise") if (n, d) != (STATE, "gone")]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_corrupt_folder_is_named_in_one_line(tmp_path, name, damage):
    run(small(steps=1), checkpoint=tmp_path)
    file = tmp_path / name
    whole = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(whole[: len(whole) // 2])
        case "gone":
            file.unlink()
        case "noise":
            file.write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match=name) as caught:
        run(small(steps=1), checkpoint=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_resuming_from_nowhere_is_refused_and_an_empty_folder_starts_at_the_beginning(tmp_path, stale):
    with pytest.raises(ValueError, match="pass checkpoint=FOLDER"):
        run(small(), resume=True)
    assert_same_run(run(small(), checkpoint=tmp_path / "new", resume=True), stale)


def test_an_environment_of_another_engine_and_unknown_numerics_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Toy:
        pass

    with pytest.raises(ValueError, match=r"real\.settings\.Mini, got Toy"):
        run(Experiment(environment=Toy(), correction=correction("is"), lr=0.1))
    with pytest.raises(ValueError, match="no numerics 'laplace'"):
        run(small(numerics=Numerics(kind="laplace", scale=0.1)))


def test_the_two_working_points_differ_in_baseline_and_rate_alone():
    a, b = (point(correction("sc"), seed=5) for point in (working_point_a, working_point_b))
    assert (a.lr, a.baseline, b.lr, b.baseline) == (0.15, "none", 0.3, "group")
    assert dataclasses.replace(b, lr=a.lr, baseline=a.baseline) == a


@pytest.mark.vllm
def test_a_run_on_vllm_reports_what_a_run_on_torch_does(vllm_engine):
    experiment = small(environment=dataclasses.replace(SMALL, sampler="vllm"), sync_every=2)
    result = run(experiment, sampler=vllm_engine)
    assert result.trace.steps["discrepancy_rms"].max() < 1e-5
    assert max(s.rms for s in result.syncs) < 5e-6
    assert [s.version for s in result.syncs] == [0, 2, 4]
    twin = run(small(sync_every=2))
    assert result.trace.steps.keys() == twin.trace.steps.keys()
    again = run(experiment, sampler=vllm_engine)
    assert_same_run(again, result)


@pytest.mark.vllm
def test_a_run_on_vllm_resumes_bit_for_bit(vllm_engine, tmp_path):
    experiment = small(environment=dataclasses.replace(SMALL, sampler="vllm"), sync_every=2)
    whole = run(experiment, sampler=vllm_engine)

    class Stop(Exception):
        pass

    def stop(record):
        if record.step == 4:
            raise Stop

    with pytest.raises(Stop):
        run(experiment, checkpoint=tmp_path, on_step=stop, sampler=vllm_engine)
    assert_same_run(run(experiment, checkpoint=tmp_path, resume=True, sampler=vllm_engine), whole)
