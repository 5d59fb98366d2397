"""The warm start's recipe, a few steps of it: a whole file or none."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from real import warmstart
from real.model import load


@pytest.fixture
def small_pool(monkeypatch):
    monkeypatch.setattr(warmstart, "POOL", 500)


def test_a_short_recipe_writes_a_checkpoint_that_says_how_it_was_made(small_pool, tmp_path, capsys):
    out = tmp_path / "new" / "mini.safetensors"
    assert warmstart.main(["--out", str(out), "--steps", "3", "--seed", "4"]) == 0
    with safe_open(out, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["command"] == "python -m real.warmstart --steps 3 --seed 4"
    assert metadata["seed"] == "4"
    load(out)
    assert [p.name for p in out.parent.iterdir()] == ["mini.safetensors"]
    assert "accuracy" in capsys.readouterr().out


def test_the_same_seed_makes_the_same_weights_and_learning_lowers_the_loss(small_pool):
    one, again = (warmstart.train(seed=1, steps=12) for _ in range(2))
    for a, b in zip(one.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    prompt_BP, answer_BT = warmstart.examples(warmstart.countdown.problems(64, seed=9))
    losses = []
    with torch.no_grad():
        for model in (warmstart.build(seed=1), one):
            logp_BT = warmstart.at_tokens(warmstart.row_logps(model, prompt_BP, answer_BT), answer_BT)
            losses.append(-logp_BT[answer_BT != warmstart.PAD].mean().item())
    assert losses[1] < losses[0] - 0.1


def test_an_interrupted_recipe_leaves_the_old_file_and_no_half_of_a_new_one(monkeypatch, tmp_path, capsys):
    out = tmp_path / "mini.safetensors"
    out.write_bytes(b"the old one")

    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(warmstart, "train", interrupted)
    assert warmstart.main(["--out", str(out), "--steps", "3"]) == 130
    assert out.read_bytes() == b"the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["mini.safetensors"]
    assert capsys.readouterr().err.startswith("interrupted: nothing was written")


def test_no_steps_are_refused_in_one_line(capsys):
    assert warmstart.main(["--steps", "0"]) == 2
    assert capsys.readouterr().err == "--steps must be >= 1, got 0\n"


def test_the_learning_rate_warms_up_and_falls_but_never_to_nothing():
    steps = warmstart.STEPS
    shares = [warmstart.schedule(k, steps) for k in range(steps)]
    peak = max(range(steps), key=shares.__getitem__)
    assert abs(peak - warmstart.WARMUP) <= 2
    assert min(shares[warmstart.WARMUP :]) == warmstart.LAST_LR
    assert all(a >= b for a, b in zip(shares[peak:], shares[peak + 1 :], strict=False))
