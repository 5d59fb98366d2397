"""The full-size path on small models: prompts, micro-batches, a step against a plain one, plan, engine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tolerances import BITWISE, OTHER_LIBRARY_FLOAT32

from real import process
from real.process import prepare

prepare()

import numpy as np  # noqa: E402 - as below
import torch  # noqa: E402 - after its variables are set
from torch import Tensor  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

from real.checkpoint import STATE, read  # noqa: E402
from real.countdown import Problem, problems  # noqa: E402
from real.fullsize.__main__ import main  # noqa: E402
from real.fullsize.batches import micro_batches  # noqa: E402
from real.fullsize.devices import Card, place  # noqa: E402
from real.fullsize.engine import FullRollout, choice_of, engine_arguments  # noqa: E402
from real.fullsize.load import SHAPES, read_config, read_model, read_tokenizer  # noqa: E402
from real.fullsize.loop import FullLoop, run  # noqa: E402
from real.fullsize.memory import estimate, parameters  # noqa: E402
from real.fullsize.plan import assumed_cards, plan  # noqa: E402
from real.fullsize.prompts import prompt_tokens, rewards  # noqa: E402
from real.fullsize.settings import FullSize  # noqa: E402
from real.fullsize.smoke import byte_tokenizer, write_random  # noqa: E402
from real.fullsize.trainer import FullTrainer  # noqa: E402
from real.fused.columns import top_k  # noqa: E402
from real.run import run as run_any  # noqa: E402
from real.sync import SyncError  # noqa: E402
from real.trainer import Diverged  # noqa: E402
from theory.centering import coefficients, surrogate  # noqa: E402
from theory.corrections import Correction, Logps, correction  # noqa: E402
from theory.experiment import Experiment, Numerics  # noqa: E402
from theory.records import StepRecord  # noqa: E402

SMALL: dict[str, Any] = SHAPES["Qwen/Qwen3-0.6B"] | {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
H100 = Card(name="NVIDIA H100", bytes=80 * 2**30, capability=(9, 0))
A100 = Card(name="NVIDIA A100", bytes=80 * 2**30, capability=(8, 0))


def small(seed: int = 0) -> Qwen3ForCausalLM:
    fields: dict[str, Any] = SMALL | {"dtype": "float32"}
    config = Qwen3Config(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float()


def tiny_environment(**changes: Any) -> FullSize:
    sizes: dict[str, Any] = {
        "max_prompt_tokens": 16,
        "max_response_tokens": 16,
        "micro_batch_tokens": 32,
        "top_k": 8,
    }
    return FullSize(**{"model": "nowhere", **sizes, **changes})


# ---- prompts


def test_a_prompt_opens_the_assistants_turn_with_an_empty_thought() -> None:
    tokenizer = byte_tokenizer()
    problem = problems(1, seed=0)[0]
    ids = prompt_tokens(tokenizer, problem, longest=400)
    text = str(tokenizer.decode(ids))
    assert text.startswith("<|im_start|>user\nUsing each of the numbers ")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert f"that equals {problem.target}" in text
    with pytest.raises(ValueError, match="at most 20 tokens, got"):
        prompt_tokens(tokenizer, problem, longest=20)


def test_rewards_read_the_last_answer_and_ignore_tokens_nobody_knows() -> None:
    tokenizer = byte_tokenizer()
    asked = [Problem(numbers=(1, 2, 3), target=9, solution="(1+2)*3")]
    texts = [
        "<answer>(1+2)*3</answer>",
        "no: <answer>1</answer> then <answer> (1 + 2) * 3 </answer>",
        "<answer>(1+2)*3</answer> or <answer>1+2+3</answer>",
        "(1+2)*3",
    ]
    responses = [tokenizer.encode(t) for t in texts] + [[299, 298]]
    assert rewards(tokenizer, asked, responses) == [1.0, 1.0, -1.0, -1.0, -1.0]


# ---- micro-batches


def rollout_of(model: Qwen3ForCausalLM, *, version: int = 0, seed: int = 0, k: int = 300) -> FullRollout:
    """Responses of uneven length, drawn from a distorted copy of the model's rows, one of them empty."""
    g = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 300, (n,), generator=g).tolist() for n in (5, 3, 7)]
    lengths = [4, 9, 0, 2, 6, 6]
    responses, rows = [], []
    for b, length in enumerate(lengths):
        sequence = list(prompts[b // 2])
        for _ in range(length):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([sequence])).logits[0, -1]
            noisy = torch.log_softmax(logits + 0.3 * torch.randn(300, generator=g), -1)
            rows.append(noisy)
            sequence.append(int(torch.multinomial(noisy.exp(), 1, generator=g)))
        responses.append(sequence[len(prompts[b // 2]) :])
    sampled = torch.tensor([t for r in responses for t in r])
    mu = top_k(torch.stack(rows), sampled, k, version=version)
    return FullRollout(prompts=prompts, responses=responses, mu=mu, finish=["stop"] * 6)


@pytest.mark.parametrize("tokens", [1, 20, 40, 1000])
def test_micro_batches_hold_every_token_once_and_predict_it_from_its_prefix(tokens: int) -> None:
    rollout = rollout_of(small())
    flat = [t for r in rollout.responses for t in r]
    parts = micro_batches(rollout.prompts, rollout.responses, tokens=tokens)
    assert sorted(torch.cat([p.tokens_n for p in parts]).tolist()) == list(range(len(flat)))
    for part in parts:
        b, L = part.input_bL.shape
        assert b == 1 or b * L <= tokens
        following = part.input_bL.roll(-1, 1)[part.predicts_bL]
        assert following.tolist() == [flat[n] for n in part.tokens_n]
    some = micro_batches(rollout.prompts, rollout.responses, tokens=tokens, only=[1, 2, 4])
    assert sorted(torch.cat([p.tokens_n for p in some]).tolist()) == [*range(4, 13), *range(15, 21)]


# ---- the step


def plain_gradient(
    model: Qwen3ForCausalLM, stale: Qwen3ForCausalLM | None, rollout: FullRollout, rule: Correction, A: Tensor
) -> list[Tensor]:
    """The same loss, one sequence at a time on full rows, by autograd through the whole model."""
    model.zero_grad()
    total = sum(rollout.lengths)
    start = 0
    for b, response in enumerate(rollout.responses):
        n = len(response)
        if n == 0:
            continue
        at = slice(start, start + n)
        start += n
        prompt = rollout.prompts[b // 2]
        ids = torch.tensor([[*prompt, *response]])
        predicts = slice(len(prompt) - 1, ids.shape[1] - 1)
        logp = torch.log_softmax(model(input_ids=ids).logits[0, predicts], -1)
        with torch.no_grad():
            then = logp if stale is None else torch.log_softmax(stale(input_ids=ids).logits[0, predicts], -1)
        part = rollout.mu.part(at)
        logmu = torch.zeros(n, 300).scatter(1, part.ids[:, 1:].long(), part.logp)
        tokens = torch.tensor(response)[:, None]

        def pick(x: Tensor, tokens: Tensor = tokens) -> Tensor:
            return x.gather(1, tokens)[:, 0]

        now = logp.detach()
        c = coefficients(
            rule,
            Logps(mu=pick(logmu), pi_s=pick(then.detach()), pi=pick(now)),
            A[b].expand(n),
            row=Logps(mu=logmu, pi_s=then.detach(), pi=now) if rule.centered else None,
        )
        value = surrogate(c, pick(logp), logp if c.row is not None else None)
        (-value.sum() / total).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def gradient_of_step(before: list[Tensor], model: Qwen3ForCausalLM, lr: float) -> list[Tensor]:
    return [(b - p.detach()) / lr for b, p in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["pg", "tis", "sc", "dlc"])
def test_a_step_descends_the_plain_gradient_after_a_lag(name: str, checkpointing: bool) -> None:
    """Full columns, so nothing is approximated; a first update makes the sampler stale."""
    model, rule, lr = small().train(), correction(name), 0.5
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trainer = FullTrainer(model, rule, lr=lr, environment=tiny_environment(top_k=300))
    A = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 1.0])
    for stale in (None, small()):
        rollout = rollout_of(small())
        wanted = plain_gradient(model, stale, rollout, rule, A)
        before = [p.detach().clone() for p in model.parameters()]
        step = trainer.step(rollout, A)
        got = gradient_of_step(before, model, lr)
        gap = math.sqrt(sum(float((g - w).square().sum()) for g, w in zip(got, wanted, strict=True)))
        norm = math.sqrt(sum(float(w.square().sum()) for w in wanted))
        # the difference of float32 weights carries their rounding, beside the gradient's own
        rounding = sum(b.numel() for b in before) ** 0.5 * 2**-24 / lr
        assert gap < 50 * OTHER_LIBRARY_FLOAT32["rtol"] * norm + rounding
        assert step.update_norm == pytest.approx(lr * norm, rel=1e-3)
        assert step.synced == (stale is None)
    assert trainer.stale.passes == 1
    assert trainer.version == 2


@pytest.mark.parametrize("name", ["seq-is", "m2po", "vcpo"])
def test_rules_of_the_whole_batch_see_all_responses(name: str) -> None:
    model, rule = small().train(), correction(name)
    trainer = FullTrainer(model, rule, lr=0.2, environment=tiny_environment())
    A = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 1.0])
    trainer.step(rollout_of(small(), k=8), A)
    rollout = rollout_of(small(), k=8)
    lengths = torch.tensor(rollout.lengths)
    mask = torch.arange(9) < lengths[:, None]
    table = {}
    now = trainer.columns(rollout, rollout.mu, sampled_only=True).logp[:, 0]
    for key, flat in (("mu", rollout.mu.logp_a), ("pi", now)):
        table[key] = torch.zeros(6, 9).masked_scatter(mask, flat)
    c = coefficients(
        rule, Logps(mu=table["mu"], pi_s=table["pi"], pi=table["pi"]), A[:, None].expand(6, 9), mask=mask
    ).token
    before = [p.detach().clone() for p in model.parameters()]
    taken = trainer.step(rollout, A)
    got = gradient_of_step(before, model, 0.2)
    twin = small()
    twin.load_state_dict(
        dict(zip([n for n, _ in model.named_parameters()], before, strict=True)), strict=False
    )
    twin.zero_grad()
    ids_list = [[*rollout.prompts[b // 2], *r] for b, r in enumerate(rollout.responses)]
    for b, response in enumerate(rollout.responses):
        if not response:
            continue
        first = len(rollout.prompts[b // 2])
        logp = torch.log_softmax(twin(input_ids=torch.tensor([ids_list[b]])).logits[0, first - 1 : -1], -1)
        value = (c[b, : len(response)] * logp.gather(1, torch.tensor(response)[:, None])[:, 0]).sum()
        (-value / int(lengths.sum())).backward()
    wanted = [p.grad for p in twin.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(w.square().sum()) for w in wanted))
    cosine = sum(float((g * w).sum()) for g, w in zip(got, wanted, strict=True)) / (
        norm * math.sqrt(sum(float(g.square().sum()) for g in got))
    )
    assert cosine > 1 - 1e-4
    factor = taken.update_norm / (0.2 * norm)
    assert 0 < factor <= 1.001
    assert (factor < 0.999) == (rule.lr_power > 0)


def test_log_probs_after_the_update_are_those_of_the_new_weights() -> None:
    model = small().train()
    trainer = FullTrainer(model, correction("tis"), lr=0.5, environment=tiny_environment())
    rollout = rollout_of(small(), k=8)
    before = trainer.columns(rollout, rollout.mu, sampled_only=True).logp[:, 0]
    step = trainer.step(rollout, torch.ones(6))
    after = trainer.columns(rollout, rollout.mu, sampled_only=True).logp[:, 0]
    assert torch.equal(step.logpi_N, after)
    assert (step.logpi_s_N - before).abs().max() < OTHER_LIBRARY_FLOAT32["rtol"] * before.abs().max()
    assert (after - before).abs().max() > 1e-3
    assert trainer.lag_norm() == pytest.approx(step.update_norm, rel=1e-3)
    trainer.took_sync()
    assert trainer.lag_norm() == BITWISE


def test_minibatches_make_one_update_each_on_whole_prompts() -> None:
    model = small().train()
    trainer = FullTrainer(model, correction("ppo"), lr=0.1, environment=tiny_environment(), minibatches=3)
    step = trainer.step(rollout_of(small(), k=8), torch.ones(6))
    assert trainer.version == 3
    assert math.isnan(step.update_norm)
    four = FullTrainer(model, correction("ppo"), lr=0.1, environment=tiny_environment(), minibatches=4)
    with pytest.raises(ValueError, match=r"minibatches must be <= prompts \(3\), got 4"):
        four.step(rollout_of(small(), k=8), torch.ones(6))


def test_a_rollout_of_other_weights_is_refused_and_a_broken_gradient_changes_nothing() -> None:
    model = small().train()
    trainer = FullTrainer(model, correction("pg"), lr=0.1, environment=tiny_environment())
    with pytest.raises(ValueError, match="pi_s is that of version 0, got a rollout of version 5"):
        trainer.step(rollout_of(small(), version=5, k=8), torch.ones(6))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(Diverged, match="gradient of update 1 is not finite"):
        trainer.step(rollout_of(small(), k=8), torch.full((6,), math.inf))
    assert all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_flat_rows_are_warned_of_where_the_correction_is_centred() -> None:
    rollout = rollout_of(small(), k=2)
    for name, warned in (("sc", True), ("pg", False)):
        trainer = FullTrainer(small(), correction(name), lr=0.1, environment=tiny_environment(top_k=2))
        if warned:
            with pytest.warns(UserWarning, match="top 2 leave a mean mass of"):
                tail = trainer.step(rollout, torch.ones(6)).tail
        else:
            tail = trainer.step(rollout, torch.ones(6)).tail
        assert tail.mean > 0.1


# ---- devices, memory, plan


def test_trainer_and_sampler_are_placed_by_what_there_is() -> None:
    assert place("auto", []).sampler == "cpu"
    assert place("auto", [H100]).shared
    two = place("auto", [H100, H100])
    assert (two.sampler, two.trainer, two.shared) == ("cuda:0", "cuda:1", False)
    assert place("shared", [H100, H100]).shared
    with pytest.raises(ValueError, match=r"'split' needs 2 CUDA card\(s\), got 1"):
        place("split", [H100])


@pytest.mark.parametrize("shape", [SMALL, SMALL | {"tie_word_embeddings": False}, SHAPES["Qwen/Qwen3-0.6B"]])
def test_parameters_are_counted_exactly(shape: dict[str, Any]) -> None:
    config = Qwen3Config(**shape)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    assert sum(parameters(config)) == sum(p.numel() for p in model.parameters())


def test_the_estimate_grows_with_what_it_should_and_only_that() -> None:
    config = Qwen3Config(**SHAPES["Qwen/Qwen3-0.6B"])

    def of(**changes: Any) -> Any:
        environment = FullSize(**changes)
        return estimate(config, environment, place("shared", [H100]), responses=512)

    base = of()
    assert of(frozen_on_cpu=True).trainer_bytes == base.trainer_bytes - 4 * sum(parameters(config))
    assert of(gradient_checkpointing=False).trainer_bytes > base.trainer_bytes + 2**30
    assert of(precision="fp8").sampler_bytes < base.sampler_bytes
    assert of(precision="fp8").sampler["keys and values"] * 2 == base.sampler["keys and values"]
    assert of(micro_batch_tokens=16384).trainer_bytes > base.trainer_bytes
    assert of(micro_batch_tokens=16384).sampler_bytes == base.sampler_bytes


def experiment(environment: FullSize, **changes: Any) -> Experiment:
    fields: dict[str, Any] = {"correction": correction("dlc"), "lr": 0.05, "sync_every": 64} | changes
    return Experiment(environment=environment, **fields)


def test_the_plan_prints_the_engines_arguments_and_the_memory() -> None:
    text = plan(experiment(FullSize(precision="fp8")), assumed_cards(1, 80))
    for line in (
        "596.0 M parameters",
        "quantization='fp8_per_block'",
        "kv_cache_dtype='fp8'",
        "logprobs_mode='processed_logprobs'",
        "VLLM_USE_DEEP_GEMM_E8M0=0",
        "and when ESS(token) < 0.5",
        "trainer, estimated ",
    ):
        assert line in text
    assert "each fits its card" in plan(experiment(FullSize()), assumed_cards(2, 80))
    assert "on the CPU" in plan(experiment(FullSize(precision="fp32")), [])


def test_what_cannot_run_is_refused_by_the_plan_too() -> None:
    with pytest.raises(ValueError, match=r"needs a Hopper card.*got NVIDIA A100 of compute capability 8.0"):
        plan(experiment(FullSize(precision="fp8")), [A100])
    with pytest.raises(ValueError, match=r"must fit the card they share \(8.0 GiB\)"):
        plan(experiment(FullSize()), assumed_cards(1, 8))
    with pytest.raises(ValueError, match="top_k must be at most the vocabulary's 151936"):
        plan(experiment(FullSize(top_k=200_000)), [])
    with pytest.raises(ValueError, match="would come on top of precision 'fp8-emulated'"):
        plan(experiment(FullSize(precision="fp8-emulated"), numerics=Numerics(kind="int4")), [])


def test_numerics_of_an_experiment_reach_the_engine() -> None:
    environment = FullSize(precision="bf16")
    devices = place("auto", [H100])
    choice = choice_of(environment, Numerics(kind="fp8"), devices, seed=0)
    assert choice.recipe is not None
    need = estimate(Qwen3Config(**SHAPES["Qwen/Qwen3-0.6B"]), environment, devices, responses=8)
    arguments = engine_arguments(environment, choice, devices, need)
    assert arguments["hf_overrides"]["quantization_config"]["kv"] == "e4m3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp4"}, "unknown precision 'fp4'; known: fp32"),
        ({"devices": "tpu"}, "unknown devices 'tpu'; known: auto"),
        ({"micro_batch_tokens": 100}, "micro_batch_tokens must be >= 768"),
        ({"top_k": 0}, "top_k must be >= 1"),
        ({"temperature": 0.0}, "must be > 0"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FullSize(**changes)


# ---- reading models, and the command line


def test_a_folder_is_read_as_float32_and_only_a_qwen3_is(tmp_path: Path) -> None:
    write_random(tmp_path, SMALL)
    byte_tokenizer().save_pretrained(tmp_path)
    model = read_model(str(tmp_path), gradient_checkpointing=True)
    assert model.dtype == torch.float32
    assert model.is_gradient_checkpointing
    assert read_tokenizer(str(tmp_path)).chat_template
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"llama"'))
    with pytest.raises(ValueError, match=r"must be a dense Qwen3.*got 'llama'"):
        read_config(str(tmp_path))
    with pytest.raises(ValueError, match="must be a Qwen3 folder or a hub id, got '/nowhere/at/all'"):
        read_config("/nowhere/at/all")


def test_the_command_line_plans_and_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", "--environment.precision", "bf16"]) == 0
    assert "vLLM       LLM('Qwen/Qwen3-0.6B'," in capsys.readouterr().out
    assert main(["--plan", "--correction", "nonsense"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lagfloor: unknown correction 'nonsense'")
    assert error.count("\n") == 1


# ---- with the engine


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, inside vLLM's import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # swig types, inside vLLM's import
@pytest.mark.filterwarnings("ignore::UserWarning")  # vLLM's import; and rows of a random model are flat
class TestVllm:
    @pytest.fixture(autouse=True)
    def _needs_vllm(self) -> None:
        pytest.importorskip("vllm")

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("small")
        write_random(folder, SMALL)
        return folder

    def environment(self, folder: Path, **changes: Any) -> FullSize:
        sizes: dict[str, Any] = {
            "max_prompt_tokens": 320,
            "max_response_tokens": 12,
            "micro_batch_tokens": 700,
        }
        return FullSize(**{"model": str(folder), "precision": "fp32", **sizes, **changes})

    def test_a_run_samples_steps_syncs_and_evaluates(self, folder: Path) -> None:
        environment = self.environment(folder, top_k=100, eval_every=2, eval_prompts=3)
        job = experiment(
            environment, steps=3, prompts=2, samples=3, sync_every=2, lr=0.5, correction=correction("sc")
        )
        seen: list[int] = []
        result = run(job, on_step=lambda r: seen.append(r.step), tokenizer=byte_tokenizer())
        assert result.stopped is None
        assert seen == [1, 2, 3]
        assert result.trace.steps["synced"].tolist() == [1.0, 0.0, 1.0]
        assert (result.trace.steps["discrepancy_rms"] < 1e-3).all()
        assert result.trace.steps["lag_rms"].min() > 0
        assert sorted(result.evaluations) == [0, 2, 3]
        assert 0 < result.tail_mass[1] < 1
        tokens, sequences = result.trace.tokens, result.trace.sequences
        assert len(tokens["token"]) == sequences["length"].sum()
        assert sequences["sampler_version"].tolist() == [0] * 12 + [2] * 6
        assert sequences["trainer_version"].tolist() == [0] * 6 + [1] * 6 + [2] * 6

    def test_the_engines_columns_are_the_trainers_at_any_temperature(self, folder: Path) -> None:
        environment = self.environment(folder, top_k=20, temperature=0.7)
        job = experiment(environment, steps=1, prompts=2, samples=2)
        loop = FullLoop(job, environment, place("cpu", []), byte_tokenizer())
        try:
            rollout, _ = loop.rollout(1)
        finally:
            loop.close()
        mu, at = rollout.mu, loop.trainer.columns(rollout, rollout.mu)
        assert mu.ids.shape == (sum(rollout.lengths), 21)
        assert not mu.repeats.all()
        tolerance = OTHER_LIBRARY_FLOAT32["rtol"] * float(mu.logp.abs().max())
        assert (at.logp[:, 0] - mu.logp_a).abs().max() < tolerance
        assert (at.logp[:, 1:] - mu.logp).abs().max() < tolerance
        assert (at.log_tail.exp() - mu.tail_mass).abs().max() < tolerance
        loop.trainer.environment = self.environment(folder, top_k=20)  # control: another temperature
        assert (loop.trainer.columns(rollout, mu).logp[:, 0] - mu.logp_a).abs().max() > 0.1

    def test_a_sync_of_a_rounding_engine_rounds_anew(self, folder: Path) -> None:
        environment = self.environment(folder, precision="int4-emulated")
        job = experiment(environment, steps=1, prompts=2, samples=2, sync_every=1, lr=0.5)
        loop = FullLoop(job, environment, place("cpu", []), byte_tokenizer())
        try:
            first = loop.update(1).measures["discrepancy_rms"]
            loop.sync()
            second = loop.update(2)
            assert second.taken.synced
            for rms in (first, second.measures["discrepancy_rms"]):
                assert rms > 0.1  # a random model at four bits
            with pytest.raises(SyncError, match="did not take the weights"):
                loop.check_sync(4 * first)
        finally:
            loop.close()

    def test_a_run_that_is_stopped_between_states_goes_on_to_the_same_end(
        self, folder: Path, tmp_path: Path
    ) -> None:
        environment = self.environment(folder, top_k=20, eval_every=2, eval_prompts=2)
        job = experiment(
            environment,
            steps=4,
            prompts=2,
            samples=2,
            sync_every=3,
            lr=0.5,
            correction=correction("is"),
            baseline="none",
        )
        whole = run_any(job, tokenizer=byte_tokenizer())

        def stop(record: StepRecord) -> None:
            if record.step == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_any(job, on_step=stop, checkpoint=tmp_path / "run", tokenizer=byte_tokenizer())
        _, state = read(tmp_path / "run" / STATE)
        assert state["synced_version"] < state["version"] == 2  # the sampler lags: two copies of the weights
        seen: list[int] = []
        again = run_any(
            job,
            on_step=lambda r: seen.append(r.step),
            checkpoint=tmp_path / "run",
            resume=True,
            tokenizer=byte_tokenizer(),
        )
        assert seen == [3, 4]  # the state is that of step 2
        assert whole.trace.steps["lag_norm"][1] > 0  # and its two copies differ
        for table in ("steps", "tokens", "sequences"):
            for name, column in getattr(whole.trace, table).items():
                if not name.startswith("seconds"):
                    np.testing.assert_array_equal(getattr(again.trace, table)[name], column, err_msg=name)
        assert again.evaluations[2].accuracy == whole.evaluations[2].accuracy
        assert again.evaluations[2].off_support == whole.evaluations[2].off_support
        with pytest.raises(ValueError, match="the settings must be those of the folder"):
            run_any(
                experiment(environment, steps=9), checkpoint=tmp_path / "run", resume=True,
                tokenizer=byte_tokenizer(),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("set_by_user", "reached"),
    [({}, True), ({"HF_HUB_OFFLINE": "1"}, False), ({"HF_HUB_OFFLINE": "0"}, True)],
)
def test_a_hub_id_is_looked_up_unless_the_user_has_said_offline(
    set_by_user: dict[str, str], reached: bool
) -> None:
    """Every process of ours starts offline; what asks for a model by its hub id must undo that."""
    look = (
        "import real; from real import process; process.allow_hub(); process.prepare(); "
        "from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
    )
    clean = {k: v for k, v in os.environ.items() if k not in process.OFFLINE}
    done = subprocess.run(
        [sys.executable, "-c", look], env=clean | set_by_user, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(not reached)]


def test_the_hub_is_allowed_before_the_other_variables_are_set_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OURS", set())
    for name in process.OFFLINE:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    process.allow_hub()
    assert {os.environ[name] for name in process.OFFLINE} == {"0"}


def test_a_full_size_run_by_hub_id_is_not_offline() -> None:
    asked = (
        "from real.fullsize.__main__ import main; "
        "main(['--environment.model', MODEL, '--correction', 'nonsense']); "
        "from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
    )
    clean = {k: v for k, v in os.environ.items() if k not in process.OFFLINE}
    for model, offline in (("nobody/none", "False"), (".", "True")):
        done = subprocess.run(
            [sys.executable, "-c", f"MODEL = {model!r}; {asked}"],
            env=clean,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [offline]
        assert "nonsense" in done.stderr
