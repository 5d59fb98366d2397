"""The statistics pass and the weights of truncated IS beside verl's helper and TRL's formula, in one run.

    OMP_NUM_THREADS=1 .venv-verl/bin/python -m pytest benchmarks/bench_statistics.py --benchmark-only

512 x 256 tokens in float32, three quarters of them responses. Ours: exact split, pooled raw ESS at the token
and the response level, four cumulants, k3, chi2 and k-hat, as a dictionary of numbers; the monitor adds its
decision. verl's helper (0.9.1) is its own function, so the comparison needs verl's environment and is skipped
elsewhere; TRL's metrics (1.16) are computed inside its trainer's step, so what they say is written out here:
|difference| mean and largest, ratio smallest, mean and largest, each read back as a number.
The weights are those of token-level truncated IS: verl's call makes its metrics in the same breath and cannot
be asked for less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.interleaved import Interleaved
from theory.centering import coefficients
from theory.corrections import Logps, correction
from theory.monitor import Monitor
from theory.token_measures import token_measures

LIMIT = 0.5
"""Wanted: time of ours over that of verl's helper"""
SHAPE = (512, 256)


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs of one batch: engine noise .02, heavy-tailed lag of variance about .1."""
    g = torch.Generator().manual_seed(0)
    logpi = -torch.rand(SHAPE, generator=g) * 3 - 3.05
    scale = torch.rand(SHAPE, generator=g) * 0.6
    logpi_s = logpi - scale * torch.randn(SHAPE, generator=g)
    logmu = logpi_s + 0.02 * torch.randn(SHAPE, generator=g)
    lengths = torch.randint(SHAPE[1] // 2, SHAPE[1] + 1, (SHAPE[0], 1), generator=g)
    return logmu, logpi_s, logpi, torch.arange(SHAPE[1])[None] < lengths


def trl(
    logmu: torch.Tensor, logpi_s: torch.Tensor, logpi: torch.Tensor, mask: torch.Tensor
) -> dict[str, float]:
    """TRL compares the trainer's log-probs of the batch with the sampler's: here pi_s with mu."""
    difference = (logpi_s - logmu).abs()[mask]
    ratio = torch.exp((logpi_s - logmu) * mask).clamp(max=3.0)[mask]
    return {
        "sampling_logp_difference/mean": difference.mean().item(),
        "sampling_logp_difference/max": difference.max().item(),
        "importance_sampling_ratio/min": ratio.min().item(),
        "importance_sampling_ratio/mean": ratio.mean().item(),
        "importance_sampling_ratio/max": ratio.max().item(),
    }


def core_weights(
    logmu: torch.Tensor, logpi_s: torch.Tensor, logpi: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Coefficients of the truncated-IS policy gradient, which include the advantage, here 1."""
    ones = torch.ones_like(logpi)
    return coefficients(correction("tis"), Logps(logmu, logpi_s, logpi), ones, mask=mask).token


def trl_weights(logmu: torch.Tensor, logpi: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.exp((logpi - logmu) * mask).clamp(max=2.0) * mask


def verl_helper() -> Callable[..., dict[str, float]]:
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason="needs verl's environment")

    def run(
        logmu: torch.Tensor, logpi_s: torch.Tensor, logpi: torch.Tensor, mask: torch.Tensor, level: str | None
    ) -> dict[str, float]:
        _, _, metrics = helper.compute_rollout_correction_and_rejection_mask(
            old_log_prob=logpi, rollout_log_prob=logpi_s, response_mask=mask.float(), rollout_is=level
        )
        return metrics

    return run


def show(benchmark: Any, capsys: Any, variants: dict[str, Callable[[], Any]], targets: list) -> None:
    turns = Interleaved(variants)
    turns.measure(benchmark)
    turns.report(capsys, benchmark, f"statistics of {SHAPE[0]} x {SHAPE[1]} tokens", targets)


def test_ours_beside_verls_helper(benchmark, capsys) -> None:
    batch = tensors()
    helper = verl_helper()
    theirs = helper(*batch, level="token")
    # same tensors, same question; their ESS is that of clipped weights, another number
    k3 = token_measures(*batch[:3], mask=batch[3])["kl_k3"]
    assert math.isclose(theirs["rollout_corr/k3_kl"], k3, rel_tol=1e-3)
    variants: dict[str, Callable[[], Any]] = {
        "ours": lambda: token_measures(*batch[:3], mask=batch[3]),
        "verl, token weights": lambda: helper(*batch, level="token"),
        "verl, sequence weights": lambda: helper(*batch, level="sequence"),
        "verl, metrics only": lambda: helper(*batch, level=None),
        "ours, Monitor": lambda: Monitor(resamples=0).update(*batch[:3], mask=batch[3]),
        "ours, with tis weights": lambda: (token_measures(*batch[:3], mask=batch[3]), core_weights(*batch)),
    }
    targets = [("stats", "ours", name, LIMIT) for name in list(variants)[1:4]]
    targets.append(("monitor", "ours, Monitor", "verl, token weights", math.inf))
    targets.append(("both", "ours, with tis weights", "verl, token weights", math.inf))
    show(benchmark, capsys, variants, targets)


def test_ours_beside_trls_metrics(benchmark, capsys) -> None:
    batch = tensors()
    show(
        benchmark,
        capsys,
        {
            "ours, all statistics": lambda: token_measures(*batch[:3], mask=batch[3]),
            "TRL, five metrics": lambda: trl(*batch),
            "ours, tis weights": lambda: core_weights(*batch),
            "TRL, tis weights": lambda: trl_weights(batch[0], batch[2], batch[3]),
        },
        [
            ("stats", "ours, all statistics", "TRL, five metrics", math.inf),
            ("tis", "ours, tis weights", "TRL, tis weights", math.inf),
        ],
    )


def test_tis_weights_are_trls() -> None:
    logmu, logpi_s, logpi, mask = tensors()
    torch.testing.assert_close(core_weights(logmu, logpi_s, logpi, mask), trl_weights(logmu, logpi, mask))
