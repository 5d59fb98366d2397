"""The table in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from validation.check import Verdict
from validation.screen import STYLES, WIDTH
from validation.table.plan import TablePlan
from validation.table.variant import name_of

CPU_SECONDS = {"vllm": 0.65, "torch": 0.35}
"""Of one update on mini-Qwen3 with its share of evaluations, one thread, 64 x 8 responses"""
CPU_COMPARED = 5.0
"""Of comparing one run with six others at eight steps"""


def console() -> Console:
    """Return a console as wide as the terminal, or as a page where there is none."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=WIDTH)


def print_plan(plan: TablePlan, root: Path, /) -> None:
    """Say which runs a table has, which are there already, and what the others take."""
    from validation.store import Store
    from validation.table.work import missing

    runs = list(plan.runs())
    todo = missing(Store(root), runs, engine=plan.engine)
    first = plan.references[0]
    steps = sum(e.steps for e in todo)
    cost = CPU_SECONDS.get(getattr(first.environment, "sampler", ""))
    takes = ""
    if cost is not None:
        seconds = steps * cost * first.prompts * first.samples / 512 + len(todo) * CPU_COMPARED
        takes = f", about {seconds / 60:.0f} CPU-minutes"
    out = console()
    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    samplers = list(dict.fromkeys(cell.sampler for cell in plan.cells))
    for name in ("correction", *samplers):
        table.add_column(name)
    for correction in dict.fromkeys(cell.correction for cell in plan.cells):
        cells = {c.sampler: c for c in plan.cells if c.correction == correction}
        words = [_shared(cells[s].same) or "runs" for s in samplers]
        table.add_row(escape(correction), *map(escape, words))
    out.print(table)
    out.print(
        f"\n{escape(name_of(plan.preset, plan.point, plan.variant))}: {first.steps} updates of "
        f"{first.prompts} x {first.samples}, "
        f"seeds {', '.join(map(str, plan.seeds))}; on-policy runs "
        f"{', '.join(str(e.seed) for e in plan.references)}"
    )
    out.print(
        f"{len(plan.cells)} cells, {len(runs)} different runs, {len(runs) - len(todo)} of them in "
        f"{escape(str(root))}/; {steps} updates to make{takes}"
    )


def _shared(same: Any) -> str:
    if same is None:
        return ""
    row, kind = (same["row"], same["kind"]) if isinstance(same, Mapping) else same
    return f"= {row}" if kind == "exact" else f"~ {row}"


COLUMNS = (
    "correction",
    "end",
    "worst (step)",
    "accuracy",
    "off-support",
    "on prefixes",
    "ESS<.5 first",
    "stays",
    "Gauss",
    "resyncs",
    "ESS token",
    "ESS response",
)


def print_table(made: Mapping[str, Any], /) -> None:
    """Print a document of `summary`: a table a sampler, the rank correlations, the verdicts."""
    out = console()
    on = made["on_policy"]
    out.print(
        f"on-policy: accuracy {on['accuracy'][-1]:.3f}, floor {on['floor'][-1]:.3g} nats/token at the end; "
        "deviations in floors, means over seeds; crossings of single seeds\n"
    )
    for sampler in dict.fromkeys(cell["sampler"] for cell in made["cells"]):
        table = Table(
            title=escape(sampler), title_justify="left", box=None, pad_edge=False, header_style="dim"
        )
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "correction" else "right")
        for cell in made["cells"]:
            if cell["sampler"] == sampler:
                table.add_row(*map(escape, _cells(cell)))
        out.print(table)
        out.print()
    out.print("= the same arithmetic, one run; ~ the same up to the rounding of a float32 engine, one run")
    ranks = made["ranks"]
    words = ", ".join(f"{name} {_ranked(c)}" for name, c in ranks["measures"].items())
    out.print(
        f"rank correlation with the accuracy drop, {ranks['checkpoints']} checkpoints: {escape(words)}\n"
    )
    _print_checks(out, made["checks"])


def _ranked(c: Mapping[str, Any]) -> str:
    if c["value"] is None or math.isnan(c["value"]):
        return f"not measured ({c['runs']} runs)"
    found = f"{number(c['value'])} [{number(c['low'])}, {number(c['high'])}]"
    return f"{found} without {c['left_out']} not measured" if c["left_out"] else found


def _cells(cell: Mapping[str, Any]) -> Sequence[str]:
    name = cell["correction"]
    if shared := _shared(cell["same"]):
        name += f" {shared}"
    if not cell["measured"]:
        return (name, *["not measured"], *[""] * (len(COLUMNS) - 2))
    crossings = [run["crossing"] for run in cell["runs"]]
    return (
        name,
        number(cell["end"]),
        f"{number(cell['worst'])} ({cell['worst_step']})",
        f"{cell['accuracy']:.3f}",
        f"{cell['off_support']:.3f}",
        number(cell["prefixes"]),
        *(_steps([c[key] for c in crossings]) for key in ("token", "token_sustained", "gaussian")),
        f"{cell['resyncs']:.1f}",
        number(cell["ess_token"]),
        number(cell["ess_sequence"]),
    )


def _steps(values: Sequence[int | str]) -> str:
    return " ".join("-" if isinstance(v, str) else str(v) for v in values)


def number(value: float | None) -> str:
    """Write a ratio for people: three digits, powers of ten beyond 10,000."""
    if value is None or math.isnan(value):
        return "n/a"
    if value == 0 or 1e-2 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.0e}"


def _print_checks(out: Console, checks: Sequence[Mapping[str, Any]]) -> None:
    if not checks:
        out.print("no verdicts: they need at least four on-policy runs")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("verdict", no_wrap=True)
    for name in ("claim", "reading", "predicted", "measured [95%]", "control"):
        table.add_column(escape(name), overflow="fold")
    for row in checks:
        style = STYLES[Verdict(row["verdict"])]
        table.add_row(
            f"[{style}]{row['verdict']}[/]",
            *(escape(row[k]) for k in ("claim", "reading", "predicted", "measured")),
            escape(f"{row['control']['measured']} {row['control']['verdict']}"),
        )
    out.print(table)
    count = Counter(row["verdict"] for row in checks)
    out.print("\n" + ", ".join(f"{count[str(v)]} {v}" for v in Verdict if count[str(v)]))
