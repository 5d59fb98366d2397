"""Claim ``invisible``: a collapse that the KL on the sampler's prefixes, and the sample's ESS, do not show.

The setting has long responses and an exit that the sampler all but never takes (`toy.settings.Exit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

CLAIM = "invisible"
COLLAPSING = ("stale pg", "stale sc")
RESYNCED = "pg, synced every 8"
COLLAPSE = 0.5
"""Share of tokens off-support: half, by the claim as it is checked here; article 2 saw about .9"""
KEPT = 0.11
"""Article 2: at most 11% with resync"""
LOST = 0.5
"""Share of the on-policy accuracy lost in a collapse; article 2: .74"""
RATIO = "ln x"


def checks(evidence: Evidence, /) -> list[Check]:
    """Size of the collapse, what the sampler's side sees of it, and what a resync does."""

    def read(of, unit: str) -> Estimate:
        return of_probes(evidence, CLAIM, of, unit=unit)

    def share(name: str) -> Estimate:
        return read(lambda n: n[name], "share")

    def lost(name: str) -> Estimate:
        return read(lambda n: 1 - n[f"accuracy, {name}"] / n["accuracy, on-policy"], "share")

    claim = CLAIMS[CLAIM]
    found = []
    for cell in COLLAPSING:
        step = share(f"step of collapse, {cell}").value
        seen, own = (
            read(lambda n, cell=cell, prefixes=prefixes: _over_healthy(n, prefixes, cell), RATIO)
            for prefixes in ("seen", "own")
        )
        found += [
            Check(
                claim=CLAIM,
                reading=f"{cell}: off-support share at the end",
                form="at least",
                predicted=Estimate(value=COLLAPSE, unit="share"),
                margin=0.0,
                measured=share(f"off-support at the end, {cell}"),
                control=Control(what="on-policy", measured=share("off-support at the end, on-policy")),
                source=claim.article,
                note=f"half of the tokens from step {step:.0f} on, in {_at_half(evidence, cell)}",
            ),
            Check(
                claim=CLAIM,
                reading=f"{cell}: KL on the sampler's prefixes at half off-support, over the healthy largest",
                form="at most",
                predicted=Estimate(value=0.0, unit=RATIO),
                margin=0.0,
                measured=seen,
                control=Control(what="KL on the trainer's own prefixes, which sees it", measured=own),
                source=claim.article,
                note=f"read in {_at_half(evidence, cell)}; {_figures(evidence, cell)}",
            ),
        ]
    return [
        *found,
        Check(
            claim=CLAIM,
            reading="accuracy stale PG loses by the end",
            form="at least",
            predicted=Estimate(value=LOST, unit="share"),
            margin=0.0,
            measured=lost("stale pg"),
            control=Control(what=RESYNCED, measured=lost(RESYNCED)),
            source=claim.article,
        ),
        Check(
            claim=CLAIM,
            reading=f"{RESYNCED}: largest off-support share of any step",
            form="at most",
            predicted=Estimate(value=KEPT, unit="share"),
            margin=0.0,
            measured=share(f"largest off-support, {RESYNCED}"),
            control=Control(what="resync off", measured=share("largest off-support, stale pg")),
            source=claim.article,
        ),
    ]


def _over_healthy(numbers: Mapping[str, float], prefixes: str, cell: str) -> float:
    return math.log(numbers[f"kl {prefixes}, {cell}"] / numbers[f"kl {prefixes}, healthy"])


def _at_half(evidence: Evidence, cell: str) -> str:
    """Count the runs that reach half, and the environments that drop out because none of theirs does."""
    probes = [p.numbers for p in evidence.probes.get(CLAIM, ())]
    reached, of = (int(sum(n[f"{what}, {cell}"] for n in probes)) for what in ("runs at half", "runs"))
    none = sum(n[f"runs at half, {cell}"] == 0 for n in probes)
    return f"the {reached} of {of} runs that reach half; {none} of {len(probes)} environments have none"


def _figures(evidence: Evidence, cell: str) -> str:
    def mean(name: str) -> float:
        return of_probes(evidence, CLAIM, lambda n: n[name], unit="").value

    return (
        f"nats per token: {mean(f'kl seen, {cell}'):.2f} against at most {mean('kl seen, healthy'):.2f}; "
        f"on own prefixes {mean(f'kl own, {cell}'):.1f} against {mean('kl own, healthy'):.2f}; sample ESS "
        f"{mean(f'ess, {cell}'):.2f} against at least {mean('least ess, healthy'):.2f}. Healthy: within .05 "
        "of the on-policy accuracy at the end; stale IS is"
    )
