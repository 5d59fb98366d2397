"""The gated trainer: verl's own step with stand-ins for its queue, workers and buffer; the launch's settings.

The stand-in worker is a position-wise softmax table that calls the actor's loss by verl's protocol, logits
first.

Suffixes: V vocabulary, T response tokens.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_cpu,real.verl.plugin")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
pytest.importorskip("verl", reason="verl is not installed here; `make test-integrations` installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # verl's own imports warn in many ways

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl names each engine that is not installed
    import real.verl.trainer as gated

import torch  # noqa: E402
import verl.trainer.ppo.v1.trainer_base as base  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torch import Tensor  # noqa: E402
from transfer_queue import KVBatchMeta  # noqa: E402
from verl.trainer.ppo.v1 import get_trainer_cls  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402

from real.verl import launch, task  # noqa: E402
from real.verl.actor_loss import ROW_IDS, ROW_LOGMU, ActorLoss  # noqa: E402
from real.verl.topk import TopKAgentLoopManager, TopKAgentLoopWorker, engine_rows  # noqa: E402

V, T = 8, 6
COLUMNS = 5


def nested(parts: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


class Queue:
    """verl's TransferQueue, as a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Tensor]] = {}
        self.meta: Any = None

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        for name in list(fields.keys()):
            for i, key in enumerate(keys):
                self.rows.setdefault(key, {})[name] = fields[name][i].clone()
        return self.meta

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        found = {
            name: nested([self.rows[key][name] for key in keys])
            for name in select_fields
            if all(name in self.rows[key] for key in keys)
        }
        return TensorDict(found, batch_size=len(keys))

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.rows[key]


class Workers:
    """The actor: one softmax for each position of a response, plain SGD."""

    def __init__(self, queue: Queue, lr: float) -> None:
        self.queue, self.lr = queue, lr
        self.z_TV = torch.zeros(T, V)
        self.saved: dict[str, Tensor] = {}
        self.loss: Any = None
        self.scored = 0

    def set_loss_fn(self, loss: ActorLoss) -> None:
        self.loss = loss

    def save_model_to_cpu(self, name: str) -> None:
        self.saved[name] = self.z_TV.clone()

    def restore_model_from_cpu(self, name: str) -> None:
        self.z_TV = self.saved[name].clone()

    def clear_cpu_model(self, name: str) -> None:
        del self.saved[name]

    def _data(self, batch: Any) -> Any:
        names = set.intersection(*(set(self.queue.rows[k]) for k in batch.keys))
        fields = {n: nested([self.queue.rows[k][n] for k in batch.keys]) for n in sorted(names)}
        info = {"dp_size": 1, "batch_num_tokens": len(batch.keys) * T, "global_batch_size": len(batch.keys)}
        return tu.get_tensordict(fields, non_tensor_dict=info)

    def _forward(self, z_TV: Tensor, data: Any, *, logits: bool) -> dict[str, Tensor]:
        """Nest outputs over prompt and response as verl does: one prompt token, T of the response."""
        sequences, offsets = data["input_ids"].unbind(), data["input_ids"].offsets()
        every_NV = torch.cat([torch.cat([z_TV, torch.zeros(1, V)]) for _ in sequences])
        out = {}
        if logits:
            got = self.loss(student_logits=every_NV[None], data=data)
            out = {k: torch.nested.nested_tensor_from_jagged(v[0], offsets) for k, v in got.items()}
        following_N = torch.roll(data["input_ids"].values(), -1)
        logp_N = every_NV.log_softmax(-1).gather(-1, following_N[:, None])[:, 0]
        return out | {"log_probs": torch.nested.nested_tensor_from_jagged(logp_N, offsets)}

    def compute_log_prob(self, batch: Any) -> Any:
        self.scored += 1
        info = batch.extra_info
        with torch.no_grad():
            data = self._data(batch)
            asked = info.get("distillation_use_topk", False)
            assert not asked or info["compute_loss"], "verl only calls a loss it was asked to compute"
            out = self._forward(self.z_TV, data, logits=asked)
            if info["compute_loss"]:
                assert self.loss(model_output=out, data=data) == (torch.zeros(()), {})
        for i, key in enumerate(batch.keys):
            self.queue.rows[key] |= {name: x.unbind()[i].clone() for name, x in out.items()}
            self.queue.rows[key]["entropy"] = torch.zeros(T + 1)
        return batch

    def update_actor(self, batch: Any) -> dict[str, Any]:
        z_TV = self.z_TV.clone().requires_grad_()
        data = self._data(batch)
        out = self._forward(z_TV, data, logits=batch.extra_info["distillation_use_topk"])
        loss, metrics = self.loss(model_output=out, data=data)
        loss.backward()
        assert z_TV.grad is not None
        self.z_TV = (z_TV - self.lr * z_TV.grad).detach()
        norm = float(z_TV.grad.norm())
        return {"metrics": metrics | {"mfu": [0.0], "grad_norm": [norm], "lr": [self.lr]}}


class Buffer:
    """Batches in flight: what the trainer gets was sampled some steps ago, by the weights of then."""

    def __init__(
        self, queue: Queue, sampler: dict[str, Any], *, in_flight: int, parts: int, size: int
    ) -> None:
        self.queue, self.sampler, self.in_flight = queue, sampler, in_flight
        self.parts, self.size = parts, size
        self.ready: list[tuple[list[str], list[dict[str, int]]]] = []
        self.count = 0
        self.generator = torch.Generator().manual_seed(0)

    def generate(self) -> None:
        logmu_TV, version, keys = self.sampler["z"].log_softmax(-1), self.sampler["version"], []
        for _ in range(self.size // self.parts):
            key, self.count = f"sample-{self.count}", self.count + 1
            response = torch.multinomial(logmu_TV.exp(), 1, generator=self.generator)[:, 0]
            prompt = torch.zeros(1, dtype=torch.long)
            top = logmu_TV.topk(COLUMNS, -1)
            ones = torch.ones(T, dtype=torch.long)
            self.queue.rows[key] = {
                "prompts": prompt,
                "responses": response,
                "input_ids": torch.cat([prompt, response]),
                "response_mask": ones,
                "rollout_log_probs": logmu_TV[torch.arange(T), response],
                ROW_IDS: torch.cat([top.indices, torch.zeros(1, COLUMNS, dtype=torch.long)]).to(torch.int32),
                ROW_LOGMU: torch.cat([top.values, torch.zeros(1, COLUMNS)]),
            }
            keys.append(key)
        tag = {"min_global_steps": version, "max_global_steps": version}
        self.ready.append((keys, [dict(tag) for _ in keys]))

    def sample(self, **request: Any) -> tuple[Any, dict]:
        while len(self.ready) < self.parts + self.in_flight:
            self.generate()
        keys, tags = [], []
        for _ in range(self.parts):
            k, t = self.ready.pop(0)
            keys, tags = keys + k, tags + t
        self.queue.meta = KVBatchMeta(partition_id="train", keys=keys, tags=tags, extra_info={})
        return self.queue.meta, {}


def configured(
    correction: str = "is",
    *,
    sampler: str = "gated",
    resync_below: float = 0.5,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    settings = launch.Settings(sampler=sampler, correction=correction, resync_below=resync_below, prompts=64)  # type: ignore[arg-type]
    more = [f"{name}={value}" for name, value in changes.items()]
    chosen = launch.overrides(settings)
    return launch.compose([*chosen, f"+actor_rollout_ref.actor.policy_loss.top_k={COLUMNS}", *more])


def run(
    monkeypatch: pytest.MonkeyPatch,
    config: Any,
    *,
    steps: int,
    lr: float = 100.0,
    in_flight: int = 1,
    parts: int = 1,
    size: int = 64,
) -> SimpleNamespace:
    """Drive the real trainer class through `steps` of verl's own loop body."""
    queue = Queue()
    workers = Workers(queue, lr)
    sampler: dict[str, Any] = {"z": workers.z_TV.clone(), "version": 0}
    pushes: list[int] = []

    class Engine:
        def update_weights(self, global_steps: int) -> dict:
            pushes.append(global_steps)
            sampler.update(z=workers.z_TV.clone(), version=global_steps)
            return {}

    def small_init(self: Any, config: Any) -> None:
        self.config, self.parameter_sync_step, self.global_steps = config, 1, 0
        self.use_reference_policy = self.use_critic = False
        self.timing_raw, self.prev_step_profile = {}, False
        self.replay_buffer = Buffer(queue, sampler, in_flight=in_flight, parts=parts, size=size)

    def advantage(batch: Any, metrics: dict) -> Any:
        for key in batch.keys:
            row = queue.rows[key]
            row["advantages"] = ((row["responses"] == 3).float().mean() - 0.3).expand(T).clone()
        return batch

    for module in (base, gated):
        monkeypatch.setattr(module, "tq", queue)
    monkeypatch.setattr(base, "calculate_debug_metrics", lambda data: {})
    monkeypatch.setattr(base.PPOTrainer, "__init__", small_init)
    job = get_trainer_cls("lag_gated")(config)
    job.actor_rollout_wg, job.standalone_checkpoint_manager = workers, Engine()
    job.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[1])
    job.current_mode = None
    job._balance_batch = lambda batch, metrics: batch
    job._compute_advantage = advantage
    job._add_batch_to_generate = lambda: None
    job.on_init_end()
    seen = SimpleNamespace(pushes=pushes, workers=workers, job=job, metrics=[], worst=0.0, queue=queue)
    for step in range(1, steps + 1):
        job.global_steps, metrics = step, {}
        job.on_step_begin()
        batch = job.step(metrics, job.timing_raw)
        live = workers.z_TV.clone()
        for key in batch.keys:
            row = queue.rows[key]
            seen.worst = max(seen.worst, (row["old_log_probs"] - row["rollout_log_probs"]).abs().max().item())
        job.on_step_end()
        metrics.update(job._consume_sync_metrics())
        assert torch.equal(live, workers.z_TV), "scoring old versions left the trainer's weights alone"
        seen.metrics.append(metrics | {"versions": sorted({t["max_global_steps"] for t in batch.tags})})
        queue.kv_clear(batch.keys, "train")
    return seen


def test_the_trainer_is_found_by_its_mode() -> None:
    assert get_trainer_cls("lag_gated") is gated.LagGatedTrainer


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_one_push_is_not_followed_by_another_before_its_samples_arrive(monkeypatch, in_flight: int) -> None:
    seen = run(monkeypatch, configured(), steps=12, in_flight=in_flight)
    fired = [p for p in seen.pushes if p > 0]
    assert fired, "the lag fired at all"
    assert all(later - earlier > in_flight for earlier, later in pairwise(fired)), seen.pushes


@pytest.mark.parametrize(("in_flight", "parts"), [(1, 1), (2, 1), (1, 2)])
def test_every_sample_is_corrected_with_the_weights_that_sampled_it(
    monkeypatch, in_flight: int, parts: int
) -> None:
    seen = run(monkeypatch, configured(), steps=12, in_flight=in_flight, parts=parts)
    assert len(seen.pushes) > 1
    assert any(len(m["versions"]) > 1 for m in seen.metrics) or parts == 1
    # the engine has no numerics of its own here, so pi_s must be mu bit for bit
    assert seen.worst == 0.0
    assert all(m["lag/version_missing"] == 0 for m in seen.metrics)
    assert set(seen.workers.saved) <= {f"lag-{p}" for p in seen.pushes[-gated.KEPT_VERSIONS :]}


def test_the_decisions_are_those_of_the_rule_on_the_logged_series(monkeypatch) -> None:
    seen = run(monkeypatch, configured(), steps=12, in_flight=0)
    for m in seen.metrics:
        assert m["lag/pushed"] == float(m["lag/ess_token"] < 0.5)
        assert m["lag/discrepancy_rms"] < 1e-6, "numerics stay apart from lag"


def test_the_monitor_can_be_asked_in_place_of_the_plain_ess(monkeypatch) -> None:
    change = {"+trainer.v1.lag_gated.trigger.ess_below": 0.8}
    seen = run(monkeypatch, configured(sampler="stale", changes=change), steps=12, in_flight=0)
    assert len(seen.pushes) > 1
    for m in seen.metrics:
        assert m["lag/pushed"] == float(m["lag/ess_corrected"] < 0.8 or m["lag/missing_mass"] > 0.1)
    with pytest.raises(ValueError, match="measure=forward"):
        configured(changes=change | {"trainer.v1.lag_gated.measure": "loss"})


def test_without_movement_there_is_no_lag_and_no_push(monkeypatch) -> None:
    seen = run(monkeypatch, configured(), steps=6, lr=0.0)
    assert seen.pushes == [0]
    assert all(m["lag/ess_token"] == pytest.approx(1.0) for m in seen.metrics)


def test_the_stale_sampler_is_pushed_by_its_schedule_alone(monkeypatch) -> None:
    config = configured(sampler="stale", changes={"trainer.v1.lag_gated.sync_every": 5})
    seen = run(monkeypatch, config, steps=11, in_flight=0)
    assert seen.pushes == [0, 5, 10]
    assert min(m["lag/ess_token"] for m in seen.metrics) < 0.5, "the control: here the lag would have fired"


def test_dlc_runs_through_the_same_forwards_and_learns_what_is_rewarded(monkeypatch) -> None:
    plain = run(monkeypatch, configured("is"), steps=8, in_flight=0)
    centred = run(monkeypatch, configured("dlc"), steps=8, in_flight=0)
    assert centred.worst == 0.0
    per_step = centred.workers.scored / len(centred.metrics)
    assert per_step == plain.workers.scored / len(plain.metrics), "centring costs no forward"
    assert centred.workers.z_TV.softmax(-1)[:, 3].mean() > 0.4, "token 3 is what is rewarded"


def test_the_cheap_measure_is_that_of_the_weights_before_the_update(monkeypatch) -> None:
    config = configured(sampler="stale", changes={"trainer.v1.lag_gated.measure": "loss"})
    cheap = run(monkeypatch, config, steps=4, in_flight=0)
    exact = run(monkeypatch, configured(sampler="stale"), steps=4, in_flight=0)
    assert cheap.metrics[0]["lag/ess_token"] == pytest.approx(1.0), (
        "nothing has moved before the first update"
    )
    assert exact.metrics[0]["lag/ess_token"] < 0.999
    assert cheap.workers.scored == exact.workers.scored / 2


def test_the_trace_is_written_with_all_three_policies(monkeypatch, tmp_path: Path) -> None:
    import orjson

    file = tmp_path / "trace.jsonl"
    config = configured(changes={"+trainer.v1.lag_gated.dump": file})
    seen = run(monkeypatch, config, steps=3, in_flight=0, size=8)
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert len(lines) == 24
    last = [line for line in lines if line["step"] == 3]
    gap = [s - p for line in last for s, p in zip(line["logp_pi_s"], line["logp_pi"], strict=True)]
    rms = (sum(x * x for x in gap) / len(gap)) ** 0.5
    assert rms == pytest.approx(seen.metrics[2]["lag/lag_rms"], rel=1e-5)
    assert {line["version"] for line in last} <= set(seen.pushes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trainer.v1.separate_async.parameter_sync_step", "2"),
        ("trainer.v1.sampler.max_off_policy_threshold", "8"),
        ("actor_rollout_ref.hybrid_engine", "true"),
        ("algorithm.rollout_correction.bypass_mode", "true"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "true"),
        ("actor_rollout_ref.actor.ppo_epochs", "2"),
        ("trainer.v1.lag_gated.measure", "nothing"),
    ],
)
def test_a_setting_that_would_break_the_rule_is_refused_by_name(setting: str, value: str) -> None:
    with pytest.raises(ValueError, match=setting.rsplit(".", 1)[1]):
        configured(changes={setting: value})


@pytest.mark.parametrize(("setting", "value"), [("temperature", "0.7"), ("top_p", "0.9")])
def test_a_centred_row_needs_the_distribution_the_engine_reports(setting: str, value: str) -> None:
    with pytest.raises(ValueError, match=setting):
        configured("dlc", changes={f"actor_rollout_ref.rollout.{setting}": value})
    configured("is", changes={f"actor_rollout_ref.rollout.{setting}": value})


@pytest.mark.parametrize("sampler", launch.SAMPLERS)
@pytest.mark.parametrize("correction", ["dlc", "is", "sc", "pg", "clip-on-lag"])
def test_the_installed_verl_accepts_the_settings_of_the_launch(sampler: str, correction: str) -> None:
    config = configured(correction, sampler=sampler)
    assert config.trainer.v1.trainer_mode == "lag_gated"
    assert (config.actor_rollout_ref.rollout.quantization == "fp8") == sampler.startswith("fp8")


def test_a_setting_verl_does_not_have_is_one_line() -> None:
    with pytest.raises(ValueError, match="does not accept"):
        configured(changes={"trainer.nonsense": 1})


def test_the_reward_is_that_of_the_verifier() -> None:
    truth = {"numbers": [2, 8, 1], "target": 10}
    scores = {
        "Sure: <answer>2/1 + 8</answer>": 1.0,
        "<answer>2+8</answer>": -1.0,
        "<answer>10</answer> no, <answer>(2/1)+8</answer>": 1.0,
        "2/1+8": -1.0,
        "<answer>__import__('os')</answer>": -1.0,
    }
    for text, wanted in scores.items():
        assert task.compute_score(task.SOURCE, text, truth) == wanted, text


def test_the_files_of_the_task_are_what_verl_reads(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    train, test = task.write(tmp_path)
    rows = pq.read_table(test).to_pylist()
    assert len(pq.read_table(train)) == task.TRAIN_PROBLEMS
    assert rows[0]["prompt"][0]["role"] == "user"
    assert (
        task.compute_score(rows[0]["data_source"], "nothing", rows[0]["reward_model"]["ground_truth"]) == -1.0
    )


def test_the_engines_row_is_asked_for_as_a_prompt_and_checked(monkeypatch) -> None:
    import asyncio

    from verl.workers.rollout.llm_server import LLMServerClient

    asked: dict[str, Any] = {}

    async def generate(
        self: Any, request_id: str, *, prompt_ids: list[int], sampling_params: dict, **_: Any
    ) -> Any:
        asked.update(sampling_params)
        width = asked["give"] if "give" in asked else sampling_params["prompt_logprobs"]
        rows = [[float(-k) for k in range(width)] for _ in prompt_ids]
        return SimpleNamespace(
            extra_fields={"prompt_ids": [[1] * width for _ in rows], "prompt_logprobs": rows}
        )

    monkeypatch.setattr(LLMServerClient, "generate", generate)
    ids, logps = asyncio.run(engine_rows(object(), [5, 6, 7], 4))
    assert asked["prompt_logprobs"] == 4
    assert ids.shape == logps.shape == (3, 4)
    asked["give"] = 2
    with pytest.raises(ValueError, match="max_logprobs"):
        asyncio.run(engine_rows(object(), [5, 6, 7], 4))


def test_the_agent_loop_is_verls_with_one_method_replaced() -> None:
    own = [name for name in vars(TopKAgentLoopWorker) if not name.startswith("__")]
    assert own == ["_compute_teacher_logprobs"]
    assert hasattr(TopKAgentLoopWorker.__mro__[1], "_compute_teacher_logprobs"), (
        "verl still has the place for it"
    )
    assert TopKAgentLoopManager.__mro__[1].__name__ == "AgentLoopManagerTQ"
