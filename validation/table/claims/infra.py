"""Claims ``infra-*``: that the real engine has none of the four mismatches of the infrastructure layer.

Two can be read off what a run leaves behind. The other two cannot: what is stored has passed the code that
could go wrong, and would look the same. Those are asserted by tests, and no verdict is given.
"""

from __future__ import annotations

import numpy as np

from theory.estimate import Estimate, mean_estimate
from theory.infrastructure import nucleus
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Rows
from validation.store import load
from validation.table.claims.bench import Bench
from validation.table.gather import Measured

ROUNDING = 1e-5
"""Nats; float32 engines were within 1e-6 at equal weights"""
TOP_P = 0.9
TRUNCATED = 0.01
"""Nats; top-p .9 adds .01 and more"""
ASSERTED = {
    "infra-retokenisation": (
        "token ids are one character each and are never turned into text on their way; asserted by "
        "tests/test_real_samplers.py, the reported rows are the trainer's at the same weights, and "
        "tests/test_real_countdown.py, decoding gives back what was encoded"
    ),
    "infra-reward-filter": (
        "the stored batch is the one that was drawn, whatever was trained on; asserted by "
        "tests/test_real_loop.py, the tables agree with each other and with the steps, and "
        "tests/test_real_trainer.py, the update is the formula of the correction"
    ),
}
"""Claims without a verdict: why, and which tests stand for them"""


def checks(bench: Bench, /) -> list[Check]:
    """Judge that tokens are drawn from what is reported, by weights of one version."""
    references = [bench.table.runs[e.fingerprint()] for e in bench.table.plan.references]
    return [_top_p(bench, references), _deferred(references), *map(_asserted, ASSERTED)]


def _top_p(bench: Bench, references: list[Measured]) -> Check:
    """Surprisal of what was drawn against the entropy of the row: equal on average, unless truncated."""
    rows = bench.table.rows
    return Check(
        claim="infra-top-p",
        reading="surprisal of the drawn tokens less the entropy of their rows, on-policy runs",
        form="within",
        predicted=Estimate(value=0.0, unit="nats"),
        margin=TRUNCATED,
        measured=mean_estimate([_surplus(run) for run in references], unit="nats"),
        control=Control(
            what=f"the engine's rows drawn from with top-p {TOP_P:g}, log-probs from before it",
            measured=None if rows is None else _truncated(rows),
        ),
        source=CLAIMS["infra-top-p"].article,
        note=f"{len(references)} runs",
    )


def _surplus(run: Measured) -> float:
    tokens = load(run.folder, tables=("steps", "tokens")).traces[0].tokens
    return -float(np.mean(tokens["logmu"].astype(np.float64) + tokens["entropy"]))


def _truncated(rows: Rows) -> Estimate:
    """Take the sum over each row that `_surplus` would estimate, and its mean over the prefixes."""
    p = np.exp(rows.logmu)
    kept = p * nucleus(p, TOP_P)
    drawn = kept / kept.sum(-1, keepdims=True)
    surprisal = -np.where(p > 0, rows.logmu, 0.0)
    return mean_estimate(((drawn - p) * surprisal).sum(-1).tolist(), unit="nats")


def _deferred(references: list[Measured]) -> Check:
    """Discrepancy of synced engines, which a response by older weights would show as a lag."""
    synced = np.concatenate([run.trace.steps["discrepancy_rms"] for run in references])
    # after each update the batch just used is what a deferred response would be: one version old
    late = np.concatenate([run.trace.steps["lag_rms"] for run in references])
    return Check(
        claim="infra-deferred",
        reading="largest rms log(mu/pi_s) of a batch, float32 engine synced every step",
        form="at most",
        predicted=Estimate(value=ROUNDING, unit="nats"),
        margin=0.0,
        measured=Estimate(value=float(synced.max()), unit="nats"),
        control=Control(
            what="the same batches scored one update later, the least of them",
            measured=Estimate(value=float(late.min()), unit="nats"),
        ),
        source=CLAIMS["infra-deferred"].article,
        note=f"{len(synced)} batches",
    )


def _asserted(claim: str) -> Check:
    return Check(
        claim=claim,
        reading="not read off a run",
        form="at most",
        predicted=Estimate(value=0.0),
        margin=0.0,
        measured=None,
        control=Control(what="none", measured=None),
        source=CLAIMS[claim].article,
        note=ASSERTED[claim],
    )
