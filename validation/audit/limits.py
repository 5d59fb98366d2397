"""What a log cannot tell, and what to log so that it could."""

from __future__ import annotations

from collections.abc import Mapping

from theory.records import Provenance
from validation.audit.collect import Collector
from validation.audit.detectors import not_logs
from validation.audit.errors import one_line
from validation.audit.evidence import Evidence
from validation.audit.source import Log


def of(
    log: Log, collected: Collector, evidence: Evidence | None, provenance: Mapping[str, Provenance], /
) -> list[str]:
    """Sentences, each naming what is missing and the remedy."""
    out = list(log.advice)
    if log.again:
        many = f"{len(log.again)} names lead" if len(log.again) > 1 else "1 name leads"
        out.append(f"{many} to a file that is read already ({one_line(log.again[0])}): each counts once")
    if log.skipped:
        out.append(f"{log.skipped} records were passed over (--skip-bad)")
    if evidence is None:
        if log.metrics.rows:
            out.append(
                "curves alone do not separate numerics from lag, nor show tokens, masks or versions: log ids"
                " and log-probs per token of a few steps"
            )
        elif not log.advice:
            out.append("the files hold no record at all")
        return out
    for name, signs in collected.signs.items():
        if signs.above.count and not_logs.within_noise(evidence, name):
            out.append(
                f"whether these are normalised log-probs: {not_logs.told(name, signs)}, no more than it"
                f" differs by elsewhere; {not_logs.REMEDY}"
            )
    lost = log.moved_out > 0 and not collected.measured["logmu"]
    if lost:
        out.append(
            f"--align {log.options.align} moved the engine's log-probs out of all {log.moved_out} responses"
            " that have any, and nothing is left to compare: pass a smaller shift, or leave --align out"
        )
    elif not collected.measured["logmu"] and not _unusable(collected, "logmu"):
        out.append("the engine's log-probs (mu) were not logged: no mismatch can be measured")
    if collected.reference is None and not lost and not _unusable(collected, "logpi_s", "logpi"):
        out.append(
            "the trainer's log-probs were not logged: log them at the sampler's weights (pi_s) and now (pi),"
            " beside mu"
        )
    elif not collected.discrepancy.n:
        pass  # said above, or by the findings: what one side holds is no number, or no token has both
    elif collected.reference == "logpi" and evidence.apart:
        gaps = evidence.gap[evidence.dated]
        out.append(
            "numerics and lag are not separated: no token of equal version was logged (version gaps"
            f" {gaps.min()} to {gaps.max()}); log the trainer's log-probs at the sampler's weights (pi_s), or"
            " a step right after a sync"
        )
    elif collected.reference == "logpi" and not (evidence.gap == 0).any():
        out.append(
            "numerics and lag are not separated: the log holds mu and pi only; log the trainer's log-probs at"
            " the sampler's weights, or sampler and trainer versions (tokens of equal version give the floor)"
        )
    elif collected.reference == "logpi":
        out.append("pi_s was not logged: numerics are judged on tokens of equal version, lag by the rest")
    elif evidence.lag_free == "assumed":
        out.append(
            f"d may contain lag: {provenance['logpi_s'].how or 'the old log-probs may be of other weights'} "
            "(--old-means pi_s or pi settles it)"
        )
    if collected.discrepancy.n and not collected.lag.n and collected.reference == "logpi_s":
        out.append("lag was not measured: the trainer's log-probs at the loss (pi) were not logged")
    if collected.discrepancy.n and not collected.measured["entropy"]:
        out.append(
            "without entropy per token, truncation or temperature that is reported raw on both sides cannot"
            " be seen: the ratios are 1"
        )
    if collected.discrepancy.n and not collected.by_gap.index:
        out.append(
            "versions were not logged: a sync that did not arrive cannot be told from drifting numerics"
        )
    if collected.mixed_versions:
        out.append(
            f"{collected.mixed_versions} rows were sampled by several weights at places nobody logged; the"
            " oldest is taken"
        )
    if 0 < collected.discrepancy.n < 2000:
        out.append(f"only {collected.discrepancy.n} tokens are compared: rare and small faults do not show")
    holes = sum(n for (c, kind), n in collected.broken.items() if c == "logmu" and kind == "unmeasured")
    if holes and collected.measured["logmu"]:
        out.append(f"the engine's log-probs are missing on whole rows ({holes} tokens); those are left out")
    return out


def _unusable(collected: Collector, *columns: str) -> bool:
    """Whether numbers were logged that are none: the findings say so."""
    empty = ("unmeasured", "missing or NaN")
    return any(n > 0 for (c, kind), n in collected.broken.items() if c in columns and kind not in empty)
