"""The summary that fits a screen."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from validation.audit.errors import one_line
from validation.audit.finding import Finding
from validation.audit.run import Audit

MOST_FINDINGS = 3
MOST_LIMITS = 4
NOTHING = "nothing wrong in these logs"
INCOMPARABLE = "nothing could be compared: no token has log-probs of both sides"


def show(audit: Audit, console: Console, /) -> None:
    """Print findings first, then the numbers, then what cannot be known."""
    counts = audit.numbers.get("counts")
    formats = sorted({f.format for f in audit.inputs if not f.note or f.rows})
    read = f"{len(audit.inputs)} file(s), {', '.join(formats) or 'no known format'}"
    if counts:
        read += f": {counts['responses']:,} responses, {counts['tokens_compared']:,} tokens compared"
    console.print(Text(one_line(read)), style="dim")
    if not audit.audited and audit.advice:
        for line in audit.advice:
            console.print(Text(f"not auditable: {line}", style="bold yellow"))
        return
    _findings(audit, console)
    _numbers(audit.numbers, console)
    if audit.cannot_know:
        console.print("[dim]cannot be known from these logs:[/dim]")
        for line in audit.cannot_know[:MOST_LIMITS]:
            console.print(Text(f"  - {line}", style="dim"))
        if len(audit.cannot_know) > MOST_LIMITS:
            console.print(f"[dim]  - and {len(audit.cannot_know) - MOST_LIMITS} more (--json)[/dim]")


def headline(audit: Audit, /) -> str:
    """Say what it means that no fault was found: nothing is wrong, or nothing could be compared."""
    counts = audit.numbers.get("counts")
    if not audit.audited:
        return "not auditable: " + "; ".join(audit.advice)
    return INCOMPARABLE if counts and not counts["tokens_compared"] else NOTHING


def _findings(audit: Audit, console: Console) -> None:
    faults = [f for f in audit.findings if not f.healthy]
    if not faults:
        text = headline(audit)
        console.print(Text(text, style="bold green" if text == NOTHING else "bold yellow"))
    for number, finding in enumerate(faults[:MOST_FINDINGS], start=1):
        _finding(number, finding, console)
    if len(faults) > MOST_FINDINGS:
        console.print(f"[dim]and {len(faults) - MOST_FINDINGS} lesser findings (--json, --html)[/dim]")
    for finding in audit.findings:
        if finding.healthy:
            console.print(Text(f"{finding.kind}: {finding.fault}", style="green"))


def _finding(number: int, finding: Finding, console: Console) -> None:
    head = Text(f"{number}. {finding.kind}", style="bold red")
    head.append(
        f"  explains {finding.explains:.0%}, confidence {finding.confidence:.2f}", style="not bold default"
    )
    console.print(head)
    console.print(Text(f"   {finding.fault}"))
    shown = []
    for figure in finding.figures[:4]:
        error = f" +- {figure.stderr:.2g}" if figure.stderr == figure.stderr else ""
        place = f" ({figure.where})" if figure.where else ""
        value = f"{figure.value:.4g}" if math.isfinite(figure.value) else "-"
        shown.append(f"{figure.what} {value}{error}{place}")
    if shown:
        console.print(Text(f"   evidence: {'; '.join(shown)}", style="dim"))
    for ruled in finding.rules_out[:1]:
        console.print(Text(f"   rules out {ruled}", style="dim"))
    console.print(Text(f"   first: {finding.first}", style="cyan"))


_COLUMNS = (
    ("rms", "rms"),
    ("mean_abs", "mean|.|"),
    ("mean_ratio", "E ratio"),
    ("k3", "k3"),
    ("ess_token_raw", "ESS tok"),
    ("ess_token_gaussian", "e^-Var"),
    ("ess_response_raw", "ESS resp"),
)


def _numbers(numbers: dict[str, Any], console: Console) -> None:
    ratios = [(name, numbers[name]) for name in ("numerics", "mismatch", "lag", "total") if name in numbers]
    if ratios:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("raw, pooled")
        for _, title in _COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
        for name, figures in ratios:
            table.add_row(name, *(_cell(figures.get(key)) for key, _ in _COLUMNS))
        console.print(table)
    peers = numbers.get("peers")
    if peers:
        names = (
            "verl rollout_corr/rollout_is_eff_sample_size",
            "verl rollout_corr/chi2_token",
            "prime-rl mismatch_kl/all/mean",
            "NeMo-RL token_mult_prob_error",
            "slime train_rollout_logprob_abs_diff",
        )
        console.print(
            Text("as others log it: " + "; ".join(f"{n} {_cell(peers[n])}" for n in names), style="dim")
        )
    told = numbers.get("forecast")
    if told:
        crossing, low, high = (_cell(told[k]) for k in ("crossing_lag", "low", "high"))
        within = (
            f"{crossing} updates after a sync ({low} to {high})" if crossing != "-" else "beyond the horizon"
        )
        console.print(Text(f"forecast: the token ESS of the lag ratio reaches 1/2 {within}"))
    elif "counts" in numbers:
        console.print("[dim]forecast of the crossing step: not measured (needs pi_s, pi and versions)[/dim]")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
