"""The fused loss: gradients against enumeration, columns against full rows, memory by counted allocations."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from tolerances import OTHER_LIBRARY_FLOAT32, algebra

from real.process import prepare

prepare()

import torch  # noqa: E402 - after its variables are set
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from real.fused.columns import MuTopK, Selected, from_engine, join, tail_report, top_k  # noqa: E402
from real.fused.loss import corrected_loss, sel_logp  # noqa: E402
from real.fused.products import chunk_size  # noqa: E402
from real.fused.row import corrected_loss_row, fused_loss_row  # noqa: E402
from real.fused.rule import column_coefficients, constant_coefficients, needs_whole_batch  # noqa: E402
from real.fused.stale import FrozenWeights, StaleColumns  # noqa: E402
from theory.corrections import CORRECTIONS, Correction, correction  # noqa: E402

MINI, QWEN3 = 4096, 151_936
"""Vocabularies of the targets"""

EXACT = 1e-12
"""Largest relative gradient error in float64 (target T8, T9): 1e4 roundings, for sums over 1e5 entries"""
SINGLE = 1e-5
"""The same in float32 (target T8)"""

COLUMN_RULES = {name: rule for name, rule in CORRECTIONS.items() if not needs_whole_batch(rule)}
COLUMN_RULES |= {
    "dlc, clip 2": correction("dlc", high=2.0),
    "dlc, mask": correction("dlc", clip="mask", low=0.5, high=2.0),
    "dlc, ppo": correction("dlc", clip="ppo", low=0.8, high=1.2),
    "dlc, form i": correction("dlc", center="form-i"),
    "dlc, numerics": correction("dlc", center="numerics"),
    "ppo at the sampler": correction("ppo", ppo_ref="engine"),
    "ppo at the sync": correction("ppo", ppo_ref="synced"),
}


class Batch(NamedTuple):
    hidden: Tensor
    weight: Tensor
    actions: Tensor
    advantage: Tensor
    logmu: Tensor
    """Rows of the sampler, (N, V)"""
    hidden_s: Tensor
    weight_s: Tensor

    @property
    def logpi_s(self) -> Tensor:
        return torch.log_softmax(self.hidden_s @ self.weight_s.t(), -1)


def batch(
    N: int = 24, H: int = 8, V: int = 50, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Batch:
    """Peaked rows, a lag that clips some ratios, and sampled ids some of which are rare."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    hidden, weight = normal(N, H), normal(V, H) * 2 / math.sqrt(H) * 1.5
    hidden_s, weight_s = hidden + 0.2 * normal(N, H), weight + 0.05 * normal(V, H)
    # the sampler's engine distorts its logits; no [N, V] float64 noise where V is large
    logits_mu = (hidden_s + 0.1 * normal(N, H)) @ weight_s.t()
    logmu = torch.log_softmax(logits_mu, -1)
    actions = torch.multinomial(torch.softmax(0.5 * logits_mu, -1), 1, generator=g)[:, 0]
    advantage = torch.where(normal(N) > 0, 1.0, -1.0).double() * (0.5 + normal(N).abs())
    return Batch(*(x.to(dtype) if x.is_floating_point() else x for x in (
        hidden, weight, actions, advantage, logmu, hidden_s, weight_s
    )))  # fmt: skip


def grads(loss_of: Callable[[Tensor, Tensor], Any], b: Batch) -> tuple[Tensor, Tensor]:
    """Gradients in hidden and weight, by backward."""
    hidden, weight = b.hidden.clone().requires_grad_(), b.weight.clone().requires_grad_()
    loss_of(hidden, weight).loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return hidden.grad, weight.grad


def distance(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> float:
    """Largest relative gap of a pair of gradients."""
    return max(
        float((g.double() - w.double()).norm() / w.double().norm().clamp(min=1e-300))
        for g, w in zip(got, wanted, strict=True)
    )


def columns_loss(b: Batch, rule: Correction, k: int, **options: Any) -> Callable[[Tensor, Tensor], Any]:
    mu = top_k(b.logmu, b.actions, k)
    stale = sel_logp(b.hidden_s, b.weight_s, mu.ids)
    f = column_coefficients(rule, mu, b.advantage, stale=stale)
    return lambda hidden, weight: corrected_loss(hidden, weight, mu.ids, f, **options)


# ---- enumeration: the definitions, written out without the core


def weight_of(rule: Correction, mu: float, pi_s: float, pi: float, advantage: float) -> float:
    """Clipped weight of one action (or of the tail as one action)."""

    def ratio(name: str) -> float:
        reference = {"none": pi, "batch": pi, "lag": pi_s, "total": mu}[name]
        return pi / reference if reference > 0 else 0.0

    w, c = ratio(rule.ratio), ratio(rule.clip_on or rule.ratio)
    match rule.clip:
        case "none":
            return w
        case "truncate":
            return min(w, rule.high)
        case "mask":
            return w if rule.low <= c <= rule.high else 0.0
        case "ppo":
            dead = c > rule.high if advantage >= 0 else c < rule.low or c > (rule.dual or math.inf)
            return 0.0 if dead else w
    raise AssertionError(rule.clip)


def enumerated_logit_gradient(
    b: Batch, rule: Correction, kept: Tensor | None, tail: str = "spread"
) -> Tensor:
    """``-A (wc_a e_a - centre)`` token by token: the centre's entries, then the tail, shaped like pi.

    `kept` (N, V) says which entries the engine reported; None: all. Uncentred rules subtract wc_a pi, because
    scores are ``e - pi``; a centre of total mass c adds ``c pi`` back.
    """
    N, V = b.logmu.shape
    logpi = torch.log_softmax(b.hidden @ b.weight.t(), -1)
    out = torch.zeros(N, V, dtype=torch.float64)
    for n in range(N):
        mu, pi_s, pi = (x[n].exp().tolist() for x in (b.logmu, b.logpi_s, logpi))
        a, A = int(b.actions[n]), float(b.advantage[n])
        inside = [k for k in range(V) if kept is None or bool(kept[n, k])]
        outside = [k for k in range(V) if k not in set(inside)]
        wc = weight_of(rule, mu[a], pi_s[a], pi[a], A)
        measure = [m - s if rule.center == "numerics" else m for m, s in zip(mu, pi_s, strict=True)]
        centre = [0.0] * V
        if rule.center != "none":
            for k in inside:
                centre[k] = measure[k] * weight_of(rule, mu[k], pi_s[k], pi[k], A)
            left = sum(pi[k] for k in outside)
            if outside and tail == "spread":
                mass = weight_of(rule, sum(mu[k] for k in outside), sum(pi_s[k] for k in outside), left, A)
                for k in outside:
                    centre[k] = sum(measure[j] for j in outside) * mass * pi[k] / left
            if rule.center == "matched":
                total = sum(centre)
                centre = [wc * x / total if total > 0 else 0.0 for x in centre]
        spread = wc - sum(centre)  # of the scores' -pi
        for k in range(V):
            out[n, k] = -A * (wc * (k == a) - centre[k] - spread * pi[k]) / N
    return out


def through_head(b: Batch, logit_gradient: Tensor) -> tuple[Tensor, Tensor]:
    return logit_gradient @ b.weight, logit_gradient.t() @ b.hidden


@pytest.mark.parametrize("name", COLUMN_RULES)
def test_full_row_gradients_are_the_enumerated_ones(name: str) -> None:
    b, rule = batch(), COLUMN_RULES[name]
    wanted = through_head(b, enumerated_logit_gradient(b, rule, None))
    plain = grads(
        lambda h, w: corrected_loss_row(
            h, w, b.actions, b.advantage, rule, mu_logp=b.logmu, pi_s_logp=b.logpi_s
        ),
        b,
    )
    fused = grads(
        lambda h, w: fused_loss_row(
            h, w, b.actions, b.advantage, rule,
            mu_logp=b.logmu, stale=(b.hidden_s, b.weight_s), chunk=7,
        ),
        b,
    )  # fmt: skip
    assert distance(plain, wanted) < EXACT
    assert distance(fused, wanted) < EXACT


@pytest.mark.parametrize("k", [1, 8, 50])
@pytest.mark.parametrize("name", COLUMN_RULES)
def test_column_gradients_are_the_enumerated_ones(name: str, k: int) -> None:
    """T8, T9 in float64: some sampled ids outside the top K, some ratios clipped, K = 50 = V the full row."""
    b, rule = batch(), COLUMN_RULES[name]
    mu = top_k(b.logmu, b.actions, k)
    assert k == 50 or not mu.repeats.all()
    kept = torch.zeros_like(b.logmu).scatter(1, mu.ids.long(), 1.0) > 0
    wanted = through_head(b, enumerated_logit_gradient(b, rule, kept))
    assert distance(grads(columns_loss(b, rule, k, chunk=7), b), wanted) < EXACT
    if k == 50:
        full = through_head(b, enumerated_logit_gradient(b, rule, None))
        assert distance(grads(columns_loss(b, rule, k), b), full) < EXACT


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler; none found")
def test_the_compiled_core_gives_the_same_gradients() -> None:
    b, rule = batch(dtype=torch.float32), correction("dlc", high=2.0)
    eager, compiled = (
        grads(
            lambda h, w, c=c: fused_loss_row(
                h, w, b.actions, b.advantage, rule,
                mu_logp=b.logmu, stale=(b.hidden_s, b.weight_s), compiled=c,
            ),
            b,
        )
        for c in (False, True)
    )  # fmt: skip
    assert distance(compiled, eager) < SINGLE


def test_the_enumeration_distinguishes_the_rules_and_the_columns() -> None:
    """A control: were the tests above blind, one of these would coincide."""
    b = batch()
    mu = top_k(b.logmu, b.actions, 8)
    kept = torch.zeros_like(b.logmu).scatter(1, mu.ids.long(), 1.0) > 0
    names = ["pg", "is", "tis", "sc", "is-sc", "dlc, clip 2", "dlc, mask", "dlc, form i", "dlc, numerics"]
    found = [enumerated_logit_gradient(b, COLUMN_RULES[n], kept) for n in names]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert (one - other).norm() / one.norm() > 1e6 * EXACT
    full = enumerated_logit_gradient(b, COLUMN_RULES["sc"], None)
    assert (found[names.index("sc")] - full).norm() / full.norm() > 1e-3


@pytest.mark.parametrize("name", ["pg", "tis", "sc", "dlc"])
@pytest.mark.parametrize("V", [MINI, QWEN3])
def test_large_vocabularies_keep_their_accuracy(name: str, V: int) -> None:
    """T8 at both vocabularies: float64 and float32 against the row oracle in float64."""
    rule = COLUMN_RULES[name]
    b = batch(N=8, H=16, V=V)
    exact = grads(
        lambda h, w: corrected_loss_row(
            h, w, b.actions, b.advantage, rule, mu_logp=b.logmu, pi_s_logp=b.logpi_s
        ),
        b,
    )
    fused = grads(
        lambda h, w: fused_loss_row(
            h, w, b.actions, b.advantage, rule, mu_logp=b.logmu, stale=(b.hidden_s, b.weight_s)
        ),
        b,
    )
    assert distance(fused, exact) < EXACT
    double = grads(columns_loss(b, rule, 64), b)
    if rule.center == "none":
        assert distance(double, exact) < EXACT
    single = Batch(*(x.float() if x.is_floating_point() else x for x in b))
    assert distance(grads(columns_loss(single, rule, 64), single), double) < SINGLE


def test_the_tail_is_exact_where_one_minus_the_columns_has_lost_it() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, :2] = torch.tensor([24.0, 23.0])
    ids = torch.tensor([[0, 0, 1]])
    got = sel_logp(torch.ones(1, 1), logits.t().contiguous(), ids)
    exact = math.log(998) - torch.logsumexp(logits.double(), -1).item()
    assert got.log_tail.item() == pytest.approx(exact, rel=OTHER_LIBRARY_FLOAT32["rtol"])
    naive = 1 - got.logp[0, 1:].exp().sum().item()
    assert abs(naive / math.exp(exact) - 1) > 0.01


def test_forward_only_and_loss_see_the_same_log_probs_whatever_the_chunk() -> None:
    b = batch()
    mu = top_k(b.logmu, b.actions, 5)
    alone = sel_logp(b.hidden, b.weight, mu.ids, temperature=0.7)
    row = torch.log_softmax(b.hidden @ b.weight.t() / 0.7, -1)
    f = column_coefficients(correction("sc"), mu, b.advantage)
    tolerance = algebra(row)
    assert (alone.logp - row.gather(1, mu.ids.long())).abs().max() < tolerance
    outside = row.scatter(1, mu.ids.long(), -math.inf).logsumexp(-1)
    assert (alone.log_tail - outside).abs().max() < tolerance
    for chunk in (1, 7, 24):
        seen = corrected_loss(b.hidden, b.weight, mu.ids, f, temperature=0.7, chunk=chunk).selected
        assert (seen.logp - alone.logp).abs().max() < tolerance
        assert (seen.log_tail - alone.log_tail).abs().max() < tolerance


def test_temperature_and_token_weights_enter_as_in_plain_autograd() -> None:
    b, rule = batch(), correction("dlc", high=2.0)
    mask = torch.arange(len(b.actions)) % 3 > 0
    weights = mask.double() / mask.sum()
    pi_s = torch.log_softmax(b.hidden_s @ b.weight_s.t() / 1.7, -1)
    options: dict[str, Any] = {"temperature": 1.7, "token_weight": weights}
    wanted = grads(
        lambda h, w: corrected_loss_row(
            h, w, b.actions, b.advantage, rule, mu_logp=b.logmu, pi_s_logp=pi_s, **options
        ),
        b,
    )
    mu = top_k(b.logmu, b.actions, 50)
    stale = sel_logp(b.hidden_s, b.weight_s, mu.ids, temperature=1.7)
    f = column_coefficients(rule, mu, b.advantage, stale=stale)
    assert distance(grads(lambda h, w: corrected_loss(h, w, mu.ids, f, **options), b), wanted) < EXACT
    dropped = grads(lambda h, w: corrected_loss(h, w, mu.ids, f, temperature=1.7), b)
    assert distance(dropped, wanted) > 0.1


def test_the_loss_is_the_surrogate_and_scales_with_what_multiplies_it() -> None:
    b, rule = batch(), correction("sc")
    mu = top_k(b.logmu, b.actions, 50)
    f = column_coefficients(rule, mu, b.advantage)
    got = corrected_loss(b.hidden, b.weight, mu.ids, f).loss
    wanted = corrected_loss_row(b.hidden, b.weight, b.actions, b.advantage, rule, mu_logp=b.logmu).loss
    assert got.item() == pytest.approx(wanted.item(), rel=EXACT)
    single, triple = (
        grads(lambda h, w, s=s: Scaled(corrected_loss(h, w, mu.ids, f).loss * s), b) for s in (1.0, 3.0)
    )
    assert distance(triple, (3 * single[0], 3 * single[1])) < EXACT


class Scaled(NamedTuple):
    loss: Tensor


def test_without_gradients_only_the_value_is_made() -> None:
    b = batch()
    mu = top_k(b.logmu, b.actions, 5)
    f = column_coefficients(correction("sc"), mu, b.advantage)
    with torch.no_grad():
        value = corrected_loss(b.hidden.requires_grad_(), b.weight.requires_grad_(), mu.ids, f).loss
    assert not value.requires_grad
    only_weight = corrected_loss(b.hidden.detach(), b.weight, mu.ids, f)
    only_weight.loss.backward()
    assert b.hidden.grad is None
    assert b.weight.grad is not None


def test_backward_twice_is_refused() -> None:
    b = batch()
    mu = top_k(b.logmu, b.actions, 5)
    f = column_coefficients(correction("sc"), mu, b.advantage)
    loss = corrected_loss(b.hidden.requires_grad_(), b.weight, mu.ids, f).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be called once"):
        loss.backward()


def test_low_precision_weights_still_give_float32_log_probs() -> None:
    b = batch(H=64, V=MINI, dtype=torch.float32)
    mu = top_k(b.logmu, b.actions, 8)
    low_h, low_w = b.hidden.bfloat16(), b.weight.bfloat16()
    exact = sel_logp(low_h.double(), low_w.double(), mu.ids)
    got = sel_logp(low_h, low_w, mu.ids)
    assert got.logp.dtype == torch.float32
    assert (got.logp - exact.logp).abs().max() < OTHER_LIBRARY_FLOAT32["rtol"] * exact.logp.abs().max()
    # control: logits rounded to bfloat16 on their way out of the product
    rounded = torch.log_softmax((low_h.float() @ low_w.float().t()).bfloat16().float(), -1)
    assert (rounded.gather(1, mu.ids.long()) - exact.logp).abs().max() > 1e-3
    f = column_coefficients(correction("sc"), mu, b.advantage)
    gradients = grads(lambda h, w: corrected_loss(h, w, mu.ids, f), b._replace(hidden=low_h, weight=low_w))
    wide = grads(
        lambda h, w: corrected_loss(h, w, mu.ids, f), b._replace(hidden=low_h.float(), weight=low_w.float())
    )
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.bfloat16]
    assert distance(gradients, wide) < 2**-8  # one rounding to bfloat16


# ---- rules bound to batches


def test_a_sampled_token_outside_the_top_k_is_a_column_of_its_own() -> None:
    b = batch()
    mu = top_k(b.logmu, b.actions, 3)
    outside = ~mu.repeats
    assert outside.any()
    assert mu.repeats.any()
    mass = mu.row.exp().sum(-1) + mu.tail_mass
    assert (mass - 1).abs().max() < algebra(1.0)
    assert (mu.row[mu.repeats, 0] == -math.inf).all()
    assert torch.equal(mu.row[outside, 0], mu.logp_a[outside])


def test_dropping_the_tail_renormalises_the_columns() -> None:
    b, rule = batch(), correction("sc")
    mu = top_k(b.logmu, b.actions, 8)
    f = column_coefficients(rule, mu, b.advantage, tail="drop")
    at = sel_logp(b.hidden, b.weight, mu.ids)
    assert f(at, slice(0, 24)).sum(-1).abs().max() < algebra(b.advantage)  # nothing is left to spread
    kept = torch.zeros_like(b.logmu).scatter(1, mu.ids.long(), 1.0) > 0
    wanted = through_head(b, enumerated_logit_gradient(b, rule, kept, tail="drop"))
    got = grads(lambda h, w: corrected_loss(h, w, mu.ids, f), b)
    assert distance(got, wanted) < EXACT


def test_right_after_a_sync_no_second_policy_is_needed_and_dlc_is_sc() -> None:
    b = batch()
    mu = top_k(b.logmu, b.actions, 8)
    sc, dlc = (
        grads(
            lambda h, w, n=n: corrected_loss(
                h, w, mu.ids, column_coefficients(correction(n), mu, b.advantage)
            ),
            b,
        )
        for n in ("sc", "dlc")
    )
    assert distance(dlc, sc) < EXACT


@pytest.mark.parametrize("name", [n for n, r in CORRECTIONS.items() if needs_whole_batch(r)])
def test_a_rule_of_the_whole_batch_is_refused_by_chunks(name: str) -> None:
    b, rule = batch(), CORRECTIONS[name]
    mu = top_k(b.logmu, b.actions, 8)
    with pytest.raises(ValueError, match="needs the whole batch"):
        column_coefficients(rule, mu, b.advantage)
    with pytest.raises(ValueError, match="needs the whole batch"):
        fused_loss_row(b.hidden, b.weight, b.actions, b.advantage, rule, mu_logp=b.logmu)


def test_constants_known_beforehand_are_used_as_they_are() -> None:
    b = batch()
    c = torch.linspace(-1, 1, 24, dtype=torch.float64)
    got = grads(lambda h, w: corrected_loss(h, w, b.actions[:, None], constant_coefficients(c)), b)
    wanted = grads(
        lambda h, w: Scaled(
            -(c * torch.log_softmax(h @ w.t(), -1).gather(1, b.actions[:, None])[:, 0]).mean()
        ),
        b,
    )
    assert distance(got, wanted) < EXACT


@pytest.mark.gpu
def test_products_on_a_card_keep_float32_logits_from_bfloat16_weights() -> None:
    if not torch.cuda.is_available():
        pytest.skip("the card's own products need CUDA; this machine has none")
    b = batch(H=64, V=MINI, dtype=torch.float32)
    mu = top_k(b.logmu, b.actions, 8).to("cuda")
    low = b._replace(hidden=b.hidden.bfloat16().cuda(), weight=b.weight.bfloat16().cuda())
    exact = sel_logp(low.hidden.double(), low.weight.double(), mu.ids)
    got = sel_logp(low.hidden, low.weight, mu.ids)
    assert (got.logp - exact.logp).abs().max() < OTHER_LIBRARY_FLOAT32["rtol"] * exact.logp.abs().max()
    f = column_coefficients(correction("sc"), mu, b.advantage.cuda())
    on_card = grads(lambda h, w: corrected_loss(h, w, mu.ids, f), low)
    wide = grads(
        lambda h, w: corrected_loss(h, w, mu.ids, f),
        low._replace(hidden=low.hidden.float(), weight=low.weight.float()),
    )
    assert distance(on_card, wide) < 2**-7  # gradients in the logits are rounded to bfloat16, too


# ---- what the engine hands over


def flat(b: Batch, k: int) -> tuple[list[int], list[float]]:
    """As vLLM lays out ``logprobs=k``: the sampled token first, then the top k, in which it may recur."""
    logp, top = b.logmu.float().topk(k, -1)
    at = b.logmu.float().gather(1, b.actions[:, None])
    ids = torch.cat([b.actions[:, None], top], 1).flatten().tolist()
    return ids, torch.cat([at, logp], 1).flatten().tolist()


def test_the_engines_flat_lists_become_the_same_columns() -> None:
    b = batch(dtype=torch.float32)
    got, wanted = from_engine(*flat(b, 8), 8, version=3), top_k(b.logmu, b.actions, 8)
    assert torch.equal(got.ids, wanted.ids)
    assert got.ids.dtype == torch.int32
    assert got.version == 3
    assert torch.equal(got.row, wanted.row)
    assert got.logp_a.dtype == torch.float32
    # the engine's log-probs are float32, so its tail is known to their rounding
    assert (got.tail_mass - wanted.tail_mass).abs().max() < 8 * algebra(1.0, dtype="float32")


def test_a_truncated_row_has_no_tail() -> None:
    """top_p: the cut entries come back as -inf and the kept ones add up to one."""
    mu = from_engine([2, 2, 5, 7], [-0.5, -0.5, math.log(1 - math.exp(-0.5)), -math.inf], 3, version=0)
    assert mu.tail_mass.item() < algebra(1.0, dtype="float32")


def test_faulty_rows_from_the_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="returns 3 entries a token, got 4 ids"):
        from_engine([1, 2, 3, 4], [-1.0] * 4, 2, version=0)
    with pytest.raises(ValueError, match=r"at most mass 1, got 1\.4"):
        from_engine([1, 2, 3], [math.log(0.5), math.log(0.5), math.log(0.4)], 2, version=0)
    mu = top_k(batch().logmu, batch().actions, 8)
    with pytest.raises(ValueError, match="one sampler version, got"):
        join([mu, MuTopK(ids=mu.ids, logp=mu.logp, logp_a=mu.logp_a, log_tail=mu.log_tail, version=1)])


def test_a_batch_can_be_cut_and_joined_and_stored_small() -> None:
    b = batch(N=512, V=2000)
    mu = top_k(b.logmu.float(), b.actions, 64)
    again = join([mu.part(slice(0, 100)), mu.part(torch.arange(100, 512))])
    assert all(torch.equal(getattr(again, n), getattr(mu, n)) for n in ("ids", "logp", "logp_a", "log_tail"))
    small = MuTopK(ids=mu.ids, logp=mu.logp.half(), logp_a=mu.logp_a, log_tail=mu.log_tail, version=0)
    assert small.nbytes == 512 * (65 * 4 + 64 * 2 + 8)
    assert (small.row.exp() - mu.row.exp()).abs().sum(-1).max() < 1e-3


def test_a_heavy_tail_is_reported_and_warned_of() -> None:
    peaked, flat_rows = batch(), batch()._replace(logmu=torch.full((24, 50), -math.log(50.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = tail_report(top_k(peaked.logmu, peaked.actions, 40))
    assert report.warning is None
    assert 0 < report.mean <= report.largest < 0.1
    with pytest.warns(UserWarning, match=r"mean mass of 0\.[678]\d+ outside, above 0.1"):
        report = tail_report(top_k(flat_rows.logmu, flat_rows.actions, 10))
    assert 0.75 < report.mean < 0.81


# ---- pi_s


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight


def test_the_frozen_copy_is_what_was_synced_and_comes_and_goes_without_a_trace() -> None:
    model = Tied().double()
    frozen = FrozenWeights(model)
    assert frozen.nbytes == 50 * 8 * 8  # tied: once
    at_sync = model.head.weight.detach().clone()
    with torch.no_grad():
        model.head.weight.add_(1.0)
    with frozen.inside(model):
        assert torch.equal(model.head.weight, at_sync)
        assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, at_sync + 1)
    frozen.take(model, 4)
    with pytest.raises(KeyError), frozen.inside(model):
        raise KeyError
    assert frozen.version == 4
    assert torch.equal(model.head.weight, at_sync + 1)


def test_pi_s_is_computed_once_a_batch_and_never_right_after_a_sync() -> None:
    """T5's second half: the call count."""
    b = batch()
    mu, other = (top_k(b.logmu, a, 8) for a in (b.actions, b.actions.flip(0)))
    calls: list[int] = []

    def compute() -> Selected:
        calls.append(1)
        return sel_logp(b.hidden_s, b.weight_s, mu.ids)

    stale = StaleColumns()
    assert stale.of(mu, compute, trainer_version=0) is None
    assert calls == []
    first = stale.of(mu, compute, trainer_version=1)
    assert stale.of(mu, compute, trainer_version=2) is first
    stale.of(other, compute, trainer_version=2)
    stale.of(mu, compute, trainer_version=2, temperature=0.5)
    assert len(calls) == stale.passes == 3


# ---- memory, counted


class Allocations(TorchDispatchMode):
    """Records the largest tensor that operators create, in elements, and what of it is [N, V]."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


class Peak(TorchDispatchMode):
    """Live bytes of tensors that operators created, at their highest."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        known = {
            t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)
        }  # views and in-place results share the storage of an argument
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            pointer = storage.data_ptr()
            if pointer in known or pointer in self.live:
                continue
            self.live[pointer] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, pointer, None)
            self.peak = max(self.peak, sum(self.live.values()))
        return out


@contextmanager
def measured(mode: Any) -> Iterator[Any]:
    with mode:
        yield mode


def peak_without_weight_gradient(run: Callable[[Tensor, Tensor], Any], b: Batch) -> int:
    hidden, weight = b.hidden.clone().requires_grad_(), b.weight.clone().requires_grad_()
    with Peak() as mode:
        run(hidden, weight).loss.backward()
    return mode.peak - weight.nbytes


def naive_pg(b: Batch) -> Callable[[Tensor, Tensor], Any]:
    def run(h: Tensor, w: Tensor) -> Any:
        logp = torch.log_softmax(h @ w.t(), -1).gather(1, b.actions[:, None])[:, 0]
        return Scaled(-(b.advantage * logp).mean())

    return run


def sizes(V: int) -> Batch:
    """The batch of the memory targets: N = 2048 at V = 4,096, N = 512 at V = 151,936 (H kept small)."""
    N = 2048 if V == MINI else 512
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(N, 16, generator=g), torch.randn(V, 16, generator=g)
    actions = torch.randint(0, V, (N,), generator=g)
    return Batch(hidden, weight, actions, torch.randn(N, generator=g), torch.empty(0), hidden + 0.1, weight)


def synthetic_columns(b: Batch, k: int) -> MuTopK:
    """Columns without an [N, V] tensor: k distinct ids and masses that leave a tail of a tenth."""
    N, V = len(b.actions), len(b.weight)
    ids = (b.actions[:, None] + torch.arange(k)) % V
    logp = torch.log_softmax(torch.randn(N, k, generator=torch.Generator().manual_seed(1)), -1) + math.log(
        0.9
    )
    return MuTopK(
        ids=torch.cat([b.actions[:, None], ids], 1).int(),
        logp=logp,
        logp_a=logp[:, 0],
        log_tail=torch.full((N,), math.log(0.1)),
        version=0,
    )


@pytest.mark.parametrize("V", [MINI, QWEN3])
@pytest.mark.parametrize("name", ["pg", "sc", "dlc"])
def test_top_k_mode_makes_no_tensor_of_tokens_times_vocabulary(V: int, name: str) -> None:
    b = sizes(V)
    k = 1 if name == "pg" else 64
    mu = synthetic_columns(b, k)
    with Allocations() as mode:
        stale = sel_logp(b.hidden_s, b.weight_s, mu.ids)
        f = column_coefficients(correction(name), mu, b.advantage, stale=stale)
        corrected_loss(b.hidden.requires_grad_(), b.weight.requires_grad_(), mu.ids, f).loss.backward()
    entries = len(b.actions) * V
    largest_but_one_chunk = chunk_size(len(b.actions), V) * V
    print(f"{name} at V={V}: largest tensor {mode.largest / entries:.3f} of [N, V]")
    assert mode.largest <= max(largest_but_one_chunk, b.weight.numel())
    assert mode.largest <= 0.25 * entries


@pytest.mark.parametrize("V", [MINI, QWEN3])
def test_peak_memory_is_a_fifth_of_plain_autograds(V: int) -> None:
    """T6: pg and top-K, live bytes of created tensors, the weight's gradient left out on both sides."""
    b = sizes(V)
    mu = synthetic_columns(b, 64)
    stale = sel_logp(b.hidden_s, b.weight_s, mu.ids)
    plain = peak_without_weight_gradient(naive_pg(b), b)
    for name in ("pg", "dlc"):
        f = column_coefficients(correction(name), mu, b.advantage, stale=stale)
        ids = mu.ids[:, :1] if name == "pg" else mu.ids
        f = f if name == "dlc" else constant_coefficients(b.advantage)
        peak = peak_without_weight_gradient(lambda h, w, i=ids, f=f: corrected_loss(h, w, i, f), b)
        print(f"{name} at V={V}: peak {peak / plain:.3f} of plain autograd's")
        assert peak <= 0.2 * plain


@pytest.mark.parametrize("V", [MINI, QWEN3])
def test_peak_memory_of_full_row_dlc_is_a_third_of_plain_autograds(V: int) -> None:
    """T7; the sampler's rows exist on both sides. 128 tokens at V = 151,936."""
    b = sizes(V)
    if V == QWEN3:
        b = b._replace(
            hidden=b.hidden[:128],
            actions=b.actions[:128],
            advantage=b.advantage[:128],
            hidden_s=b.hidden_s[:128],
        )
    rule = correction("dlc")
    logmu = torch.log_softmax(b.hidden_s @ b.weight.t(), -1)

    def plain(h: Tensor, w: Tensor) -> Any:
        pi_s = torch.log_softmax(b.hidden_s @ b.weight_s.t(), -1)
        return corrected_loss_row(h, w, b.actions, b.advantage, rule, mu_logp=logmu, pi_s_logp=pi_s)

    def fused(h: Tensor, w: Tensor) -> Any:
        stale = (b.hidden_s, b.weight_s)
        return fused_loss_row(h, w, b.actions, b.advantage, rule, mu_logp=logmu, stale=stale)

    ratio = peak_without_weight_gradient(fused, b) / peak_without_weight_gradient(plain, b)
    print(f"full-row dlc at V={V}: peak {ratio:.3f} of plain autograd's")
    assert ratio <= 0.3


def test_chunks_fit_their_buffer() -> None:
    assert chunk_size(2048, MINI) == 512
    assert chunk_size(512, QWEN3) == 128
    assert chunk_size(100_000, QWEN3) == 441
    assert chunk_size(5, QWEN3) == 5


# ---- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.zeros(3, 2, dtype=torch.int32)}, r"ids must be \(N, K\+1\) with N = 24, got \(3, 2\)"),
        ({"weight": torch.zeros(50, 9)}, r"weight \(V, H\), got \(24, 8\) and \(50, 9\)"),
        ({"temperature": 0.0}, "must be > 0, got 0.0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    b = batch()
    ids = change.get("ids", b.actions[:, None])
    weight = change.get("weight", b.weight)
    with pytest.raises(ValueError, match=message):
        corrected_loss(
            b.hidden,
            weight,
            ids,
            constant_coefficients(b.advantage),
            temperature=change.get("temperature", 1.0),
        )
