"""The claims of the two articles, and three beyond them, as data.

One row a claim: what is said, with which figures, which law stands behind it, how it is checked and what its
control is. Margins stand beside the checks in `validation.checks`. A claim that fails at our scale is
reported as fails, with the boundary found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence that can be wrong."""

    id: str
    statement: str
    article: str
    """Figures or words of the article; Qwen3-0.6B/1.7B, Countdown, 64 x 8 samples, 40 steps, 3 seeds"""
    law: str
    """What is exact or derived about it"""
    source: str
    how: str
    """How it is checked here"""
    control: str
    """What is switched off so that the check must fail"""


_ROWS = (
    Claim(
        id="split",
        statement="log(mu/pi) is engine discrepancy plus policy lag, exactly, for every token",
        article='"divides exactly"',
        law="identity; three-point KL identity; variance and cumulant forms",
        source="articles 1 and 2",
        how="residual of the KL identity over full rows of a run, against float64 rounding",
        control="pi and pi_s swapped in one term",
    ),
    Claim(
        id="floor-constant",
        statement="engine discrepancy stays about constant in training while lag grows",
        article='"approximately constant"',
        law="slope of rms discrepancy over steps against slope of rms lag",
        source="articles 1 and 2",
        how="both slopes with interval",
        control="noise scaled with the entropy of the policy",
    ),
    Claim(
        id="centering",
        statement="centring the score at each prefix removes most of the bias of the numerics",
        article='"removes most"; SC near the floor under FP8',
        law="removes exactly (mu.A)(mu - pi), leaves H delta; nothing to gain where mu.A = 0",
        source="article 1",
        how="bias before and after against both terms",
        control="group baseline on a shared prefix, where PG and SC agree bit for bit",
    ),
    Claim(
        id="feedback",
        statement="bias moves the trainer, which enlarges the lag, which enlarges the bias",
        article='"positive feedback loop"',
        law="loop matrices: PG -Abar F (growth iff Abar < 0), SC 0 (linear growth), IS H",
        source="articles 1 and 2",
        how="predicted lag norm per step within the next-order term",
        control="resync every step",
    ),
    Claim(
        id="ess-half",
        statement="importance weighting works while ESS >= 1/2 and leaves the noise floor as ESS crosses it",
        article="leaves at step 11, the crossing (1.7B)",
        law="ESS = 1/(1 + chi2); CV(w) = 1 at one half; no phase transition there",
        source="articles 1 and 2",
        how="first step with deviation above 2 floors against the crossing step, token and response level",
        control="importance weighting with resync, which must not leave",
    ),
    Claim(
        id="heavy-tail",
        statement="heavy tails bring the crossing earlier than a Gaussian predicts",
        article="step 11 against 14",
        law="earlier iff k3 + 7/12 k4 + ... > 0; closed forms per family",
        source="articles 1 and 2",
        how="crossing against the predictors var, KL and extrapolated",
        control="Gaussian and left-skewed log ratios",
    ),
    Claim(
        id="excess",
        statement="the excess update of score centring over IS grows with the square of lr x steps",
        article='"positive quadratic term"',
        law="|D_SC - D_IS| = (t^2/2)|Hg|; per step |u_SC - u_IS|^2 = t^2 |Hg|^2, t = lr x steps",
        source="article 1",
        how="ratio 4 on doubling lr; coefficient against the closed form",
        control="H g = 0",
    ),
    Claim(
        id="dlc",
        statement="DLC under a stale sampler stays within 2 floors and resyncs rarely",
        article="1.9x (0.6B); one resync in 40 steps (1.7B: at 20, 35, 36)",
        law="lag ratio with matched centre leaves H delta at any lag; the resync bounds the lag",
        source="articles 1 and 2",
        how="deviation at the end and at the worst step; resyncs counted",
        control="resync off",
    ),
    Claim(
        id="resync-is",
        statement="the same resync rescues plain importance weighting",
        article="115x -> 2.6x",
        law="the resync bounds the lag whatever the correction",
        source="article 2",
        how="deviation at the end, with and without",
        control="resync off",
    ),
    Claim(
        id="quantised",
        statement="quantised, every correction stays near the floor and PG does not; SC keeps its accuracy",
        article="PG 13x; SC 46.5% = on-policy",
        law="PG bias Abar F delta + H delta; SC leaves H delta",
        source="article 2",
        how="FP8 at three strengths (weights, activations, KV cache); Gaussian noise on the toy",
        control="exact engine",
    ),
    Claim(
        id="stale",
        statement="stale, SC collapses, IS with SC holds, PPO on the trainer before each batch is worst",
        article="SC 32x, 12.2%; IS+SC 2.1x, 32.0%; PPO 699x",
        law="SC moves at constant velocity towards argmax mu (A - Abar)",
        source="article 2",
        how="deviation and accuracy per correction",
        control="sync every step",
    ),
    Claim(
        id="ppo-reference",
        statement="PPO clipped against the sampler survives mild staleness and breaks under quantisation",
        article='"survives staleness but breaks under quantization and synthetic weight noise"',
        law="a before-batch reference has ratio 1 on its first update, so it is PG",
        source="article 1",
        how="reference x (stale 2..64, FP8, weight noise)",
        control="exact engine, sync every step",
    ),
    Claim(
        id="staleness-lr",
        statement="collapse depends on staleness x lr only",
        article='"grows with the product"',
        law="deviation (t^2/2)(M - H)g with t = lr x sync period",
        source="article 1",
        how="equal products agree within the finite-lr correction",
        control="unequal products",
    ),
    Claim(
        id="off-support",
        statement="the trainer's off-support share rises at a collapse and stays low with resync",
        article="about 90% against <= 14% before; <= 11% with resync",
        law="share and KL of an absorbing exit in closed form",
        source="article 2",
        how="share per step of each run",
        control="on-policy",
    ),
    Claim(
        id="invisible",
        statement="next-token KL on the sampler's prefixes does not see the collapse",
        article='"remains within the range of healthy runs"',
        law="KL per token >= -ln(1 - P_off)/T, attained",
        source="article 2",
        how="off-support share beside the KL on the sampler's prefixes; exact chain",
        control="KL on the trainer's own prefixes",
    ),
    Claim(
        id="rank",
        statement="the off-support share ranks the accuracy drop better than the deviation does",
        article="Spearman 0.80 against 0.74",
        law="none",
        source="article 2",
        how="both rank correlations with bootstrap interval over all checkpoints",
        control="shuffled checkpoints",
    ),
    Claim(
        id="noise-floor",
        statement="the KL between two on-policy runs, set by sampling noise, is the unit of deviation",
        article="the unit of every figure",
        law="floor = tr(F Cov), growing as lr^2 k / B",
        source="articles 1 and 2",
        how="fresh on-policy runs lie at one floor; half the batch, twice the floor",
        control="a stale run; the same batch",
    ),
    Claim(
        id="infra-top-p",
        statement="top-p sampling adds a mismatch that neither correction removes",
        article="removed at the infrastructure layer",
        law="exact bias vectors of a truncated nucleus",
        source="articles 1 and 2",
        how="measured bias against the vector; real engine: processed log-probs",
        control="top-p = 1",
    ),
    Claim(
        id="infra-retokenisation",
        statement="re-tokenising responses adds a log ratio that is neither discrepancy nor lag",
        article="removed at the infrastructure layer",
        law="bias P(a,b) A (e_ab - e_a) and its spurious log ratio",
        source="articles 1 and 2",
        how="measured bias against the vector; real engine: token ids end to end",
        control="token ids kept",
    ),
    Claim(
        id="infra-reward-filter",
        statement="filtering responses by reward makes the batch depend on the outcome",
        article="removed at the infrastructure layer",
        law="pure rescale on-policy, drift Abar_c (mu - pi) under a discrepancy",
        source="articles 1 and 2",
        how="measured drift against the vector; real engine: batches formed whatever the outcome",
        control="no filter",
    ),
    Claim(
        id="infra-deferred",
        statement="deferring long responses mixes weight versions within a batch",
        article="removed at the infrastructure layer",
        law="bias sum over long responses of (pi_{k-1} - pi_k) A psi_k in the steady state",
        source="articles 1 and 2",
        how="measured bias against the vector; real engine: one version per batch",
        control="no deferral",
    ),
    Claim(
        id="forecast",
        statement="the first steps of a run predict its crossing step with an interval",
        article="beyond the articles",
        law="growth of the cumulants of log w",
        source="this project",
        how="runs made after the predictor was fixed: share within one step, coverage of the interval",
        control="the three Gaussian predictors on the same runs",
    ),
    Claim(
        id="monitor",
        statement="a trigger from ESS, tail index and missing mass fires within a step of the crossing",
        article="beyond the articles",
        law="ESS reads high under heavy tails; 1 - E_mu w estimates mass outside the sampler's support",
        source="this project",
        how="steps between true crossing and firing; false alarms counted",
        control="the plain estimator on the same runs",
    ),
    Claim(
        id="cheapest",
        statement="for a run, some pair of correction and resync rule keeps 2 floors with the fewest syncs",
        article="beyond the articles",
        law="none",
        source="this project",
        how="frontier of deviation against syncs",
        control="sync every step",
    ),
)

CLAIMS: Mapping[str, Claim] = MappingProxyType({row.id: row for row in _ROWS})


def claim(id: str, /) -> Claim:
    """Return a claim by its id.

    Raises
    ------
    ValueError
        For an unknown id, naming the known ones.
    """
    if id not in CLAIMS:
        raise ValueError(f"unknown claim {id!r}; known: {', '.join(CLAIMS)}")
    return CLAIMS[id]
