"""One file per claim: margins as constants with their reason, and a function from evidence to checks.

A file never asks which engine the evidence is from. To add a claim, write its file and name it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from validation import plan
from validation.check import Check
from validation.checks import (
    centering,
    cheapest,
    dlc,
    ess_half,
    excess,
    feedback,
    floor_constant,
    forecast,
    heavy_tail,
    infrastructure,
    invisible,
    monitor,
    noise_floor,
    off_support,
    ppo_reference,
    quantised,
    rank,
    resync_is,
    split,
    stale,
    staleness_lr,
)
from validation.claims import CLAIMS
from validation.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChecks:
    """How a claim is checked on an engine's runs, and which of them it reads."""

    checks: Callable[[Evidence], list[Check]]
    cells: tuple[str, ...]
    """Names of the cells in `validation.plan`, beside the on-policy reference"""
    every_rate: bool = False
    """Whether it reads the worlds at all learning rates"""
    probes: tuple[str, ...] = ()
    """Names of the analyses it reads, `validation.plan.PROBES`"""
    engines: tuple[plan.Engine, ...] = ("toy", "real")
    """Where it can be checked"""


_TOY: tuple[plan.Engine, ...] = ("toy",)
_INFRA = ("infra",)
_SCHEDULES = tuple(plan.scheduled(rule, n) for rule in plan.SCHEDULED for n in plan.PERIODS)

CHECKS: Mapping[str, ClaimChecks] = MappingProxyType(
    {
        "split": ClaimChecks(checks=split.checks, cells=(plan.IS,)),
        "floor-constant": ClaimChecks(
            checks=floor_constant.checks, cells=(plan.NOISY, plan.NOISY_STALE, plan.IS), engines=_TOY
        ),
        "centering": ClaimChecks(checks=centering.checks, cells=(), probes=("centering",), engines=_TOY),
        "feedback": ClaimChecks(checks=feedback.checks, cells=(), probes=("feedback",), engines=_TOY),
        "noise-floor": ClaimChecks(checks=noise_floor.checks, cells=(plan.HALF_BATCH, plan.PG)),
        "ess-half": ClaimChecks(
            checks=ess_half.checks,
            cells=(plan.PG, plan.IS, plan.IS_RESYNC, plan.SEQ_IS, plan.SEQ_IS_RESYNC),
            every_rate=True,
        ),
        "heavy-tail": ClaimChecks(checks=heavy_tail.checks, cells=(plan.IS,), every_rate=True, engines=_TOY),
        "excess": ClaimChecks(checks=excess.checks, cells=(), probes=("excess",), engines=_TOY),
        "stale": ClaimChecks(checks=stale.checks, cells=(plan.PG, plan.SC, plan.IS_SC, plan.IS)),
        "dlc": ClaimChecks(checks=dlc.checks, cells=(plan.DLC, plan.DLC_RESPONSE, plan.DLC_FREE, plan.IS)),
        "resync-is": ClaimChecks(
            checks=resync_is.checks,
            cells=(plan.IS, plan.IS_RESYNC, plan.SEQ_IS, plan.SEQ_IS_RESYNC),
        ),
        "quantised": ClaimChecks(
            checks=quantised.checks,
            cells=tuple(plan.quantised(rule, how) for rule in plan.QUANTISED for how in plan.STRENGTHS),
            every_rate=True,
            engines=_TOY,
        ),
        "ppo-reference": ClaimChecks(
            checks=ppo_reference.checks, cells=ppo_reference.CELLS, every_rate=True, engines=_TOY
        ),
        "staleness-lr": ClaimChecks(
            checks=staleness_lr.checks,
            cells=tuple(
                plan.scheduled(rule, n) for rule in (plan.PG, plan.SC) for n in plan.EQUAL_PRODUCT.values()
            ),
            every_rate=True,
            engines=_TOY,
        ),
        "off-support": ClaimChecks(
            checks=off_support.checks,
            cells=(plan.PG, plan.SC, plan.PG_RESYNC, plan.SC_RESYNC, plan.IS_RESYNC, plan.DLC),
            every_rate=True,
            engines=_TOY,
        ),
        "invisible": ClaimChecks(checks=invisible.checks, cells=(), probes=("invisible",), engines=_TOY),
        "rank": ClaimChecks(checks=rank.checks, cells=tuple(plan.CORRECTIONS), every_rate=True, engines=_TOY),
        "infra-top-p": ClaimChecks(checks=infrastructure.top_p, cells=(), probes=_INFRA, engines=_TOY),
        "infra-retokenisation": ClaimChecks(
            checks=infrastructure.retokenisation, cells=(), probes=_INFRA, engines=_TOY
        ),
        "infra-reward-filter": ClaimChecks(
            checks=infrastructure.reward_filter, cells=(), probes=_INFRA, engines=_TOY
        ),
        "infra-deferred": ClaimChecks(checks=infrastructure.deferred, cells=(), probes=_INFRA, engines=_TOY),
        "forecast": ClaimChecks(checks=forecast.checks, cells=forecast.CELLS, every_rate=True, engines=_TOY),
        "monitor": ClaimChecks(checks=monitor.checks, cells=(), probes=("monitor",), engines=_TOY),
        "cheapest": ClaimChecks(checks=cheapest.checks, cells=(*plan.CORRECTIONS, *_SCHEDULES), engines=_TOY),
    }
)
"""By claim id, in the order of the verdict table"""


def selected(only: Iterable[str], /, *, engine: str = "toy") -> list[str]:
    """Ids of the claims to check on an engine, in table order; all that have a check if `only` is empty.

    Raises
    ------
    ValueError
        For an id that is unknown or has no check yet.
    """
    wanted = list(only)
    known = [name for name, row in CHECKS.items() if engine in row.engines]
    for name in wanted:
        if name not in CLAIMS:
            raise ValueError(f"unknown claim {name!r}; known: {', '.join(CLAIMS)}")
        if name not in known:
            raise ValueError(f"claim {name!r} has no check here yet; checked: {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted]


def needed(whole: plan.Plan, claims: Iterable[str], /) -> plan.Plan:
    """Keep of a plan what some claims read."""
    rows = [CHECKS[name] for name in claims]
    cells = {plan.ON_POLICY}.union(*(row.cells for row in rows))
    rates = any(row.every_rate for row in rows)
    worlds = tuple(
        replace(world, cells=tuple(c for c in world.cells if c.name in cells))
        for world in whole.worlds
        if world.main or rates
    )
    probes = {probe for row in rows for probe in row.probes}
    return replace(whole, worlds=worlds, probes=tuple(p for p in whole.probes if p in probes))
