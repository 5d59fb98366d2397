"""Columns that hold probabilities or losses where log-probs belong, and single values above 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from theory.batch import ROUNDING
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.signs import Signs
from validation.audit.sums import MISMATCH_NAMES

REMEDY = "pass logs of probabilities: log(p) of a probability, -loss of a cross-entropy"


def columns(evidence: Evidence, /) -> list[Finding]:
    """Detect: whole columns of something else than log-probs; every figure made of them says nothing."""
    found = []
    for name, signs in evidence.exact.signs.items():
        if not signs.no_log_probs:
            continue
        why = "log-probs are not above 0 all at once" if signs.all_small else "hardly any is below 0"
        fault = f"{told(name, signs)}; {why}: it holds {signs.looks_like}, no log-probs"
        found.append(_finding(fault, signs, name, explains=1.0))
    return found


def detect(evidence: Evidence, /) -> list[Finding]:
    """Detect: values above 0 among log-probs that neither a fill value nor noise accounts for."""
    found = []
    for name, signs in evidence.exact.signs.items():
        if not signs.above.count or within_noise(evidence, name):
            continue
        tokens = _compared(evidence, name)
        if tokens.any() and not (tokens & evidence.live).any():
            continue  # a fill value: told already, with what to do about it
        found.append(_finding(told(name, signs), signs, name, explains=evidence.explains(tokens)))
    return found


def told(name: str, signs: Signs, /) -> str:
    """Say which column is above 0, how often and how far."""
    column = f"{name}, the log-probs of the {MISMATCH_NAMES[name]}, is above 0"
    if signs.all_small:
        return (
            f"{column} on {signs.positive.count} of {signs.counted} counted tokens in {signs.positive.rows} "
            f"rows, from {signs.least:.3g} to {signs.largest:.3g}"
        )
    return (
        f"{column} (and {ROUNDING} of rounding) on {signs.above.count} counted tokens in {signs.above.rows} "
        f"rows, the largest {signs.largest:.3g}"
    )


def within_noise(evidence: Evidence, name: str, /) -> bool:
    """Whether the column differs from another one elsewhere by as much as it is above 0, and more often.

    Noise that takes tokens above 0 takes others as far: more of them than are above reach the middle one of
    those, and some reach the largest. An outlier elsewhere excuses nothing.
    """
    signs = evidence.exact.signs[name]
    if signs.no_log_probs:
        return False
    for values, d in _differences(evidence, name):
        above = values > ROUNDING
        elsewhere = np.abs(d[~above])
        # a long log is compared in a sample of its rows, which may hold none of those above
        middle = float(np.median(values[above])) if above.any() else signs.largest
        as_far = int(np.count_nonzero(elsewhere >= middle - ROUNDING))
        often = as_far > 1 and as_far * signs.counted > signs.above.count * d.size
        if often and elsewhere.max() >= signs.largest - ROUNDING:
            return True
    return False


def _differences(evidence: Evidence, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Values of a column where it is compared, and its differences there from another, nats."""
    if name == "logmu":
        yield evidence.mu, evidence.d
    if name == evidence.reference:
        yield evidence.ref, evidence.d
    if name == "logpi":
        yield evidence.g_ref - evidence.g, evidence.g


def _compared(evidence: Evidence, name: str) -> np.ndarray:
    """Tokens above 0 among those compared; none of a column that is not compared."""
    if name == "logmu":
        return evidence.mu > ROUNDING
    return evidence.ref > ROUNDING if name == evidence.reference else np.zeros(len(evidence.ref), dtype=bool)


def _finding(fault: str, signs: Signs, name: str, *, explains: float) -> Finding:
    tally, what = (
        (signs.positive, "counted tokens above 0")
        if signs.all_small
        else (signs.above, f"counted tokens above {ROUNDING}")
    )
    return Finding(
        kind="sampled-vs-reported",
        fault=fault,
        confidence=0.97,
        explains=explains,
        figures=(
            Figure(what=what, value=tally.count, where="; ".join(tally.places)),
            Figure(what="largest value", value=signs.largest),
            Figure(what="share of values below 0", value=signs.negative / signs.counted),
        ),
        rules_out=("numerics and lag: neither makes a probability larger than 1",),
        first=REMEDY,
        side="engine" if name == "logmu" else "trainer",
    )
