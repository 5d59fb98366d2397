"""The mini-Qwen3: its size, its checkpoint, and log-probabilities computed with shared prompts."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tolerances import OTHER_LIBRARY_FLOAT32

from real import countdown
from real.evaluate import prompt_ids
from real.model import CHECKPOINT, at_tokens, build, flatten, load, row_logps, without_tied
from real.tasks import TASKS

PROMPTS, SAMPLES = 3, 4


@pytest.fixture(scope="module")
def warm():
    return load()


@pytest.fixture(scope="module")
def batch():
    """Prompts (C, P) and random responses (C*N, T)."""
    prompt_CP = prompt_ids(countdown.problems(PROMPTS, seed=5))
    draw = torch.Generator().manual_seed(0)
    return prompt_CP, torch.randint(2, 20, (PROMPTS * SAMPLES, 6), generator=draw)


def plain_rows(model, prompt_CP, response_BT):
    """One forward over prompt and response, nothing shared."""
    samples = len(response_BT) // len(prompt_CP)
    whole = torch.cat([prompt_CP.repeat_interleave(samples, 0), response_BT], dim=1)
    logits = model(input_ids=whole, use_cache=False).logits
    start = prompt_CP.shape[1] - 1
    return torch.log_softmax(logits[:, start : start + response_BT.shape[1]].float(), dim=-1)


def test_it_has_124800_parameters_and_a_tied_head():
    model = build()
    assert sum(p.numel() for p in model.parameters()) == 124_800
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_building_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    build(seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_shipped_checkpoint_is_small_and_says_how_it_was_made():
    assert CHECKPOINT.stat().st_size <= 1_000_000
    with safe_open(CHECKPOINT, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["command"].startswith("python -m real.warmstart")
    assert {"seed", "steps", "accuracy_held_out", "torch", "transformers", "python"} <= metadata.keys()


def test_shared_prompts_give_the_rows_of_a_plain_forward(warm, batch):
    with torch.no_grad():
        torch.testing.assert_close(row_logps(warm, *batch), plain_rows(warm, *batch), rtol=2e-5, atol=1e-5)


def test_shared_prompts_give_the_gradient_of_a_plain_forward(warm, batch):
    prompt_CP, response_BT = batch
    gradients = []
    for rows in (row_logps, plain_rows):
        model = copy.deepcopy(warm)
        at_tokens(rows(model, prompt_CP, response_BT), response_BT).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for shared, plain in zip(*gradients, strict=True):
        scale = plain.abs().max().item()
        torch.testing.assert_close(shared, plain, rtol=2e-5, atol=1e-5 * scale)


def test_a_response_of_one_token_needs_no_second_forward(warm, batch):
    prompt_CP, response_BT = batch
    with torch.no_grad():
        one, many = (row_logps(warm, prompt_CP, r) for r in (response_BT[:, :1], response_BT))
    torch.testing.assert_close(
        one[:, 0], many[:, 0], rtol=OTHER_LIBRARY_FLOAT32["rtol"], atol=OTHER_LIBRARY_FLOAT32["atol"]
    )


def test_rows_are_normalised(warm, batch):
    with torch.no_grad():
        total = row_logps(warm, *batch).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=2e-5, atol=0)


def test_unequal_numbers_of_responses_are_refused(warm, batch):
    with pytest.raises(ValueError, match="same number of responses"):
        row_logps(warm, batch[0], batch[1][:-1])


@pytest.mark.parametrize("tau", [0.5, 1.6])
def test_flattening_divides_the_logits_exactly(warm, batch, tau):
    flat = copy.deepcopy(warm)
    flatten(flat, tau)
    prompt_CP, _ = batch
    with torch.no_grad():
        expected = warm(input_ids=prompt_CP).logits / tau
        torch.testing.assert_close(flat(input_ids=prompt_CP).logits, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan")])
def test_a_tau_that_divides_by_nothing_is_refused(warm, tau):
    with pytest.raises(ValueError, match="tau divides the logits"):
        flatten(copy.deepcopy(warm), tau)


def test_weights_survive_the_file_and_a_folder_will_do(tmp_path, warm):
    save_file(without_tied(warm.state_dict()), tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        for name, tensor in load(path).state_dict().items():
            assert torch.equal(tensor, warm.state_dict()[name])


def test_a_missing_broken_or_foreign_checkpoint_is_named_in_one_line(tmp_path):
    missing, broken, foreign = (tmp_path / name for name in ("missing", "broken", "foreign"))
    broken.write_bytes(b"\x00" * 40)
    save_file({"model.embed_tokens.weight": torch.zeros(20, 32)}, foreign)
    for path, says in ((missing, "does not exist"), (broken, "not a readable"), (foreign, "another model")):
        with pytest.raises(ValueError, match=says) as caught:
            load(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_checkpoint_of_another_task_is_refused_though_its_shapes_fit(tmp_path, warm):
    with pytest.raises(ValueError, match="of the task 'search', got one of 'countdown'"):
        load(task=TASKS["search"])
    with pytest.raises(ValueError, match="of the task 'countdown', got one of 'search'"):
        load(TASKS["search"].checkpoint)
    save_file(without_tied(warm.state_dict()), tmp_path / "model.safetensors")
    load(tmp_path, task=TASKS["search"])  # a file that does not say is taken at its shapes
