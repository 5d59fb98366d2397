"""The actor's loss in verl's own FSDP2 engine on a CPU: gradients against plain autograd, rows of pi_s.

Suffixes: R response tokens of one sequence, V vocabulary, K columns.
"""

from __future__ import annotations

import os
import socket
import warnings
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_cpu,real.verl.losses")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
pytest.importorskip("verl", reason="verl is not installed here; `make test-integrations` installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # verl's own imports warn in many ways

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl names each engine that is not installed
    import verl.workers.engine  # noqa: F401

import torch  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from tolerances import OTHER_LIBRARY_FLOAT32  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402

from real.verl.actor_loss import ROW_IDS, ROW_LOGMU, ROW_LOGPI_S, VOTES, ActorLoss  # noqa: E402
from real.verl.losses import rule_of  # noqa: E402
from real.verl.sums import measures_of_sums  # noqa: E402
from theory.arrays import log_remainder  # noqa: E402
from theory.centering import coefficients, surrogate  # noqa: E402
from theory.corrections import Logps  # noqa: E402
from theory.ess import ess_fraction  # noqa: E402

PROMPTS, RESPONSES = (3, 2, 4, 3), (5, 6, 2, 4)
VOCABULARY, COLUMNS = 64, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3 of two layers on disk, with a tokenizer verl can load."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=1,
        pad_token_id=0,
    )
    path = str(tmp_path_factory.mktemp("tiny"))
    Qwen3ForCausalLM(config).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder: str):
    """verl's FSDP2 engine on gloo, one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo")
    whole = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    built = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(
            path=folder,
            use_remove_padding=False,
            override_config={"attn_implementation": "eager"},
            enable_gradient_checkpointing=False,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            mixed_precision=whole,
            use_torch_compile=False,
            micro_batch_size_per_gpu=2,
            infer_micro_batch_size_per_gpu=2,
            use_dynamic_bsz=False,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=0.5, clip_grad=1e9, optimizer="SGD", weight_decay=0.0),
        checkpoint_config=CheckpointConfig(),
    )
    built.initialize()
    yield built
    torch.distributed.destroy_process_group()


@pytest.fixture
def model(folder: str) -> Any:
    """The same weights in plain transformers: the oracle."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def sequences() -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [
        torch.randint(2, VOCABULARY, (p + r,), generator=g) for p, r in zip(PROMPTS, RESPONSES, strict=True)
    ]


def nested(parts: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def batch(sequences: list[Tensor], **extra):
    """What verl's trainer sends a worker: nested fields, and the settings as non-tensor data."""
    g = torch.Generator().manual_seed(2)
    ones = [torch.ones(r, dtype=torch.long) for r in RESPONSES]
    near = [-4.1 + 0.5 * torch.randn(r, generator=g) for r in RESPONSES]
    rows = [
        torch.log_softmax(torch.randn(len(s), VOCABULARY, generator=g), -1).topk(COLUMNS, -1)
        for s in sequences
    ]
    fields = {
        "input_ids": nested(sequences),
        "position_ids": nested([torch.arange(len(s)) for s in sequences]),
        "prompts": nested([s[:p] for s, p in zip(sequences, PROMPTS, strict=True)]),
        "responses": nested([s[p:] for s, p in zip(sequences, PROMPTS, strict=True)]),
        "response_mask": nested(ones),
        "loss_mask": nested(ones),
        "old_log_probs": nested(near),
        "rollout_log_probs": nested([x + 0.1 * torch.randn(len(x), generator=g) for x in near]),
        "advantages": nested([torch.randn(1, generator=g).expand(r).clone() for r in RESPONSES]),
        "temperature": torch.ones(len(sequences)),
        ROW_IDS: nested([r.indices.to(torch.int32) for r in rows]),
        ROW_LOGMU: nested([r.values for r in rows]),
    }
    settings = {
        "global_batch_size": len(sequences),
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
        "use_remove_padding": False,
        "use_fused_kernels": False,
        "calculate_entropy": False,
        "max_token_len_per_gpu": 4096,
    }
    return tu.get_tensordict(fields, non_tensor_dict=settings | extra)


def actor_loss(mode: str, **policy_loss) -> ActorLoss:
    config = {
        "_target_": "verl.workers.config.ActorConfig",
        "strategy": "fsdp2",
        "rollout_n": 1,
        "ppo_micro_batch_size_per_gpu": 2,
        "policy_loss": {
            "_target_": "real.verl.losses.LagPolicyLossConfig",
            "loss_mode": mode,
            "top_k": COLUMNS,
            **policy_loss,
        },
    }
    return ActorLoss(omega_conf_to_dataclass(OmegaConf.create(config)))


def put_pi_s(data, sequences: list[Tensor], shift: float) -> None:
    """Rows of pi_s at the columns: here some numbers, later verl's own."""
    g = torch.Generator().manual_seed(3)
    for k in range(COLUMNS):
        near = [data[ROW_LOGMU].unbind()[i][:, k] for i in range(len(sequences))]
        data[f"{ROW_LOGPI_S}{k}"] = nested([x + shift * torch.randn(len(x), generator=g) for x in near])


def oracle_loss(model: Any, data, sequences: list[Tensor], mode: str) -> Tensor:
    """The same loss from plain logits, one sequence at a time, by the core alone."""
    rule, total = rule_of({"loss_mode": mode}), torch.zeros(())
    columns = {name: data[name].unbind() for name in ("old_log_probs", "rollout_log_probs", "advantages")}
    pi_s = [data[f"{ROW_LOGPI_S}{k}"].unbind() for k in range(COLUMNS)]
    for i, (s, p, r) in enumerate(zip(sequences, PROMPTS, RESPONSES, strict=True)):
        at = slice(p - 1, p + r - 1)
        row_RV = torch.log_softmax(model(s[None]).logits[0], -1)[at]
        ids_RK = data[ROW_IDS].unbind()[i][at].long()
        pi_R, pi_RK = row_RV.gather(-1, s[p:, None])[:, 0], row_RV.gather(-1, ids_RK)
        row = Logps(
            data[ROW_LOGMU].unbind()[i][at], torch.stack([x[i][at] for x in pi_s], -1), pi_RK.detach()
        )
        constants = coefficients(
            rule,
            Logps(columns["rollout_log_probs"][i], columns["old_log_probs"][i], pi_R.detach()),
            columns["advantages"][i],
            row=row if rule.centered else None,
            log_tail=Logps(*(log_remainder(x) for x in row[:3])) if rule.centered else None,
        )
        total = total - surrogate(constants, pi_R, pi_RK).sum()
    return total / sum(RESPONSES)


def gradients(engine, data, loss: ActorLoss) -> tuple[dict[str, Tensor], dict]:
    with engine.train_mode():
        engine.optimizer_zero_grad()
        out = engine.forward_backward_batch(data, loss, forward_only=False)
        found = {
            name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
            for name, p in engine.module.named_parameters()
            if p.grad is not None
        }
        engine.optimizer_zero_grad()
    return found, out["metrics"]


@pytest.mark.parametrize(
    "mode", ["lagfloor-dlc", "lagfloor-sc", "lagfloor-is-sc", "lagfloor-is", "lagfloor-tis"]
)
def test_verls_engine_gives_the_gradient_of_the_core(engine, model, sequences, mode: str) -> None:
    centered = rule_of({"loss_mode": mode}).centered
    data = batch(sequences, distillation_use_topk=centered)
    put_pi_s(data, sequences, 0.3)
    got, _ = gradients(engine, data, actor_loss(mode))
    oracle_loss(model, data, sequences, mode).backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert wanted.keys() == got.keys()
    worst = max(((got[n] - g).abs().max() / g.abs().max()).item() for n, g in wanted.items())
    print(f"{mode}: largest relative gradient error {worst:.2g} over {len(wanted)} tensors")
    assert worst <= OTHER_LIBRARY_FLOAT32["rtol"], "batches of two against one sequence at a time"


def test_a_forward_without_gradient_returns_pi_s_at_the_columns(engine, model, sequences) -> None:
    data = batch(sequences, distillation_use_topk=True)
    with engine.eval_mode():
        out = engine.infer_batch(data, loss_function=actor_loss("lagfloor-dlc"))
    for k in range(COLUMNS):
        for i, s in enumerate(sequences):
            row_RV = torch.log_softmax(model(s[None]).logits[0], -1)
            wanted = row_RV.gather(-1, data[ROW_IDS].unbind()[i].long())[:, k]
            got = out["model_output"][f"{ROW_LOGPI_S}{k}"].unbind()[i]
            assert torch.allclose(got, wanted, atol=2e-5)


def test_the_lag_is_measured_over_the_votes_alone(engine, model, sequences) -> None:
    data = batch(sequences)
    votes = [torch.full((r,), int(i in (0, 3))) for i, r in enumerate(RESPONSES)]
    data[VOTES] = nested(votes)
    _, metrics = gradients(engine, data, actor_loss("lagfloor-is"))
    reduced = {k: v.aggregate() if hasattr(v, "aggregate") else v for k, v in metrics.items()}
    got = measures_of_sums({k: sum(m.values) / len(m.values) for k, m in metrics.items() if "lag_" in k})
    assert reduced, "verl returned the metrics"
    log_w = []
    for i in (0, 3):
        s, p = sequences[i], PROMPTS[i]
        pi = torch.log_softmax(model(s[None]).logits[0], -1)[p - 1 : -1].gather(-1, s[p:, None])[:, 0]
        log_w.append(pi.detach() - data["old_log_probs"].unbind()[i])
    assert got["ess_token"] == pytest.approx(ess_fraction(torch.cat(log_w).double()).item(), rel=1e-4)


def test_with_verls_own_rows_an_on_policy_dlc_is_centred_pg(engine, sequences) -> None:
    # at zero lag and zero discrepancy the weights are 1 and the row is pi's own: only the cut to K is left
    data = batch(sequences, distillation_use_topk=True)
    with engine.eval_mode():
        out = engine.infer_batch(data, loss_function=actor_loss("lagfloor-dlc"))
    row = torch.stack([out["model_output"][f"{ROW_LOGPI_S}{k}"].values() for k in range(COLUMNS)], -1)
    offsets = data["input_ids"].offsets()
    data[ROW_LOGMU] = torch.nested.nested_tensor_from_jagged(row, offsets)
    for k in range(COLUMNS):
        data[f"{ROW_LOGPI_S}{k}"] = out["model_output"][f"{ROW_LOGPI_S}{k}"]
    logps = [x[p - 1 : -1] for x, p in zip(out["model_output"]["log_probs"].unbind(), PROMPTS, strict=True)]
    data["old_log_probs"] = data["rollout_log_probs"] = nested([x.clone() for x in logps])
    centred, metrics = gradients(engine, data, actor_loss("lagfloor-dlc"))
    plain, _ = gradients(engine, data, actor_loss("lagfloor-pg"))
    for name, g in plain.items():
        assert torch.allclose(centred[name], g, rtol=2e-3, atol=2e-5 * float(g.abs().max())), name
    sums = {k: sum(m.values) / len(m.values) for k, m in metrics.items() if "lag_" in k}
    assert measures_of_sums(sums)["ess_token"] == pytest.approx(1.0)


def test_the_loss_survives_the_way_to_a_worker() -> None:
    import cloudpickle  # what Ray sends a loss with

    copy = cloudpickle.loads(cloudpickle.dumps(actor_loss("lagfloor-dlc")))
    assert copy.rule == actor_loss("lagfloor-dlc").rule
    assert copy.columns == COLUMNS
