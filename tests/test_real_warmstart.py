"""The warm start's recipe, a few steps of it: a whole file or none."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import pytest
import torch
from safetensors import safe_open

from real import recipe, warmstart
from real.countdown import COUNTDOWN
from real.model import at_tokens, build, load, row_logps
from real.task import EOS
from real.tasks import TASKS


@pytest.fixture
def small_pool(monkeypatch):
    small = {name: dataclasses.replace(r, pool=500, batch=16) for name, r in recipe.RECIPES.items()}
    monkeypatch.setattr(warmstart, "RECIPES", MappingProxyType(small))


def test_a_short_recipe_writes_a_checkpoint_that_says_how_it_was_made(small_pool, tmp_path, capsys):
    out = tmp_path / "new" / "mini.safetensors"
    assert warmstart.main(["--out", str(out), "--steps", "3", "--seed", "4"]) == 0
    with safe_open(out, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["command"] == "python -m real.warmstart --task countdown --steps 3 --seed 4"
    assert metadata["seed"] == "4"
    load(out)
    assert [p.name for p in out.parent.iterdir()] == ["mini.safetensors"]
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_makes_the_same_weights_and_learning_lowers_the_loss(small_pool, name):
    short = dataclasses.replace(warmstart.RECIPES[name], steps=12)
    one, again = (warmstart.train(name, seed=1, recipe=short) for _ in range(2))
    for a, b in zip(one.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    task = TASKS[name]
    pool = recipe.examples(task.problems(64, seed=9), task, short)
    losses = []
    with torch.no_grad():
        for model in (build(task, seed=1), one):
            logp_BT = at_tokens(row_logps(model, pool.prompt_NP, pool.answer_NT), pool.answer_NT)
            losses.append(-logp_BT[pool.weight_NT > 0].mean().item())
    assert losses[1] < losses[0] - 0.1


@pytest.mark.parametrize("name", TASKS)
def test_a_stopped_recipe_goes_on_to_the_same_weights(small_pool, monkeypatch, tmp_path, name):
    monkeypatch.setattr(warmstart, "SAVE_EVERY", 2)
    short = dataclasses.replace(warmstart.RECIPES[name], steps=7)
    whole = warmstart.train(name, seed=1, recipe=short)

    def stop(done: int, loss: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    state = tmp_path / "warm.state"
    with pytest.raises(KeyboardInterrupt):
        warmstart.train(name, seed=1, recipe=short, state=state, on_step=stop)
    seen: list[int] = []
    resumed = warmstart.train(
        name, seed=1, recipe=short, state=state, on_step=lambda done, loss: seen.append(done)
    )
    assert seen == [5, 6, 7]
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="state of another recipe"):
        warmstart.train(name, seed=2, recipe=short, state=state)


def test_batches_are_cut_to_their_longest_answer_and_stops_weigh_more(small_pool):
    task, own = TASKS["search"], warmstart.RECIPES["search"]
    pool = recipe.examples(task.problems(500, seed=3), task, own)
    length_N = (pool.weight_NT > 0).sum(-1)
    assert torch.equal(length_N, length_N.sort().values)
    decides_NT = torch.isin(pool.answer_NT, torch.tensor([EOS, *task.encode(";!x")]))
    assert torch.equal(pool.weight_NT == own.decision_weight, decides_NT)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        prompt_BP, answer_BT, weight_BT = pool.batch(own, draw)
        assert prompt_BP.shape == (own.batch, task.prompt_tokens)
        assert weight_BT.shape == answer_BT.shape
        assert (weight_BT > 0).sum(-1).max() == answer_BT.shape[1]


def test_the_short_recipe_draws_from_its_whole_pool_at_equal_weights(small_pool):
    pool = recipe.examples(COUNTDOWN.problems(40, seed=3), COUNTDOWN, warmstart.RECIPES["countdown"])
    assert set(pool.weight_NT.unique().tolist()) == {0.0, 1.0}


def test_an_interrupted_recipe_leaves_the_old_file_and_no_half_of_a_new_one(monkeypatch, tmp_path, capsys):
    out = tmp_path / "mini.safetensors"
    out.write_bytes(b"the old one")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(warmstart, "train", interrupted)
    assert warmstart.main(["--out", str(out), "--steps", "3"]) == 130
    assert out.read_bytes() == b"the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["mini.safetensors"]
    assert capsys.readouterr().err == (
        "\nlagfloor: interrupted; nothing was written; go on with the same command\n"
    )


def test_no_steps_are_refused_in_one_line(capsys):
    assert warmstart.main(["--steps", "0"]) == 2
    assert capsys.readouterr().err == (
        "lagfloor: --steps must be >= 1, got 0; leave it out for the recipe's\n"
    )


def test_the_learning_rate_warms_up_and_falls_but_never_to_nothing():
    steps = warmstart.RECIPES["countdown"].steps
    shares = [warmstart.schedule(k, steps) for k in range(steps)]
    peak = max(range(steps), key=shares.__getitem__)
    assert abs(peak - warmstart.WARMUP) <= 2
    assert min(shares[warmstart.WARMUP :]) == warmstart.LAST_LR
    assert all(a >= b for a, b in zip(shares[peak:], shares[peak + 1 :], strict=False))
