"""Claims ``infra-*``: that the real engine has none of the four mismatches of the infrastructure layer."""

from __future__ import annotations

import numpy as np

from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.store import load
from validation.table.claims.bench import Bench
from validation.table.gather import Measured

ROUNDING = 1e-5
"""Nats; float32 engines were within 1e-6 at equal weights, and top-p .9 adds .01 and more"""


def checks(bench: Bench, /) -> list[Check]:
    """Rows and ids as sampled, so mu = pi_s; whole batches of one weight version, whatever the rewards."""
    references = [bench.table.runs[e.fingerprint()] for e in bench.table.plan.references]
    exact = max(float(run.trace.steps["discrepancy_rms"].max()) for run in references)
    rounding = [
        float(run.trace.steps["discrepancy_rms"].max())
        for sampler in ("fp8", "fp8+stale", "int4", "e2m1")
        if sampler in bench.worlds
        for _, _, run in bench.runs(sampler)
    ]
    found = [
        Check(
            claim=claim,
            reading=f"largest rms log(mu/pi_s) of a synced float32 engine over all batches: {what}",
            form="at most",
            predicted=Estimate(value=ROUNDING, unit="nats"),
            margin=0.0,
            measured=Estimate(value=exact, unit="nats"),
            control=Control(
                what="an engine that does differ: FP8",
                measured=Estimate(value=min(rounding), unit="nats") if rounding else None,
            ),
            source=CLAIMS[claim].article,
        )
        for claim, what in (
            ("infra-top-p", "reported is what was drawn from"),
            ("infra-retokenisation", "both score the same ids"),
        )
    ]
    batches = [_batches(bench, run) for s in bench.worlds for _, i, run in bench.runs(s) if i == 0]
    whole, filtered, one, deferred = (np.concatenate(x) for x in zip(*batches, strict=True))
    for claim, reading, kept, broken, what in (
        (
            "infra-reward-filter",
            "share of batches with every response",
            whole,
            filtered,
            "right ones alone kept",
        ),
        (
            "infra-deferred",
            "share of batches of one weight version",
            one,
            deferred,
            "longest deferred a step",
        ),
    ):
        found.append(
            Check(
                claim=claim,
                reading=reading,
                form="at least",
                predicted=Estimate(value=1.0, unit="share"),
                margin=0.0,
                measured=Estimate(value=float(kept.mean()), unit="share"),
                control=Control(what=what, measured=Estimate(value=float(broken.mean()), unit="share")),
                source=CLAIMS[claim].article,
                note=f"{len(kept)} batches",
            )
        )
    return found


def _batches(bench: Bench, run: Measured) -> tuple[np.ndarray, ...]:
    """Per step: all responses there; still so without the wrong ones; one version; still so with deferral."""
    table = load(run.folder, tables=("steps", "sequences")).traces[0].sequences
    size = run.experiment.prompts * run.experiment.samples
    columns: list[list[bool]] = [[], [], [], []]
    carried = np.empty(0, dtype=np.int64)
    for step in np.unique(table["step"]):
        here = table["step"] == step
        version = table["sampler_version"][here]
        late = table["length"][here] == table["length"][here].max()
        columns[0].append(int(here.sum()) == size)
        columns[1].append(int((table["reward"][here] > 0).sum()) == size)
        columns[2].append(len(np.unique(version)) == 1)
        # what a deferring engine would train on: this step's short ones and the last step's long ones
        mixed = np.concatenate([version[~late] * 0 + step, carried])
        columns[3].append(len(np.unique(mixed)) == 1)
        carried = np.full(int(late.sum()), step)
    return tuple(np.array(c) for c in columns)
