"""``report``: one page from the last results of `check` and the stored runs they rest on."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from validation.atomic import write_text
from validation.commands.options import read_options
from validation.evidence import Evidence
from validation.plan import Plan, real_plan, toy_plan
from validation.provenance import versions
from validation.report import figures
from validation.report.page import Shown, render
from validation.report.readme import write_readme
from validation.report.results import Result, read_results
from validation.report.style import to_svg
from validation.store import Store

FIGURES: tuple[tuple[str, Callable[..., Figure], str], ...] = (
    (
        "ess",
        figures.ess_figure,
        "ESS of the lag ratio with a stale sampler under importance sampling (thin: runs, thick: median), "
        "beside its two Gaussian predictions. The dotted line is one half.",
    ),
    (
        "deviation",
        figures.deviation_figure,
        "KL from on-policy training with a stale sampler, in units of the KL between two on-policy runs. "
        "The band ends at two floors.",
    ),
    ("accuracy", figures.accuracy_figure, "Held-out accuracy; the dashed line is on-policy training."),
    ("resync", figures.resync_figure, "ESS under DLC, run by run; a dot is a sync its rule asked for."),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Build the report from everything that has been run."""

    store: Path = Path("runs")
    """where runs and results are kept"""
    out: Path = Path("report/index.html")
    """the page to write"""
    readme: Path | None = None
    """also put the claims table between the markers of this README"""
    figure: Path | None = None
    """also write the ESS figure alone to this SVG file"""


def main(argv: list[str]) -> int:
    """Write the page; 0 when it was written."""
    options = read_options(Options, argv, command="report")
    results = read_results(options.store)
    if not results:
        raise ValueError(f"no results in {options.store}; run `python -m validation check toy` first")
    evidence, missing = [], []
    for result in results:
        found, why = _evidence(result, Store(options.store))
        if found is not None:
            evidence.append(found)
        if why:
            missing.append(why)
    shown = []
    if evidence:
        command = " and ".join(f"python -m validation check {e.engine}" for e in evidence)
        for name, draw, caption in FIGURES:
            svg = to_svg(draw(evidence), name=name)
            shown.append(Shown(svg=svg, caption=caption, command=command))
        if options.figure is not None:
            svg = to_svg(figures.ess_figure(evidence), name="ess", ink="#808080")
            _write(options.figure, svg)
    made = {
        "seeds": ", ".join(f"{r.engine} {r.seed}" for r in results),
        "seconds": ", ".join(f"{r.engine} {r.seconds:.0f}" for r in results),
        "versions": ", ".join(f"{k} {v}" for k, v in versions().items()),
        "machine": platform.platform(),
    }
    _write(options.out, render(results, shown, missing=missing, made=made))
    print(f"wrote {options.out}")
    if options.readme is not None:
        write_readme(options.readme, results)
        print(f"wrote the claims table into {options.readme}")
    return 0


def _evidence(result: Result, store: Store) -> tuple[Evidence | None, str]:
    """Read back the runs behind a result, without running any; else say why there are no figures."""
    if result.engine not in ("toy", "real"):
        return None, ""
    plan = toy_plan(result.seed) if result.engine == "toy" else _stored_real_plan(result.seed, store)
    lacking = sum(store.find(result.engine, e, seeds=seeds) is None for e, seeds in plan.runs())
    if lacking:
        return None, (
            f"No figures for {result.engine}: {lacking} of its runs are not in the store under today's code. "
            f"Run python -m validation check {result.engine} again."
        )
    if result.engine == "toy":
        from validation.gather.toy import gather
    else:
        from validation.gather.real import gather
    return gather(plan, store, on_run=_nothing, on_world=_nothing), ""


def _stored_real_plan(seed: int, store: Store) -> Plan:
    """Return the plan of the sampler whose runs are there: vLLM's if both."""
    plans = [real_plan(seed, sampler="vllm"), real_plan(seed, sampler="torch")]
    for plan in plans:
        if all(store.find("real", e, seeds=seeds) is not None for e, seeds in plan.runs()):
            return plan
    return plans[0]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _nothing() -> None:
    """Progress of reading back is not shown."""
