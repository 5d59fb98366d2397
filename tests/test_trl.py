"""TRL 1.16 with the core on the mini-Qwen3: gradients, a held sampler, the push, the trace, a collapse.

Runs where trl is installed (`make test-integrations`).

Suffixes: B responses, T response tokens, K columns, V vocabulary.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from real import process

process.prepare()
pytest.importorskip("trl", reason="trl is not installed here; `make test-integrations` installs it")
pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # TRL warns of vLLM's version, transformers of its own arguments

import orjson  # noqa: E402
import torch  # noqa: E402
from tolerances import OTHER_LIBRARY_FLOAT32  # noqa: E402
from torch import Tensor  # noqa: E402

from real.trl import countdown  # noqa: E402
from real.trl.countdown import Settings  # noqa: E402
from real.trl.gate import HoldSampler, ess_of_last_batch  # noqa: E402
from real.trl.rows import from_lists  # noqa: E402
from theory.arrays import log_remainder  # noqa: E402
from theory.centering import coefficients, surrogate  # noqa: E402
from theory.corrections import Logps, correction  # noqa: E402
from theory.ess import ess_fraction, response_ess  # noqa: E402
from theory.trigger import Trigger  # noqa: E402

HAS_VLLM = find_spec("vllm") is not None


def small(**changes: Any) -> Settings:
    """A run of seconds: 8 prompts of 4, no evaluation before the end."""
    fields = {"prompts": 8, "samples": 4, "steps": 3, "eval_every": 100, "eval_prompts": 8, "lr": 0.5}
    return Settings(**fields | changes)


class Spy:
    """Records each training batch, the loss of it and its gradient, as TRL takes them."""

    def __init__(self, job: Any) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        plain = job._compute_loss

        def spied(model: Any, inputs: dict[str, Any]) -> Tensor:
            loss = plain(model, inputs)
            if job.model.training:
                named = dict(model.named_parameters())
                found = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
                self.inputs.append(dict(inputs))
                self.gradients.append(dict(zip(named, found, strict=True)))
                self.weights.append({n: p.detach().clone() for n, p in named.items()})
            return loss

        job._compute_loss = spied


def rows_of(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Rows of the whole vocabulary at the response tokens, (B, T, V), by transformers alone."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=attended).logits
    return torch.log_softmax(logits[:, inputs["prompt_ids"].shape[1] - 1 : -1].float(), -1)


def whole_row_gradient(job: Any, spy: Spy, step: int, name: str) -> tuple[dict[str, Tensor], float]:
    """Gradient of the core's loss on whole rows at a recorded step, and the step's largest lag in nats."""
    inputs, model = spy.inputs[step], job._plain_model()
    model.load_state_dict(spy.weights[step], strict=False)
    model.tie_weights()
    pi_BTV = rows_of(model, inputs)
    with torch.no_grad(), job._sampler_weights() as held:
        pi_s_BTV = rows_of(held, inputs)
    tokens, mask = inputs["completion_ids"][..., None], inputs["completion_mask"].bool()
    pi_BT, pi_s_BT = pi_BTV.gather(-1, tokens)[..., 0], pi_s_BTV.gather(-1, tokens)[..., 0]
    # the torch sampler has no numerics of its own: mu is pi_s, over the whole vocabulary
    constants = coefficients(
        correction(name),
        Logps(pi_s_BT, pi_s_BT, pi_BT.detach()),
        inputs["advantages"][:, None].expand(pi_BT.shape),
        mask=mask,
        row=Logps(pi_s_BTV, pi_s_BTV, pi_BTV.detach()),
    )
    loss = -surrogate(constants, pi_BT, pi_BTV)[mask].sum() / mask.sum()
    named = dict(model.named_parameters())
    found = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    return found, float((pi_BT - pi_s_BT)[mask].abs().max())


def relative_error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    largest = max(float(g.abs().max()) for g in wanted.values())
    return max(float((got[n] - g).abs().max()) for n, g in wanted.items()) / largest


@pytest.mark.parametrize("name", ["dlc", "sc", "is-sc", "is", "tis", "pg"])
def test_the_gradient_in_a_stale_step_is_the_cores_on_whole_rows(tmp_path: Path, name: str) -> None:
    job = countdown.trainer(small(correction=name, resync_below=0.0), tmp_path)
    spy = Spy(job)
    job.train()
    wanted, lag = whole_row_gradient(job, spy, -1, name)
    error = relative_error(spy.gradients[-1], wanted)
    print(f"{name}: largest gradient error {error:.2g} of the largest entry, at lags up to {lag:.2g} nats")
    assert lag > 1e-2, "the control: the step is stale"
    assert error <= OTHER_LIBRARY_FLOAT32["rtol"]


def test_a_row_cut_to_its_top_columns_folds_the_rest_into_them(tmp_path: Path) -> None:
    job = countdown.trainer(small(correction="dlc", resync_below=0.0, steps=2), tmp_path)
    job.top_k = 6
    spy = Spy(job)
    job.train()
    assert spy.inputs[0]["row_ids"].shape[-1] == 6
    left = log_remainder(spy.inputs[0]["row_logmu"])[spy.inputs[0]["completion_mask"].bool()]
    assert left.exp().max() > 1e-3, "the control: there was a tail to fold"
    wanted, lag = whole_row_gradient(job, spy, 0, "dlc")
    assert lag < 1e-5, "on policy, where the tail has the trainer's own shape"
    error = relative_error(spy.gradients[0], wanted)
    print(f"6 of 20 columns: largest gradient error {error:.2g} of the largest entry")
    # the mass of the tail is one minus a sum near one: it carries that sum's rounding
    assert error <= 50 * OTHER_LIBRARY_FLOAT32["rtol"]


def test_a_held_sampler_keeps_its_weights_and_numerics_stay_apart_from_lag(tmp_path: Path) -> None:
    job = countdown.trainer(small(resync_below=0.0, steps=4), tmp_path)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    assert [e["lag/steps_since_sync"] for e in log] == [1, 2, 3, 4]
    assert all(e["lag/discrepancy_rms"] < 1e-5 for e in log), "mu is pi_s: no numerics"
    assert log[-1]["lag/lag_rms"] > log[0]["lag/lag_rms"] > 1e-3


def test_a_sampler_pushed_each_step_has_only_the_last_updates_lag(tmp_path: Path) -> None:
    job = countdown.trainer(small(resync_below=0.0, sync_every=1, steps=4), tmp_path)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    assert [e["lag/steps_since_sync"] for e in log] == [1, 1, 1, 1]


def test_the_push_follows_the_logged_ess(tmp_path: Path) -> None:
    job = countdown.trainer(small(correction="pg", resync_below=0.9, steps=8, lr=1.0), tmp_path)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    held = 0
    for entry in log:
        held += 1
        assert entry["lag/steps_since_sync"] == held
        assert entry["lag/resynced"] == float(entry["lag/ess_token"] < 0.9)
        held = 0 if entry["lag/resynced"] else held
    assert {e["lag/resynced"] for e in log} == {0.0, 1.0}


def test_the_monitor_can_be_asked_in_place_of_the_plain_ess(tmp_path: Path) -> None:
    job = countdown.trainer(small(correction="pg", resync_below=0.0, steps=6, lr=1.0), tmp_path)
    job.trigger = Trigger(ess_below=0.9, missing_above=1.0)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    assert [e["lag/resynced"] for e in log] == [float(e["lag/ess_corrected"] < 0.9) for e in log]
    assert any(e["lag/resynced"] for e in log)


def test_without_movement_there_is_no_lag_and_no_push(tmp_path: Path) -> None:
    job = countdown.trainer(small(resync_below=0.5, lr=0.0), tmp_path)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    assert all(e["lag/ess_token"] == pytest.approx(1.0) and e["lag/resynced"] == 0 for e in log)


def test_the_trace_gives_back_the_logged_measures(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    job = countdown.trainer(small(resync_below=0.0, steps=3, dump=str(file)), tmp_path)
    job.train()
    log = {e["step"]: e for e in job.state.log_history if "lag/ess_token" in e}
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert len(lines) == 3 * 8 * 4
    for step, entry in log.items():
        of_step = [line for line in lines if line["step"] == step]
        assert sorted(line["seq_id"] for line in of_step) == list(range(32))
        w = [torch.tensor(x["logp_pi"]).double() - torch.tensor(x["logp_pi_s"]).double() for x in of_step]
        assert ess_fraction(torch.cat(w)).item() == pytest.approx(entry["lag/ess_token"], rel=1e-6)
        padded = torch.nn.utils.rnn.pad_sequence(w, batch_first=True)
        assert response_ess(padded).item() == pytest.approx(entry["lag/ess_sequence"], rel=1e-6)
        rewards = [line["reward"] for line in of_step]
        assert sum(rewards) / len(rewards) == pytest.approx(entry["reward"], abs=1e-6)
        groups: dict[int, list[float]] = {}
        for line in of_step:
            groups.setdefault(line["group_id"], []).append(line["advantage"])
        assert all(abs(sum(g)) < 1e-5 for g in groups.values()), "a group's advantages are centred"
        assert {line["version"] for line in of_step} == {0}


def test_several_micro_batches_give_the_gradient_and_the_measures_of_one(tmp_path: Path) -> None:
    logs, norms = [], []
    for accumulation in (1, 2):
        job = countdown.trainer(small(steps=2, resync_below=0.0), tmp_path, accumulation=accumulation)
        job.train()
        entries = [e for e in job.state.log_history if "lag/ess_token" in e]
        logs.append([e["lag/ess_token"] for e in entries])
        norms.append([e["grad_norm"] for e in entries])
    assert logs[0] == pytest.approx(logs[1], rel=1e-3)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"beta": 0.1}, "beta"),
        ({"loss_type": "grpo"}, "loss_type"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level"),
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
        ({"entropy_coef": 0.1}, "entropy"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
    ],
)
def test_a_setting_the_correction_cannot_honour_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        countdown.trainer(small(), tmp_path, **change)


def test_a_row_that_scales_the_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lr_power"):
        countdown.trainer(small(correction="vcpo"), tmp_path)


def test_the_sampled_token_is_found_and_never_joins_the_row_for_being_sampled() -> None:
    completions = [[7, 2], [5]]
    ids = [
        [[4, 7, 9], [2, 1]],
        [[1, 2, 5]],
    ]  # two columns asked for; the sampled token third where not among them
    logps = [[[-0.5, -1.5, -2.0], [-0.1, -2.5]], [[-0.4, -1.4, None]]]
    rows = from_lists(completions, logps, ids, columns=2)
    assert rows.sampled[0] == [-1.5, -0.1]
    assert rows.sampled[1][0] != rows.sampled[1][0], "a log-prob the engine could not give is NaN"
    assert rows.ids_BTK[0].tolist() == [[4, 7], [2, 1]]
    assert rows.ids_BTK[1, 0].tolist() == [1, 2], "5 is sampled, not among the top two"
    ids_BTK, logmu_BTK = rows.fitted(3)
    assert ids_BTK.shape == (2, 3, 2)
    assert logmu_BTK[1, 1:].isinf().all()


def test_the_callback_holds_a_stock_trainer_in_three_lines() -> None:
    trainer = SimpleNamespace(
        use_vllm=True, args=SimpleNamespace(vllm_enable_sleep_mode=False), _last_loaded_step=0
    )
    answers = iter([False, True, False])
    callback = HoldSampler(trainer, lambda: next(answers))
    loaded = []
    for step in (1, 2, 3):
        callback.on_step_end(None, SimpleNamespace(global_step=step), None)
        loaded.append(trainer._last_loaded_step)
    assert loaded == [1, 1, 3], "TRL pushes where its step is not the last loaded one: at 2 alone"
    trainer.args.vllm_enable_sleep_mode = True
    with pytest.raises(ValueError, match="sleep"):
        HoldSampler(trainer, lambda: True)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(not HAS_VLLM, reason="vllm is not installed here")
def test_with_vllm_a_push_arrives_and_a_held_engine_keeps_its_weights(tmp_path: Path) -> None:
    # both in float32: a weight that did not arrive, the tied head above all, would show as numerics
    settings = small(
        vllm=True, precision="float32", resync_below=0.0, sync_every=2, steps=5, eval_every=3, lr=1.0
    )
    job = countdown.trainer(settings, tmp_path)
    job.train()
    log = [e for e in job.state.log_history if "lag/ess_token" in e]
    assert [e["lag/steps_since_sync"] for e in log] == [1, 2, 1, 2, 1]
    assert all(e["lag/discrepancy_rms"] < 1e-4 for e in log), [e["lag/discrepancy_rms"] for e in log]
    assert log[1]["lag/lag_rms"] > 1e-2, "the control: the weights did move"
    assert any("eval_reward" in e for e in job.state.log_history), (
        "evaluated in between, on the trainer's weights"
    )


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(not HAS_VLLM, reason="vllm is not installed here")
def test_a_stock_trainers_engine_is_pushed_only_where_the_callback_fires(tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportAttributeAccessIssue]

    from real.trl.cpu_engine import load_whole, small_engine

    settings = small(vllm=True, steps=4, lr=2.0)
    with small_engine(dtype="float32"):
        arguments = GRPOConfig(**countdown.grpo_arguments(settings, tmp_path))
        job = GRPOTrainer(args=arguments, **countdown.parts(settings, tmp_path))
    load_whole(job.vllm_generation)
    pushed, read = [], []
    plain = job.vllm_generation.sync_weights
    job.vllm_generation.sync_weights = lambda: (pushed.append(job.state.global_step), plain())

    def fires() -> bool:
        read.append(ess_of_last_batch(job))
        return job.state.global_step == 2

    job.add_callback(HoldSampler(job, fires))
    job.train()
    assert [step for step in pushed if step < 4] == [0, 2], "at the start, and where it fired"
    assert len(read) == 4
    assert all(0 < ess <= 1 for ess in read)
    assert read[0] < 1, "the control: an update had moved the weights"


@pytest.mark.slow
def test_a_stale_sampler_collapses_and_one_pushed_by_the_lag_does_not() -> None:
    stale = countdown.run(Settings(correction="pg", resync_below=0.0))
    pushed = countdown.run(Settings(correction="pg", resync_below=0.5))
    start, end = 0.25, [run[-1]["accuracy"] for run in (stale, pushed)]
    print(f"accuracy after 40 steps: stale {end[0]:.3f}, pushed by the lag {end[1]:.3f}; began near {start}")
    assert end[0] < 0.1
    assert end[1] > 0.2
    assert sum(e["lag/resynced"] for e in pushed) < 20, "it was pushed far less often than every step"
