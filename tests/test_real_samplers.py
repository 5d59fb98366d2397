"""Both samplers keep one contract: they report what they sampled from, and only a sync changes them."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from scipy.stats import chisquare
from tolerances import OTHER_LIBRARY_FLOAT32

from real import countdown
from real.countdown import EOS, PAD, RESPONSE_TOKENS
from real.evaluate import prompt_ids
from real.fp8.recipe import RECIPES
from real.loop import start_model
from real.model import row_logps
from real.samplers import open_sampler
from real.samplers.torch_sampler import TorchSampler
from real.settings import Mini
from real.sync import BOUND, PROBES, Proof, SyncError, compare
from theory.experiment import Numerics

AFTER_SYNC_RMS = 5e-6
"""Float32 rounding of two implementations, nats rms over full rows; measured 1e-6"""


@pytest.fixture(scope="module")
def policy():
    return start_model(Mini())


@pytest.fixture(scope="module")
def prompts():
    return prompt_ids(countdown.problems(8, seed=5))


@pytest.fixture(params=["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
def sampler(request, policy):
    """A sampler that holds the policy's weights as version 0."""
    chosen = TorchSampler() if request.param == "torch" else request.getfixturevalue("vllm_engine")
    chosen.sync(policy.state_dict(), 0)
    return chosen


def moved(policy, seed=0, size=0.02):
    """A copy of the policy with other weights."""
    other = copy.deepcopy(policy)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(size * torch.randn(p.shape, generator=draw))
    return other


def test_the_reported_rows_are_the_trainers_at_the_same_weights(sampler, policy, prompts):
    rollout = sampler.sample(prompts, 8, seed=1)
    with torch.no_grad():
        row = row_logps(policy, prompts, rollout.response_BT)
    gap = (rollout.logmu_BTV - row)[rollout.mask_BT].double()
    assert gap.square().mean().sqrt().item() <= AFTER_SYNC_RMS


def test_a_rollout_is_padded_masked_and_normalised(sampler, prompts):
    rollout = sampler.sample(prompts, 8, seed=2)
    mask = rollout.mask_BT
    assert rollout.response_BT.shape == mask.shape == rollout.logmu_BTV.shape[:2]
    assert len(mask) == 64
    assert mask.shape[1] <= RESPONSE_TOKENS
    assert (mask[:, :-1] >= mask[:, 1:]).all(), "a mask has no holes"
    assert mask[:, 0].all()
    assert (rollout.response_BT[~mask] == PAD).all()
    assert (rollout.logmu_BTV[~mask] == 0).all()
    lengths = mask.sum(-1)
    ends = (rollout.response_BT == EOS) & mask
    for b, length in enumerate(lengths.tolist()):
        assert not ends[b, : length - 1].any(), "nothing follows the end mark"
        assert ends[b, length - 1] or length == RESPONSE_TOKENS
    total = rollout.logmu_BTV.exp().sum(-1)[mask]
    torch.testing.assert_close(total, torch.ones_like(total), rtol=2e-5, atol=0)
    assert torch.equal(rollout.logmu_BT[~mask], torch.zeros_like(rollout.logmu_BT[~mask]))


def test_a_seed_fixes_the_tokens_whatever_the_global_random_state_is(sampler, prompts):
    torch.manual_seed(1)
    first = sampler.sample(prompts, 4, seed=3)
    torch.manual_seed(2)
    again, other = (sampler.sample(prompts, 4, seed=s) for s in (3, 4))
    assert torch.equal(first.response_BT, again.response_BT)
    assert torch.equal(first.logmu_BTV, again.logmu_BTV)
    assert not torch.equal(first.mask_BT, other.mask_BT) or not torch.equal(
        first.response_BT, other.response_BT
    )


def test_tokens_are_drawn_with_the_reported_probabilities(sampler, prompts):
    draws = 4000
    rollout = sampler.sample(prompts[:1], draws, seed=5)
    p = rollout.logmu_BTV[0, 0].double().exp()
    counts = torch.bincount(rollout.response_BT[:, 0], minlength=len(p))
    often = p * draws >= 5  # the usual validity rule of the chi-square test
    seen = torch.cat([counts[often], counts[~often].sum()[None]]).double()
    expected = torch.cat([p[often], p[~often].sum()[None]])
    keep = expected > 0
    result = chisquare(seen[keep], (expected / expected.sum() * seen.sum())[keep])
    assert result.pvalue > 1e-4, f"chi2 {result.statistic:.1f}, seed 5"


def test_the_next_token_row_is_the_one_sampling_uses(sampler, prompts):
    rollout = sampler.sample(prompts, 1, seed=6)
    prefix = torch.cat([prompts, rollout.response_BT[:, :2]], dim=1)
    long = rollout.mask_BT[:, 2]
    row = sampler.next_logps(prefix)[long]
    torch.testing.assert_close(row, rollout.logmu_BTV[long, 2], rtol=2e-5, atol=2e-5)


def test_a_sync_changes_what_is_sampled_and_a_version_says_so(sampler, policy, prompts):
    before = sampler.sample(prompts, 8, seed=7)
    other = moved(policy)
    proof = Proof().push(sampler, other, copy.deepcopy(policy), 5)
    after = sampler.sample(prompts, 8, seed=7)
    assert (before.version, after.version, sampler.version) == (0, 5, 5)
    assert proof.rms <= AFTER_SYNC_RMS
    assert not torch.equal(before.logmu_BTV[:, 0], after.logmu_BTV[:, 0])
    assert compare(sampler, policy)[0] > 100 * BOUND, "the proof can tell the old weights from the new"


def test_updates_in_place_do_not_leak_into_the_sampler(sampler, policy, prompts):
    trainer = copy.deepcopy(policy)
    sampler.sync(trainer.state_dict(), 0)
    before = sampler.sample(prompts, 8, seed=8)
    with torch.no_grad():
        for p in trainer.parameters():
            p.mul_(1.1)
    after = sampler.sample(prompts, 8, seed=8)
    assert torch.equal(before.response_BT, after.response_BT)
    assert torch.equal(before.logmu_BTV, after.logmu_BTV)


def test_a_sampler_that_ignores_a_sync_is_caught(policy):
    class Deaf(TorchSampler):
        def sync(self, weights, version):
            if version == 0:
                super().sync(weights, version)

    deaf, frozen = Deaf(), copy.deepcopy(policy)
    Proof().push(deaf, policy, frozen, 0)
    with pytest.raises(SyncError, match="did not take the weights") as caught:
        Proof().push(deaf, moved(policy, size=1e-3), frozen, 1)
    assert "\n" not in str(caught.value)


def test_a_row_on_the_other_side_of_a_rounding_passes_and_a_head_left_behind_does_not(policy):
    class Flipped(TorchSampler):
        """Some rows of the probes off by what one flipped rounding moved a row at most."""

        flipped = 0

        def next_logps(self, prefix_BP):
            row_BV = super().next_logps(prefix_BP)
            row_BV[: self.flipped] += 0.35
            return row_BV

    class OldHead(TorchSampler):
        def sync(self, weights, version):
            head = {n: t for n, t in policy.state_dict().items() if "embed" in n or "lm_head" in n}
            super().sync({**weights, **head} if version else weights, version)

    recipe, frozen, other = RECIPES["fp8"], copy.deepcopy(policy), moved(policy, size=1e-2)
    proof, flipped = Proof(recipe, "fp8"), Flipped(recipe=recipe)
    for rows in (0, 1, 8):
        flipped.flipped = rows
        pushed = proof.push(flipped, other, frozen, 1)
        assert pushed.rms == pytest.approx(0.35 * (rows / PROBES) ** 0.5, rel=0.01, abs=AFTER_SYNC_RMS)
    for rows in (9, PROBES):
        flipped.flipped = rows
        with pytest.raises(SyncError, match="at 75% of the prefixes"):
            proof.push(flipped, other, frozen, 1)
    behind = OldHead(recipe=recipe)
    proof.push(behind, policy, frozen, 0)
    with pytest.raises(SyncError, match="at 75% of the prefixes"):
        proof.push(behind, other, frozen, 1)


@pytest.mark.vllm
def test_vllm_without_the_tied_head_keeps_the_old_one_and_the_proof_sees_it(vllm_engine, policy):
    other = moved(policy)
    vllm_engine.sync(policy.state_dict(), 0)
    weights = {n: t for n, t in other.state_dict().items() if n != "lm_head.weight"}
    with pytest.raises(ValueError, match="full state dict"):
        vllm_engine.sync(weights, 1)
    engine = vllm_engine._engine  # what the refusal above prevents
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
    assert compare(vllm_engine, other)[0] > 100 * BOUND
    vllm_engine.sync(other.state_dict(), 1)
    assert compare(vllm_engine, other)[0] <= AFTER_SYNC_RMS


@pytest.mark.vllm
def test_vllm_leaves_the_global_settings_of_torch_alone(vllm_engine, policy, prompts):
    vllm_engine.sync(policy.state_dict(), 0)
    vllm_engine.sample(prompts, 2, seed=1)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_the_two_samplers_report_the_same_rows_at_the_same_weights(sampler, policy, prompts):
    twin = TorchSampler()
    twin.sync(policy.state_dict(), 0)
    rollout = sampler.sample(prompts, 8, seed=9)
    with torch.no_grad():
        row = row_logps(twin.model, prompts, rollout.response_BT)
    torch.testing.assert_close(
        rollout.logmu_BTV[rollout.mask_BT].exp(),
        row[rollout.mask_BT].exp(),
        rtol=OTHER_LIBRARY_FLOAT32["rtol"],
        atol=OTHER_LIBRARY_FLOAT32["atol"],
    )


def test_without_vllm_the_error_says_what_to_do_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # what the import system itself does for a missing module
    with pytest.raises(ValueError, match="sampler='torch'") as caught:
        open_sampler(Mini(sampler="vllm"), Numerics())
    assert "install" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_sampler_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="known: torch, vllm"):
        Mini(sampler="sglang")  # pyright: ignore[reportArgumentType]
