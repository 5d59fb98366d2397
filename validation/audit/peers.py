"""The frameworks' own mismatch metrics, under their own names and with their own definitions.

They stand beside ours so that a user recognises them; where one hides what the raw numbers show, the report
says so.
Clips and exponent bounds are the frameworks' defaults.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from validation.audit.sums import ess_of_sums

VERL_CLAMP = 2.0
"""verl's rollout_is_threshold: its ESS is taken on weights clamped to [0, 2]"""
SWIFT_CLAMP = 2.0
"""ms-swift clamps to [1/2, 2], so that its ESS cannot fall below 4/(2 + 1/2)^2 = 0.64"""
TRL_CLIP = 3.0
"""TRL's vllm_importance_sampling_clip_max; its default mode zeroes whole responses above it"""
_SAFETY = 20.0
"""verl bounds log ratios to +-20 before the exponential"""


class PeerSums:
    """Sums behind the frameworks' metrics, over tokens and over responses."""

    def __init__(self) -> None:
        self.n = 0
        self.rows = 0
        self.sums: dict[str, float] = {}
        self.largest: dict[str, float] = {}

    def _add(self, **values: Any) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def _top(self, name: str, value: float) -> None:
        self.largest[name] = max(self.largest.get(name, -math.inf), float(value))

    def add(self, mu: np.ndarray, d: np.ndarray, ratio: np.ndarray, starts: np.ndarray, /) -> None:
        """Take tokens (n,) of whole responses; response i has tokens from ``starts[i]`` to the next start."""
        if d.size == 0:
            return
        self.n += d.size
        bounded = np.minimum(ratio, math.exp(_SAFETY))
        verl = np.minimum(ratio, VERL_CLAMP)
        swift = np.clip(ratio, 1 / SWIFT_CLAMP, SWIFT_CLAMP)
        p = np.exp(np.minimum(mu, 0.0))
        q = p * np.minimum(ratio, 1e30)
        gap = np.abs(p - q)
        size = np.abs(d)
        self._add(
            d=d.sum(),
            d2=d @ d,
            abs_d=size.sum(),
            bounded2=bounded @ bounded,
            k3=ratio.sum() - d.size + d.sum(),
            verl=verl.sum(),
            verl2=verl @ verl,
            swift=swift.sum(),
            swift2=swift @ swift,
            p=p.sum(),
            q=q.sum(),
            pp=p @ p,
            qq=q @ q,
            pq=p @ q,
            gap=gap.sum(),
            gap2=gap @ gap,
            mult=np.exp(np.minimum(size, 300.0)).sum(),
            reverse=p @ d,
        )
        self._top("gap", gap.max())
        self._top("abs_d", size.max())
        self._add_responses(d, size, starts)

    def _add_responses(self, d: np.ndarray, size: np.ndarray, starts: np.ndarray) -> None:
        lengths = np.diff(np.append(starts, d.size))
        total = -np.add.reduceat(d, starts)
        product = np.exp(np.clip(total, -_SAFETY, _SAFETY))
        kept = np.where(product <= TRL_CLIP, product, 0.0)
        squared = np.exp(2 * np.clip(total, -_SAFETY, _SAFETY))
        per_response = np.add.reduceat(size, starts) / lengths
        self.rows += len(starts)
        self._add(
            trl=kept.sum(),
            chi2_seq=squared.sum(),
            slime=per_response.sum(),
            geometric=np.exp(np.clip(total / lengths, -_SAFETY, _SAFETY)).sum(),
        )

    def metrics(self) -> dict[str, float]:
        """Each framework's figure by its logged name; empty if there were no tokens."""
        n, s = self.n, self.sums
        if n == 0:
            return {}
        var_p, var_q = s["pp"] / n - (s["p"] / n) ** 2, s["qq"] / n - (s["q"] / n) ** 2
        cov = s["pq"] / n - s["p"] * s["q"] / n**2
        pearson = cov / math.sqrt(var_p * var_q) if var_p > 0 and var_q > 0 else math.nan
        gap = s["gap"] / n
        return {
            "verl rollout_corr/kl": s["d"] / n,
            "verl rollout_corr/k3_kl": s["k3"] / n,
            "verl rollout_corr/chi2_token": s["bounded2"] / n - 1,
            "verl rollout_corr/chi2_seq": s["chi2_seq"] / self.rows - 1,
            "verl rollout_corr/rollout_is_mean": s["verl"] / n,
            "verl rollout_corr/rollout_is_eff_sample_size": ess_of_sums(n, s["verl"], s["verl2"]),
            "verl training/rollout_probs_diff_mean": gap,
            "verl training/rollout_probs_diff_max": self.largest["gap"],
            "verl training/rollout_probs_diff_std": math.sqrt(max(s["gap2"] / n - gap**2, 0.0)),
            "verl training/rollout_actor_probs_pearson_corr": pearson,
            "ms-swift rollout_correction/ess": ess_of_sums(n, s["swift"], s["swift2"]),
            "TRL sampling/sampling_logp_difference/mean": s["abs_d"] / n,
            "TRL sampling/sampling_logp_difference/max": self.largest["abs_d"],
            "TRL sampling/importance_sampling_ratio/mean": s["trl"] / self.rows,
            "slime train_rollout_logprob_abs_diff": s["slime"] / self.rows,
            "SkyRL policy/rollout_train_logprobs_abs_diff_mean": s["abs_d"] / n,
            "prime-rl mismatch_kl/all/mean": s["k3"] / n,
            "NeMo-RL token_mult_prob_error": s["mult"] / n,
            "NeMo-RL gen_kl_error": s["k3"] / n,
            "open-instruct debug/vllm_vs_local_logprob_diff_mean": s["abs_d"] / n,
            "open-instruct debug/vllm_local_reverse_kl": s["reverse"] / n,
            "tinker optim/kl_sample_train_v1": s["d"] / n,
            "tinker optim/kl_sample_train_v2": s["d2"] / n / 2,
            "OpenRLHF vllm_kl": s["d"] / n,
            "response ratio, geometric mean": s["geometric"] / self.rows,
        }
