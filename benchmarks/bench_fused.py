"""Cost of the fused corrected loss: ratios of CPU time, variants interleaved in one process.

    OMP_NUM_THREADS=1 python -m pytest benchmarks/bench_fused.py --benchmark-only

Only ratios are meant: the machine may be busy, so each round runs every variant once, in turn, and a ratio is
the median over rounds of the ratio within a round. LAGFLOOR_BENCH_ROUNDS sets the rounds (default 5). Nothing
is asserted: the targets are printed beside what was measured.

Suffixes: N tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.interleaved import Interleaved
from real.process import prepare

prepare()

import torch  # noqa: E402 - after its variables are set
from torch import Tensor  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

from real.fused.columns import MuTopK  # noqa: E402
from real.fused.loss import corrected_loss, sel_logp  # noqa: E402
from real.fused.products import chunk_size  # noqa: E402
from real.fused.row import corrected_loss_row, fused_loss_row  # noqa: E402
from real.fused.rule import column_coefficients  # noqa: E402
from theory.corrections import correction  # noqa: E402

TOP_K = 64


class Size(NamedTuple):
    N: int
    H: int
    V: int


MINI = Size(2048, 256, 4096)
QWEN3 = Size(512, 1024, 151_936)


class Problem:
    """Random hidden states, head and columns of one size."""

    def __init__(self, size: Size) -> None:
        N, H, V = size
        g = torch.Generator().manual_seed(0)
        self.size = size
        self.hidden = torch.randn(N, H, generator=g)
        self.weight = torch.randn(V, H, generator=g) / H**0.5 * 2
        self.hidden_s = self.hidden + 0.1 * torch.randn(N, H, generator=g)
        self.actions = torch.randint(0, V, (N,), generator=g)
        self.advantage = torch.randn(N, generator=g)
        self.mu = self.columns(TOP_K, g)
        self.chunk = chunk_size(N, V)

    def columns(self, k: int, g: torch.Generator) -> MuTopK:
        """Top k of the sampler's rows, made in chunks; half of the sampled ids are among them."""
        top = torch.cat([(h @ self.weight.t()).topk(k, -1).indices for h in self.hidden_s.split(128)])
        inside = torch.rand(len(top), generator=g) < 0.5
        self.actions = torch.where(inside, top[:, 0], self.actions)
        ids = torch.cat([self.actions[:, None], top], 1).int()
        at = sel_logp(self.hidden_s, self.weight, ids)
        return MuTopK(ids=ids, logp=at.logp[:, 1:], logp_a=at.logp[:, 0], log_tail=at.log_tail, version=0)

    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.hidden.clone().requires_grad_(), self.weight.detach().requires_grad_()

    def floor(self) -> None:
        """Three matrix products in the same chunks, and nothing else."""
        N, _, V = self.size
        buffer = torch.empty(self.chunk, V)
        grad_hidden, grad_weight = torch.empty_like(self.hidden), torch.zeros_like(self.weight)
        for start in range(0, N, self.chunk):
            h = self.hidden[start : start + self.chunk]
            z = torch.mm(h, self.weight.t(), out=buffer[: len(h)])
            torch.mm(z, self.weight, out=grad_hidden[start : start + self.chunk])
            grad_weight.addmm_(z.t(), h)

    def naive(self) -> None:
        h, w = self.leaves()
        logits = h @ w.t()
        logp = logits.gather(1, self.actions[:, None])[:, 0] - torch.logsumexp(logits, -1)
        (-(self.advantage * logp).mean()).backward()

    def fused(self, name: str, *, columns: bool) -> Callable[[], None]:
        rule, mu = correction(name), self.mu
        if not columns:
            empty = self.mu.logp[:, :0]
            mu = MuTopK(ids=mu.ids[:, :1], logp=empty, logp_a=mu.logp_a, log_tail=mu.log_tail, version=0)
        stale = sel_logp(self.hidden_s, self.weight, mu.ids)
        f = column_coefficients(rule, mu, self.advantage, stale=stale)

        def run() -> None:
            h, w = self.leaves()
            corrected_loss(h, w, mu.ids, f).loss.backward()

        return run

    def pass_pi_s(self) -> None:
        sel_logp(self.hidden_s, self.weight, self.mu.ids)

    def rows(self) -> dict[str, Callable[[], None]]:
        """DLC on full rows: plain autograd, chunked, and its own floor of four products."""
        rule = correction("dlc")
        logmu = torch.log_softmax(self.hidden_s @ self.weight.t(), -1)

        def plain() -> None:
            h, w = self.leaves()
            pi_s = torch.log_softmax(self.hidden_s @ self.weight.t(), -1)
            corrected_loss_row(
                h, w, self.actions, self.advantage, rule, mu_logp=logmu, pi_s_logp=pi_s
            ).loss.backward()

        def fused(compiled: bool) -> None:
            h, w = self.leaves()
            stale = (self.hidden_s, self.weight)
            fused_loss_row(
                h, w, self.actions, self.advantage, rule, mu_logp=logmu, stale=stale, compiled=compiled
            ).loss.backward()

        return {
            "plain DLC, full row": plain,
            "fused DLC, full row": partial(fused, False),
            "fused DLC, full row, compiled": partial(fused, True),
        }


def variants(problem: Problem) -> dict[str, Callable[[], Any]]:
    return {
        "floor (three products)": problem.floor,
        "plain autograd pg": problem.naive,
        "fused pg": problem.fused("pg", columns=False),
        "fused tis": problem.fused("tis", columns=False),
        f"fused sc, top {TOP_K}": problem.fused("sc", columns=True),
        f"fused dlc, top {TOP_K}": problem.fused("dlc", columns=True),
        "pi_s pass": problem.pass_pi_s,
    }


def test_the_loss_at_a_vocabulary_of_4096(benchmark: Any, capsys: Any) -> None:
    problem = Problem(MINI)
    runs = Interleaved(variants(problem) | problem.rows())
    runs.measure(benchmark)
    floor, pg = "floor (three products)", "fused pg"
    targets = [
        ("T1", pg, "plain autograd pg", 0.85),
        ("T1", "fused tis", "plain autograd pg", 0.85),
        ("T2", pg, floor, 1.3),
        ("T3", f"fused sc, top {TOP_K}", pg, 1.5),
        ("T3", f"fused dlc, top {TOP_K}", pg, 1.5),
        ("T4", "fused DLC, full row, compiled", floor, 1.9),
        ("T4", "fused DLC, full row", floor, 1.9),
        ("T5", "pi_s pass", pg, 0.75),
    ]
    runs.report(capsys, benchmark, f"N, H, V = {tuple(MINI)}", targets)


def test_the_loss_at_a_vocabulary_of_151936(benchmark: Any, capsys: Any) -> None:
    problem = Problem(QWEN3)
    chosen = variants(problem)
    del chosen["fused tis"]  # differs from pg in [n, 1] arithmetic alone
    runs = Interleaved(chosen)
    runs.measure(benchmark)
    targets = [
        ("T2", "fused pg", "floor (three products)", 1.15),
        ("T3", f"fused sc, top {TOP_K}", "fused pg", 1.5),
        ("T3", f"fused dlc, top {TOP_K}", "fused pg", 1.5),
        ("T5", "pi_s pass", "fused pg", 0.75),
    ]
    runs.report(capsys, benchmark, f"N, H, V = {tuple(QWEN3)}", targets)


def test_the_pi_s_pass_beside_a_whole_training_step(benchmark: Any, capsys: Any) -> None:
    """Four layers of width 256 with a vocabulary of 4,096; 16 sequences of 64 tokens."""
    config = Qwen3Config(
        vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    tokens = torch.randint(0, 4096, (16, 64), generator=torch.Generator().manual_seed(0))
    ids = tokens[:, 1:].reshape(-1, 1)
    advantage = torch.ones(len(ids))
    head = model.lm_head.weight
    mu_logp = torch.full((len(ids),), -8.0)
    mu = MuTopK(ids=ids.int(), logp=torch.empty(len(ids), 0), logp_a=mu_logp, log_tail=mu_logp, version=0)
    f = column_coefficients(correction("pg"), mu, advantage)

    def hidden() -> Tensor:
        return model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1].reshape(-1, 256)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        corrected_loss(hidden(), head, ids, f).loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=1e-3)  # type: ignore[arg-type]

    @torch.no_grad()
    def pass_pi_s() -> None:
        sel_logp(hidden(), head, ids)

    runs = Interleaved({"training step": step, "pi_s pass": pass_pi_s})
    runs.measure(benchmark)
    runs.report(capsys, benchmark, "four-layer Qwen3, V = 4096", [("T5", "pi_s pass", "training step", 0.5)])
