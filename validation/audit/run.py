"""The audit itself: read once, then judge.

The answer holds what was found, the numbers, and what cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theory.records import Provenance
from validation.audit import limits, measures
from validation.audit.collect import Collector
from validation.audit.detectors import (
    alignment,
    bypass,
    calibration,
    context,
    curves,
    fills,
    lag,
    lag_course,
    metrics,
    non_finite,
    not_logs,
    numerics,
    processed,
    sampled,
    weights,
)
from validation.audit.errors import BadLog, one_line
from validation.audit.evidence import Evidence
from validation.audit.finding import Finding
from validation.audit.options import Options
from validation.audit.shapes import Shapes
from validation.audit.source import InputFile, Log, open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit says."""

    inputs: list[InputFile]
    provenance: Mapping[str, Provenance]
    numbers: dict[str, Any]
    findings: list[Finding]
    """Ranked; empty where nothing is wrong"""
    cannot_know: list[str]
    advice: list[str] = field(default_factory=list)
    """What to switch on, for files that hold no log-probs"""
    collected: Collector | None = None
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Metrics by name, one value a step, and "step" itself; empty where none were logged"""

    @property
    def audited(self) -> bool:
        """Whether there was anything to judge."""
        return self.collected is not None or bool(self.numbers.get("curves"))


def audit(
    paths: list[str], /, *, options: Options | None = None, progress: Callable[[int], None] | None = None
) -> Audit:
    """Audit the logs at `paths`.

    Raises
    ------
    validation.audit.errors.BadLog
        If a file cannot be read or there is nothing in it; the message is one line.
    """
    log = open_log(paths, options=options, progress=progress)
    collected = Collector()
    for block in log.blocks():
        collected.add(block)
    if not (collected.tokens or log.metrics.rows or log.advice):
        name = one_line(log.inputs[0].path if log.inputs else paths[0])
        raise BadLog(f"{name}: the log holds no token and no metric; name the files a trainer wrote")
    return judge(log, collected)


def judge(log: Log, collected: Collector, /) -> Audit:
    """Judge what was collected."""
    provenance = log.provenance()
    figures: dict[str, Any] = {}
    found: list[Finding] = []
    has_tokens = collected.tokens > 0
    if has_tokens:
        evidence = Evidence(
            collected,
            provenance=provenance,
            null_is_broken=log.reader is not None and log.reader.null_is_broken,
            settings=log.settings,
        )
        figures = measures.of(collected, evidence)
        found = detect(evidence, figures.get("forecast"))
    else:
        evidence = None
    found += curves.detect(log.metrics)
    if log.metrics.rows:
        figures["curves"] = curves.summary(log.metrics)
    found.sort(key=lambda f: f.rank)
    seen = measures.provenance(collected, provenance)
    return Audit(
        inputs=log.inputs,
        provenance=seen,
        numbers=figures,
        findings=found,
        cannot_know=limits.of(log, collected, evidence, seen),
        advice=log.advice,
        collected=collected if has_tokens else None,
        curves=log.metrics.columns() if log.metrics.rows else {},
    )


def detect(evidence: Evidence, forecast: Mapping[str, Any] | None = None, /) -> list[Finding]:
    """Run the detectors from hard facts to soft ones.

    Each leaves out the tokens an earlier one accounts for.
    """
    if wrong := not_logs.columns(evidence):
        return wrong  # whatever else they look like, they are no log-probs
    found = [*non_finite.detect(evidence), *fills.detect(evidence), *not_logs.detect(evidence)]
    found += alignment.detect(evidence)
    copied = bypass.detect(evidence)
    told = sampled.detect(evidence) or processed.detect(evidence) or calibration.detect(evidence)
    found += [*told, *copied]
    if copied or told:
        # a copy says nothing of numerics; a wrong law is in every difference
        return found
    found += lag_course.detect(evidence)
    for look in (weights.detect, context.detect, numerics.detect):
        shapes = Shapes(evidence)
        found += look(evidence, shapes)
    found += metrics.detect(evidence, found)
    found += lag.detect(evidence, Shapes(evidence), found, forecast)
    return found
