"""verl 0.9.1 with the core: registry, gradients, its own FSDP engine on a CPU, the gated trainer's decisions.

Runs where verl is installed (`make test-integrations`). Its engine and trainer are real; what needs a cluster
is a stand-in.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_cpu,real.verl.losses")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
pytest.importorskip("verl", reason="verl is not installed here; `make test-integrations` installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # verl's own imports warn in many ways

import torch  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from torch import Tensor  # noqa: E402
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.metric import AggregationType, Metric, reduce_metrics  # noqa: E402
from wrong_values import hints_of, refuses_every_wrong_value  # noqa: E402

from real.verl.gate import Gate  # noqa: E402
from real.verl.losses import REGISTERED, LagPolicyLossConfig, rule_of  # noqa: E402
from real.verl.sums import lag_sums, measures_of_sums  # noqa: E402
from theory.centering import coefficients  # noqa: E402
from theory.corrections import Logps  # noqa: E402
from theory.ess import ess_fraction, response_ess  # noqa: E402

EPS = torch.finfo(torch.float64).eps


def actor_config(loss_mode: str, **policy_loss):
    """verl's own ActorConfig, as its command line would build it."""
    return omega_conf_to_dataclass(
        OmegaConf.create(
            {
                "_target_": "verl.workers.config.ActorConfig",
                "strategy": "fsdp2",
                "rollout_n": 1,
                "ppo_micro_batch_size_per_gpu": 2,
                "policy_loss": {
                    "_target_": "real.verl.losses.LagPolicyLossConfig",
                    "loss_mode": loss_mode,
                    **policy_loss,
                },
            }
        )
    )


def batch(seed: int = 0, responses: int = 4, tokens: int = 6) -> dict[str, Tensor]:
    """A padded micro-batch in float64 with a lag of .8 nats and a discrepancy of .2."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    pi = normal(responses, tokens) * 0.5 - 2
    pi_s = pi + 0.8 * normal(responses, tokens)
    mu = pi_s + 0.2 * normal(responses, tokens)
    mask = torch.ones(responses, tokens, dtype=torch.bool)
    mask[0, 4:] = False
    advantage = normal(responses, 1).expand(responses, tokens).contiguous()
    return {"pi": pi, "pi_s": pi_s, "mu": mu, "mask": mask, "advantage": advantage}


def call(loss_mode: str, b: dict[str, Tensor], *, weights: bool = True, **policy_loss):
    """Loss, gradient at log pi, and metrics of a registered loss, as verl calls it."""
    pi = b["pi"].clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(loss_mode)(
        old_log_prob=b["pi_s"],
        log_prob=pi,
        advantages=b["advantage"],
        response_mask=b["mask"],
        loss_agg_mode="token-mean",
        config=actor_config(loss_mode, **policy_loss),
        rollout_is_weights=torch.exp(b["pi_s"] - b["mu"]) if weights else None,
    )
    loss.backward()
    assert pi.grad is not None
    return loss, pi.grad, metrics


@pytest.mark.parametrize("mode", [m for m in REGISTERED if not rule_of({"loss_mode": m}).centered])
def test_the_gradient_of_a_registered_loss_is_the_cores(mode: str) -> None:
    assert mode in POLICY_LOSS_REGISTRY
    b, rule = batch(), rule_of({"loss_mode": mode})
    if rule.lr_power:
        with pytest.raises(ValueError, match="learning rate"):
            call(mode, b)
        return
    _, gradient, _ = call(mode, b)
    wanted = coefficients(rule, Logps(b["mu"], b["pi_s"], b["pi"]), b["advantage"], mask=b["mask"]).token
    if mode == "lagfloor-clip-on-lag":
        wanted = wanted * torch.exp(b["pi_s"] - b["mu"])
    wanted = -wanted / b["mask"].sum()
    error = (gradient - wanted).abs().max()
    # the ratio is exp of a sum of logs up to 8 nats, which the engine's log-probs reach through two roundings
    assert error <= 8 * EPS * 8 * wanted.abs().max(), f"{mode}: {error:.3g}"


def test_a_change_in_the_config_reaches_the_row() -> None:
    b = batch()
    _, cut, _ = call("lagfloor-tis", b, changes={"high": 1.0})
    _, loose, _ = call("lagfloor-tis", b, changes={"high": 50.0})
    w = torch.exp(b["pi"] - b["mu"])
    assert (cut.abs() < loose.abs())[b["mask"] & (w > 1)].all()
    assert torch.equal(cut[w <= 1], loose[w <= 1])


def test_a_ratio_to_the_engine_without_its_log_probs_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout_is=token"):
        call("lagfloor-is", batch(), weights=False)


def test_in_bypass_mode_the_old_log_probs_are_the_engines() -> None:
    b = batch()
    _, gradient, metrics = call("lagfloor-is", b | {"pi_s": b["mu"]}, weights=False, old_log_probs_are="mu")
    wanted = -(b["advantage"] * torch.exp(b["pi"] - b["mu"]) * b["mask"]) / b["mask"].sum()
    assert torch.allclose(gradient, wanted, rtol=64 * EPS, atol=0)
    assert metrics == {}, "without pi_s no lag was measured"
    with pytest.raises(ValueError, match="bypass_mode=false"):
        call("lagfloor-clip-on-lag", b, old_log_probs_are="mu")


@pytest.mark.parametrize("mode", ["lagfloor-sc", "lagfloor-dlc"])
def test_a_centred_row_without_logits_says_where_they_are(mode: str) -> None:
    with pytest.raises(ValueError, match="lag_gated"):
        call(mode, batch())


def test_an_unknown_row_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="lagfloor-tis"):
        rule_of({"loss_mode": "lagfloor-nothing"})


def test_verls_mean_of_the_sums_gives_the_ess_of_the_pool_exactly() -> None:
    parts = [
        batch(seed, responses, tokens) for seed, (responses, tokens) in enumerate([(4, 6), (2, 9), (5, 7)])
    ]
    metric: dict[str, Metric] = {}
    for b in parts:
        for name, value in lag_sums(b["pi_s"], b["pi"], b["mask"]).items():
            metric.setdefault(name, Metric(AggregationType.MEAN)).append(value)
    got = measures_of_sums(reduce_metrics(metric))
    log_w = torch.cat([(b["pi"] - b["pi_s"])[b["mask"]] for b in parts])
    whole = torch.cat([torch.where(b["mask"], b["pi"] - b["pi_s"], 0.0).sum(-1) for b in parts])
    assert got["ess_token"] == pytest.approx(ess_fraction(log_w).item(), rel=64 * EPS)
    assert got["ess_sequence"] == pytest.approx(ess_fraction(whole).item(), rel=64 * EPS)
    assert got["k2"] == pytest.approx(log_w.var(correction=0).item(), rel=1024 * EPS)
    mean_of_ess = sum(ess_fraction((b["pi"] - b["pi_s"])[b["mask"]]).item() for b in parts) / len(parts)
    assert abs(mean_of_ess - got["ess_token"]) > 1e-2, "the control: an average of ESS is another number"


def test_the_response_level_of_the_sums_is_the_cores() -> None:
    b = batch(3)
    got = measures_of_sums(lag_sums(b["pi_s"], b["pi"], b["mask"]))
    wanted = response_ess(b["pi"] - b["pi_s"], mask=b["mask"]).item()
    assert got["ess_sequence"] == pytest.approx(wanted, rel=64 * EPS)


def test_sums_that_overflow_or_count_nothing_are_defined() -> None:
    b = batch()
    nothing = lag_sums(b["pi_s"], b["pi"], torch.zeros_like(b["mask"]))
    assert measures_of_sums(nothing) == {}
    huge = lag_sums(b["pi_s"], b["pi"] + torch.eye(4, 6) * 800, b["mask"])
    assert measures_of_sums(huge)["ess_token"] == pytest.approx(1 / b["mask"].sum().item())


def test_the_gate_fires_on_a_recorded_series_as_the_rule_says() -> None:
    # ESS at the new weights, recorded in a run whose sampler was pushed where it fell below 1/2
    recorded = [
        0.977,
        0.932,
        0.957,
        0.941,
        0.924,
        0.826,
        0.450,
        0.013,
        0.485,
        0.972,
        0.923,
        None,
        0.887,
        0.121,
    ]
    gate, held, pushed = Gate(resync_below=0.5, sync_every=64), 0, []
    for step, ess in enumerate(recorded, start=1):
        held += 1
        if gate.fires(ess, held):
            pushed.append(step)
            held = 0
    assert pushed == [7, 8, 9, 14]


def test_the_gate_falls_back_on_its_schedule_and_holds_without_a_vote() -> None:
    gate = Gate(resync_below=0.5, sync_every=3)
    assert [gate.fires(None, held) for held in (1, 2, 3)] == [False, False, True]
    assert gate.fires(float("nan"), 1), "broken log-probs are no evidence that a batch is usable"
    assert not Gate(resync_below=0.0, sync_every=64).fires(0.01, 40), "the articles' stale sampler"
    with pytest.raises(ValueError, match="never pushes"):
        Gate(resync_below=0.0, sync_every=0)


@pytest.mark.parametrize("name", ["loss_mode", "old_log_probs_are", "changes", "top_k"])
def test_every_wrong_value_of_our_fields_of_verls_config_is_refused_in_one_line(name: str) -> None:
    hint = hints_of(LagPolicyLossConfig)[name]
    refuses_every_wrong_value(LagPolicyLossConfig, name, hint, {"loss_mode": "lagfloor-tis"})


def test_a_config_refuses_a_change_that_its_row_has_no_field_for_or_no_meaning() -> None:
    for changes in ({"nonsense": 1}, {"high": -1.0}, {"high": "5"}):
        with pytest.raises(ValueError, match=r"got|unknown|no field"):
            LagPolicyLossConfig(loss_mode="lagfloor-tis", changes=changes)
    with pytest.raises(ValueError, match="must be a row of the corrections table, got 'lagfloor-nonsense'"):
        LagPolicyLossConfig(loss_mode="lagfloor-nonsense")
    assert LagPolicyLossConfig().loss_mode == "vanilla"
