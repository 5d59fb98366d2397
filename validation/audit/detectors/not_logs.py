"""Columns that hold probabilities or losses where log-probs belong, and single values above 0."""

from __future__ import annotations

import numpy as np

from theory.batch import ROUNDING
from validation.audit.evidence import Evidence
from validation.audit.finding import Figure, Finding
from validation.audit.signs import Signs
from validation.audit.sums import MISMATCH_NAMES

REMEDY = "pass logs of probabilities: log(p) of a probability, -loss of a cross-entropy"


def columns(evidence: Evidence, /) -> list[Finding]:
    """Detect: whole columns of something else than log-probs; every figure made of them says nothing."""
    return [
        _finding(
            f"{told(name, signs)}; hardly any is below 0: it holds {signs.looks_like}, no log-probs",
            signs,
            name,
            explains=1.0,
        )
        for name, signs in evidence.exact.signs.items()
        if signs.no_log_probs
    ]


def detect(evidence: Evidence, /) -> list[Finding]:
    """Detect: values above 0 among log-probs that neither a fill value nor noise accounts for."""
    found = []
    for name, signs in evidence.exact.signs.items():
        if not signs.above or within_noise(evidence, name):
            continue
        tokens = _compared(evidence, name)
        if tokens.any() and not (tokens & evidence.live).any():
            continue  # a fill value: told already, with what to do about it
        found.append(_finding(told(name, signs), signs, name, explains=evidence.explains(tokens)))
    return found


def told(name: str, signs: Signs, /) -> str:
    """Say which column is above 0, how often and how far."""
    return (
        f"{name}, the log-probs of the {MISMATCH_NAMES[name]}, is above 0 (and {ROUNDING} of rounding) on "
        f"{signs.above} counted tokens in {signs.rows} rows, the largest {signs.largest:.3g}"
    )


def within_noise(evidence: Evidence, name: str, /) -> bool:
    """Whether other tokens of the column differ from another one by as much as it is above 0."""
    signs = evidence.exact.signs[name]
    if signs.no_log_probs:
        return False
    d = [evidence.d[~_compared(evidence, name)]] if name in ("logmu", evidence.reference) else []
    d += [evidence.g[evidence.g_ref - evidence.g <= ROUNDING]] if name == "logpi" else []
    return signs.largest - ROUNDING <= max((float(np.abs(x).max()) for x in d if x.size), default=0.0)


def _compared(evidence: Evidence, name: str) -> np.ndarray:
    """Tokens above 0 among those compared; none of a column that is not compared."""
    if name == "logmu":
        return evidence.mu > ROUNDING
    return evidence.ref > ROUNDING if name == evidence.reference else np.zeros(len(evidence.ref), dtype=bool)


def _finding(fault: str, signs: Signs, name: str, *, explains: float) -> Finding:
    return Finding(
        kind="sampled-vs-reported",
        fault=fault,
        confidence=0.97,
        explains=explains,
        figures=(
            Figure(what="counted tokens above 0", value=signs.above, where="; ".join(signs.places)),
            Figure(what="largest value", value=signs.largest),
            Figure(what="share of values below 0", value=signs.below / signs.counted),
        ),
        rules_out=("numerics and lag: neither makes a probability larger than 1",),
        first=REMEDY,
        side="engine" if name == "logmu" else "trainer",
    )
