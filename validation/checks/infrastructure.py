"""Claims ``infra-*``: each fault of the pipeline adds the theory's exact bias, and no correction removes it.

Sampler and trainer are equal there: whatever is measured is the fault's alone.
"""

from __future__ import annotations

from collections.abc import Callable

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence
from validation.floor import of_probes

PROBE = "infra"
AGREES = 0.1
"""Of the exact vector: on environments 0 and 1 sampling noise moved the coefficient by up to .08"""
LEFT = 0.25
"""Of the squared length, half of the length: less would be removed for the most part"""
CORRECTIONS = ("pg", "sc", "is", "seq-is", "is-sc", "dlc")
COEFFICIENT, SQUARED = "of the exact vector", "of its squared length"


def top_p(evidence: Evidence, /) -> list[Check]:
    """Check truncated sampling with log-probs from before and from after the truncation."""
    processed = _coefficient(
        evidence,
        "infra-top-p",
        "what the ratio to the distribution really drawn leaves, along the missing support",
        "top-p processed: coefficient",
        "top-p processed: coefficient, off",
        "top-p = 1",
    )
    return [*_fault(evidence, "infra-top-p", "top-p", "top-p = 1"), processed]


def retokenisation(evidence: Evidence, /) -> list[Check]:
    """Check a pair that comes back as one token."""
    return _fault(evidence, "infra-retokenisation", "retokenisation", "token ids kept")


def reward_filter(evidence: Evidence, /) -> list[Check]:
    """Check right responses alone: prompts are scaled by how seldom they succeed."""
    return _fault(evidence, "infra-reward-filter", "reward-filter", "no filter")


def deferred(evidence: Evidence, /) -> list[Check]:
    """Check long responses a step late: missing in the first batch, from an older sampler afterwards."""
    off = "no deferral"
    ratio = of_probes(evidence, PROBE, lambda n: n["deferred later: coefficient, is"], unit=COEFFICIENT)
    later = _coefficient(
        evidence,
        "infra-deferred",
        "bias of PG's later batches along the exact one",
        "deferred later: coefficient, pg",
        "deferred later: coefficient, off",
        off,
        note=f"IS by the log-probs reported when the response was drawn: {ratio.value:.2f} of it; the ratio "
        "removes the age of the responses and not their changed number",
    )
    return [*_fault(evidence, "infra-deferred", "deferred", off), later]


def _fault(evidence: Evidence, claim: str, fault: str, off: str) -> list[Check]:
    def least(numbers) -> float:
        return min(numbers[f"{fault}: left by {rule}"] for rule in CORRECTIONS)

    each = ", ".join(
        f"{rule} {_read(evidence, lambda n, rule=rule: n[f'{fault}: left by {rule}'], SQUARED).value:.2f}"
        for rule in CORRECTIONS
    )
    return [
        _coefficient(
            evidence,
            claim,
            "bias of PG's first batch along the exact one",
            f"{fault}: coefficient",
            f"{fault}: coefficient, off",
            off,
        ),
        Check(
            claim=claim,
            reading=f"bias left by the best of {len(CORRECTIONS)} corrections",
            form="at least",
            predicted=Estimate(value=LEFT, unit=SQUARED),
            margin=0.0,
            measured=_read(evidence, least, SQUARED),
            control=Control(what=off, measured=_read(evidence, lambda n: n[f"{fault}: left, off"], SQUARED)),
            source=CLAIMS[claim].article,
            note=f"mean over environments: {each}",
        ),
    ]


def _coefficient(
    evidence: Evidence, claim: str, reading: str, name: str, control: str, off: str, *, note: str = ""
) -> Check:
    return Check(
        claim=claim,
        reading=reading,
        form="within",
        predicted=Estimate(value=1.0, unit=COEFFICIENT),
        margin=AGREES,
        measured=_read(evidence, lambda n: n[name], COEFFICIENT),
        control=Control(what=off, measured=_read(evidence, lambda n: n[control], COEFFICIENT)),
        source=CLAIMS[claim].law,
        note=note,
    )


def _read(evidence: Evidence, of: Callable, unit: str) -> Estimate:
    return of_probes(evidence, PROBE, of, unit=unit)
