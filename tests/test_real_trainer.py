"""The trainer applies the corrections: its update is the formula of the theory, written again in NumPy.

Letters as in real.samplers.base. The formulas here take probabilities and use nothing of the core but the
names of the corrections; the derivative goes through a plain forward that shares no prompts.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch

from real import countdown
from real.evaluate import prompt_ids
from real.loop import start_model
from real.model import row_logps
from real.samplers.torch_sampler import generate
from real.settings import Mini
from real.trainer import Diverged, Trainer
from theory.corrections import CORRECTIONS, correction
from theory.experiment import Experiment

LR = 0.05
PROMPTS, SAMPLES = 3, 4


def nudged(model, seed, size):
    other = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(size * torch.randn(p.shape, generator=draw))
    return other


@pytest.fixture(scope="module")
def start():
    return start_model(Mini())


@pytest.fixture(scope="module")
def advantage_CN():
    draw = torch.Generator().manual_seed(2)
    return torch.randn(PROMPTS, SAMPLES, generator=draw) + 0.3


def stale(start, rule, **options):
    """A trainer away from the weights its sampler holds, and a batch of an engine with an error of its
    own."""
    trainer = Trainer(copy.deepcopy(start), rule, lr=LR, **options)
    trainer.model.load_state_dict(nudged(start, 1, 0.02).state_dict())
    trainer.version = 3
    engine = nudged(start, 3, 0.01)
    rollout = generate(engine, prompt_ids(countdown.problems(PROMPTS, seed=4)), SAMPLES, seed=5, version=0)
    return trainer, rollout


def fresh(start, rule, **options):
    """A trainer whose sampler holds its own weights."""
    trainer = Trainer(copy.deepcopy(start), rule, lr=LR, **options)
    rollout = generate(start, prompt_ids(countdown.problems(PROMPTS, seed=4)), SAMPLES, seed=5, version=0)
    return trainer, rollout


class Rows(NamedTuple):
    """Probabilities (B, T, V) and what is known of each token."""

    mu: np.ndarray
    pi_s: np.ndarray
    pi: np.ndarray
    token: np.ndarray
    mask: np.ndarray
    advantage: np.ndarray

    def at(self, p):
        """Entries at the sampled tokens, 1 at padding so that products ignore it."""
        picked = np.take_along_axis(p, self.token[..., None], -1)[..., 0]
        return np.where(self.mask, picked, 1.0)


def ppo(c, gain, low, high, dual=np.inf):
    return np.where(gain >= 0, c <= high, (c >= low) & (c <= dual))


def token_weight(name, r: Rows):
    """Clipped weight of each token (B, T), from the papers' definitions."""
    total, lag = r.at(r.pi) / r.at(r.mu), r.at(r.pi) / r.at(r.pi_s)
    one = np.ones_like(total)
    product = np.prod(total, -1, keepdims=True) * one
    match name:
        case "pg" | "sc" | "ppo":  # one update a batch: PPO's ratio to the trainer before it is 1
            return one
        case "is" | "decoupled-ppo":
            return total
        case "tis":
            return np.minimum(total, 2)
        case "seq-is":
            return product
        case "vcpo":
            return np.minimum(product, 8)
        case "is-sc":
            return lag
        case "dlc":
            return np.minimum(lag, 5)
        case "mis":
            return np.where(total <= 2, total, 0)
        case "icepop":
            return np.where((total >= 0.5) & (total <= 5), total, 0)
        case "m2po":
            square = np.where(r.mask, np.log(total) ** 2, np.inf).ravel()
            order = np.argsort(square)
            count = r.mask.sum()
            running = np.cumsum(square[order][:count]) / np.arange(1, count + 1)
            keep = np.zeros(square.size, bool)
            keep[order[: (running <= 0.04).sum()]] = True
            return np.where(keep.reshape(total.shape), total, 0)
    raise AssertionError(f"no formula for {name!r}: write one")


def centre(name, r: Rows):
    """What is subtracted from e_a (B, T, V): the trainer's row, or the sampler's weighted one, normalised."""
    if name == "sc":
        return r.mu
    if name == "is-sc":
        q = r.mu * r.pi / r.pi_s
    elif name == "dlc":
        q = r.mu * np.minimum(r.pi / r.pi_s, 5)
    else:
        return r.pi
    return q / q.sum(-1, keepdims=True)


def rate(name, r: Rows):
    """VCPO scales the step by the root of its response-level ESS; nobody else does."""
    if name != "vcpo":
        return LR
    w = np.prod(r.at(r.pi) / r.at(r.mu), -1)
    return LR * np.sqrt(w.sum() ** 2 / (len(w) * (w**2).sum()))


def rows_of(trainer, rollout, advantage_CN):
    with torch.no_grad():
        pi_s, pi = (
            row_logps(m, rollout.prompt_CP, rollout.response_BT).double().exp().numpy()
            for m in (trainer.frozen, trainer.model)
        )
    advantage = np.repeat(advantage_CN.double().numpy().ravel()[:, None], rollout.mask_BT.shape[1], 1)
    mu = rollout.logmu_BTV.double().exp().numpy()
    return Rows(mu, pi_s, pi, rollout.response_BT.numpy(), rollout.mask_BT.numpy(), advantage)


def expected_update(name, trainer, rollout, advantage_CN):
    """Parameter changes: the logit gradient of the formula, through a plain forward, times the step."""
    r = rows_of(trainer, rollout, advantage_CN)
    score = np.eye(r.mu.shape[-1])[r.token] - centre(name, r)
    gradient = (r.advantage * token_weight(name, r))[..., None] * score
    gradient = np.where(r.mask[..., None], gradient, 0) / r.mask.sum()
    model = copy.deepcopy(trainer.model).requires_grad_(True)
    whole = torch.cat([rollout.prompt_CP.repeat_interleave(SAMPLES, 0), rollout.response_BT], dim=1)
    start = rollout.prompt_CP.shape[1] - 1
    logits = model(input_ids=whole, use_cache=False).logits[:, start:-1]
    (torch.from_numpy(gradient).float() * logits).sum().backward()
    step = rate(name, r)
    return [step * p.grad for p in model.parameters()]  # pyright: ignore[reportOptionalOperand]


def changes(trainer, rollout, advantage_CN):
    before = [p.detach().clone() for p in trainer.model.parameters()]
    taken = trainer.step(rollout, advantage_CN)
    return [p.detach() - b for p, b in zip(trainer.model.parameters(), before, strict=True)], taken


def assert_updates_agree(got, expected):
    """Float32 through two different forwards: 2e-5 of the largest change, plus a rounding of the weight
    itself."""
    largest = max(e.abs().max().item() for e in expected)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=2e-4, atol=2e-5 * largest + 2.4e-7)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
@pytest.mark.parametrize("batch", [fresh, stale])
def test_the_update_is_the_formula_of_the_correction(name, batch, start, advantage_CN):
    trainer, rollout = batch(start, correction(name))
    expected = expected_update(name, trainer, rollout, advantage_CN)
    got, _ = changes(trainer, rollout, advantage_CN)
    assert_updates_agree(got, expected)


def test_every_clip_and_centre_of_the_table_acts_on_the_stale_batch(start, advantage_CN):
    """Where all corrections agree the test above proves nothing: here they differ from `is`, or from `pg`."""
    trainer, rollout = stale(start, correction("pg"))
    r = rows_of(trainer, rollout, advantage_CN)
    total = token_weight("is", r)
    for name in ("tis", "mis", "icepop", "m2po", "seq-is", "vcpo", "is-sc", "dlc", "pg"):
        assert np.abs(token_weight(name, r) - total)[r.mask].max() > 0.01, name
    assert np.abs(centre("sc", r) - r.pi)[r.mask].max() > 0.01


class Calls:
    """Counts the forwards of a model."""

    def __init__(self, model):
        self.count = 0
        model.register_forward_hook(self)

    def __call__(self, *_):
        self.count += 1


FORWARD = 2
"""A forward is two calls: the prompts once, then all responses"""


def test_no_second_forward_for_pi_s_while_nothing_was_updated_since_the_sync(start, advantage_CN):
    trainer, rollout = fresh(start, correction("dlc"))
    frozen, model = Calls(trainer.frozen), Calls(trainer.model)
    taken = trainer.step(rollout, advantage_CN)
    assert frozen.count == 0
    assert model.count == 2 * FORWARD, "one to learn from, one at the new weights for the ESS"
    with torch.no_grad():
        torch.testing.assert_close(
            taken.logpi_s_BTV, row_logps(start, rollout.prompt_CP, rollout.response_BT), rtol=0, atol=0
        )


def test_a_stale_batch_costs_one_forward_of_the_frozen_copy(start, advantage_CN):
    trainer, rollout = stale(start, correction("dlc"))
    frozen, model = Calls(trainer.frozen), Calls(trainer.model)
    taken = trainer.step(rollout, advantage_CN)
    assert frozen.count == FORWARD
    assert model.count == 2 * FORWARD
    with torch.no_grad():
        for row, weights in ((taken.logpi_s_BTV, start), (taken.logpi_BTV, trainer.model)):
            expected = row_logps(weights, rollout.prompt_CP, rollout.response_BT)
            torch.testing.assert_close(row, expected, rtol=0, atol=0)


def test_the_frozen_copy_does_not_follow_the_trainer(start, advantage_CN):
    trainer, rollout = fresh(start, correction("is"))
    trainer.step(rollout, advantage_CN)
    assert not trainer.synced
    assert trainer.lag_norm() > 0
    for name, tensor in trainer.frozen.state_dict().items():
        assert torch.equal(tensor, start.state_dict()[name])


def test_a_batch_of_other_weights_than_the_frozen_copy_is_refused(start, advantage_CN):
    trainer, rollout = fresh(start, correction("is"))
    trainer.synced_version = 2
    with pytest.raises(ValueError, match="sample again"):
        trainer.step(rollout, advantage_CN)


def test_the_norms_are_those_of_the_change(start, advantage_CN):
    trainer, rollout = stale(start, correction("dlc"))
    got, taken = changes(trainer, rollout, advantage_CN)
    norm = torch.cat([g.double().ravel() for g in got]).norm().item()
    assert taken.update_norm == pytest.approx(norm, rel=1e-6)


def test_minibatches_are_separate_updates_and_only_then_does_ppo_clip(start, advantage_CN):
    big = 200 * advantage_CN  # far enough for the second update to leave PPO's band
    updates = {}
    for minibatches in (1, 3):
        for name in ("pg", "ppo"):
            trainer, rollout = fresh(start, correction(name), minibatches=minibatches)
            updates[minibatches, name], _ = changes(trainer, rollout, big)
            assert trainer.version == minibatches
    for pg, ppo_ in zip(updates[1, "pg"], updates[1, "ppo"], strict=True):
        assert torch.equal(pg, ppo_)
    assert any(not torch.equal(a, b) for a, b in zip(updates[3, "pg"], updates[3, "ppo"], strict=True))


def test_two_minibatches_are_two_steps_on_half_the_prompts(start, advantage_CN):
    whole, rollout = fresh(start, correction("pg"), minibatches=3)
    whole.step(rollout, advantage_CN)
    one, _ = fresh(start, correction("pg"))
    for c in range(PROMPTS):
        part = generate(start, rollout.prompt_CP, SAMPLES, seed=5, version=0)
        rows = slice(c * SAMPLES, (c + 1) * SAMPLES)
        piece = type(part)(
            prompt_CP=part.prompt_CP[c : c + 1],
            response_BT=part.response_BT[rows],
            mask_BT=part.mask_BT[rows],
            logmu_BTV=part.logmu_BTV[rows],
            version=0,
        )
        one.step(piece, advantage_CN[c : c + 1])
    for a, b in zip(whole.model.parameters(), one.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6)


def test_more_minibatches_than_prompts_are_refused(start, advantage_CN):
    trainer, rollout = fresh(start, correction("pg"), minibatches=PROMPTS + 1)
    with pytest.raises(ValueError, match="minibatches must be <= prompts"):
        trainer.step(rollout, advantage_CN)


@pytest.mark.parametrize("name", ["sc", "is-sc", "dlc"])
def test_the_full_row_and_a_top_k_of_the_whole_vocabulary_are_the_same(name, start, advantage_CN):
    full, rollout = stale(start, correction(name))
    top, _ = stale(start, correction(name), top_k_row=20)
    few, _ = stale(start, correction(name), top_k_row=12)
    (a, _), (b, _), (c, _) = (changes(t, rollout, advantage_CN) for t in (full, top, few))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    norm, gap = (
        torch.cat([x.ravel() for x in xs]).norm() for xs in (a, [x - y for x, y in zip(a, c, strict=True)])
    )
    assert 0 < gap < 0.1 * norm, "the tail of eight columns is small but it is there"


def test_a_policy_that_leaves_the_numbers_is_put_back(start, advantage_CN):
    trainer, rollout = fresh(start, correction("pg"))
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(Diverged, match="gradient"):
        trainer.step(rollout, advantage_CN * float("inf"))
    trainer.lr = 1e38
    with pytest.raises(Diverged, match="log-probs"):
        trainer.step(rollout, 1e3 * advantage_CN)
    assert trainer.version == 0
    assert all(torch.equal(t, before[n]) for n, t in trainer.model.state_dict().items())


def test_a_period_without_syncs_is_refused_with_the_smallest_that_works():
    with pytest.raises(ValueError, match="sync_every must be >= 1, got 0"):
        Experiment(environment=Mini(), correction=correction("is"), lr=0.1, sync_every=0)
