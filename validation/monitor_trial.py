"""Forecast and monitor judged on fresh toy runs: ``python -m validation.monitor_trial``.

Environments 200-219; 100-105 and 110-114 served to fix the grids of `theory.forecast` and the rule of
`theory.monitor`, and no other environment was looked at. What it printed is in LOG.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from real.command_line import start
from theory.corrections import Correction, correction
from theory.crossing import extrapolated, first_below, gaussian_kl, gaussian_var
from theory.forecast import forecast
from theory.monitor import Monitor

ENVIRONMENTS = range(200, 220)
POINTS = ((0.7, 4.0), (0.93, 2.0), (0.93, 4.0))
"""Quantile and learning rate of setting S"""
STALE = 64
STEPS = 60
SEEDS = 3
MADE_AT = (0.8, 0.7, 0.6)
"""A forecast is made at the first step whose sample ESS is below this"""
FEWEST = 3
"""Steps a forecast needs"""
HEAVY_SAMPLES = 16
"""Responses per prompt for the monitor: 1,024 tokens a step, few enough for heavy tails to be missed"""
FALL = 0.05
"""Accuracy below its best so far by which a run counts as falling"""


def corrections() -> dict[str, Correction]:
    """Corrections whose lag grows without a resync."""
    return {"is": correction("is"), "dlc, no resync": correction("dlc", resync_below=0.0)}


class Forecasted(NamedTuple):
    """One forecast on one run; steps."""

    at: float
    made: float
    crossing: float
    """Of the exact ESS"""
    low: float
    step: float
    high: float
    var: float
    """First step with exp(-Var log w) < 1/2, as measured: knows the run to its end"""
    kl: float
    square: float
    """Extrapolated from the variance of the first steps"""


def forecast_one(measures: Mapping[str, np.ndarray], at: float, *, seed: int) -> Forecasted | None:
    """Forecast one run from the steps until its sample ESS is below a level.

    Parameters
    ----------
    measures : mapping of str to array, shape (K,)
        Step columns ess_token, ess_exact, k1 and k2 of a run that is never synced.
    at : float
        ESS share below which the forecast is made.
    seed : int
        Of the forecast's paths.

    Returns
    -------
    Forecasted or None
        None where the run never crosses, or does so before a forecast can be made.
    """
    ess, crossing = np.asarray(measures["ess_token"], dtype=float), first_below(measures["ess_exact"])
    made = first_below(ess, at)
    if not (FEWEST <= made < crossing < math.inf):
        return None
    n = int(made)
    got = forecast(ess[:n], seed=seed)
    return Forecasted(
        at,
        made,
        crossing,
        got.low,
        got.step,
        got.high,
        first_below(gaussian_var(measures["k2"])),
        first_below(gaussian_kl(measures["k1"])),
        first_below(extrapolated(measures["k2"][:n], fit=n, horizon=20 * n)),
    )


def forecasts() -> Iterator[Forecasted]:
    """All forecasts of all runs that cross after the forecast is made."""
    from toy.settings import setting_s
    from toy.simulate import ensemble

    cells = [(e, q, lr, r) for e in ENVIRONMENTS for q, lr in POINTS for r in corrections().values()]
    for env, quantile, lr, rule in track(cells, "forecast", console=Console(file=sys.stderr)):
        experiment = setting_s(
            env, quantile=quantile, lr=lr, correction=rule, sync_every=STALE, steps=STEPS, seed=1
        )
        m = ensemble(experiment, seeds=SEEDS).measures
        for s in range(SEEDS):
            made = (forecast_one({name: x[s] for name, x in m.items()}, at, seed=s) for at in MADE_AT)
            yield from (one for one in made if one is not None)


class Watched(NamedTuple):
    """One run under the monitor; steps."""

    rule: str
    crossing: float
    monitor: float
    plain: float
    fall: float
    """First step with an accuracy well below its best"""


WATCHED = {"is": correction("is"), "sc": correction("sc"), "pg": correction("pg")}
"""Corrections whose runs are watched, never synced"""


def watch_runs(
    env: int, quantile: float, lr: float, rule: str, *, seeds: int = 1, samples: int = HEAVY_SAMPLES
) -> list[Watched]:
    """Run monitor and plain estimator beside each other, on few draws a step; one row a seed."""
    from toy.settings import setting_s
    from toy.simulate import ensemble

    experiment = setting_s(
        env, quantile=quantile, lr=lr, correction=WATCHED[rule], sync_every=STALE, samples=samples, seed=2
    )
    runs = ensemble(experiment, seeds=seeds, tokens=True)
    found = []
    for s in range(seeds):
        logs = {k: runs.drawn[k][s].astype(float) for k in ("logmu", "logpi_s", "logpi")}
        monitor, fired = Monitor(resamples=0), []
        for step in range(experiment.steps):
            # (C, N, T) to (responses, T); the toy draws every prompt each step, so responses are the units
            batch = (logs[k][step].reshape(-1, logs[k].shape[-1]) for k in ("logmu", "logpi_s", "logpi"))
            fired.append(monitor.update(*batch).resync)
        m = {k: v[s] for k, v in runs.measures.items()}
        falls = m["accuracy"] < np.maximum.accumulate(m["accuracy"]) - FALL
        found.append(
            Watched(
                rule,
                first_below(m["ess_exact"]),
                _first(np.array(fired)),
                first_below(m["ess_token"]),
                _first(falls),
            )
        )
    return found


def watched() -> Iterator[Watched]:
    """All runs of the trial under the monitor."""
    cells = [(e, q, lr, n) for e in ENVIRONMENTS for q, lr in POINTS for n in WATCHED]
    for cell in track(cells, "monitor", console=Console(file=sys.stderr)):
        yield from watch_runs(*cell)


def _first(flags: np.ndarray) -> float:
    return float(np.argmax(flags)) + 1 if flags.any() else math.inf


def forecast_table(cases: list[Forecasted]) -> Table:
    """Draw one row per level of ESS and number of steps still ahead."""
    table = Table(title=f"forecast of the crossing, {len(cases)} forecasts on fresh toy runs")
    columns = "made at ESS|steps ahead|n|covered (90%)|median width|within 1: forecast|square law|var *|KL *"
    for name in columns.split("|"):
        table.add_column(name)
    for at in MADE_AT:
        for low, high in ((1, math.inf), (1, 2), (3, 4), (5, 8), (9, math.inf)):
            some = [c for c in cases if c.at == at and low <= c.crossing - c.made <= high]
            if not some:
                continue
            a = np.array(some)
            crossing = a[:, 2]
            near = [np.mean(np.abs(a[:, i] - crossing) <= 1) for i in (4, 8, 6, 7)]
            covered = np.mean((a[:, 3] <= crossing) & (crossing <= a[:, 5]))
            ahead = "all" if (low, high) == (1, math.inf) else f"{low}-{high:g}"
            width = np.median(a[:, 5] - a[:, 3])
            row = (
                f"{at}",
                ahead,
                f"{len(some)}",
                f"{covered:.2f}",
                f"{width:g}",
                *(f"{x:.2f}" for x in near),
            )
            table.add_row(*row)
    return table


def monitor_table(runs: list[Watched]) -> Table:
    """Draw one row per correction and estimator."""
    table = Table(title=f"monitor on {len(runs)} fresh toy runs of {HEAVY_SAMPLES * 64} tokens a step")
    columns = "correction|estimator|runs that cross|late by > 1|early by > 2|median delay|90% of delays"
    for name in (columns + "|before accuracy falls|fires without a crossing").split("|"):
        table.add_column(name)
    for rule in ("is", "sc", "pg"):
        mine = [r for r in runs if r.rule == rule]
        crossing = [r for r in mine if math.isfinite(r.crossing)]
        falling = [r for r in mine if math.isfinite(r.fall)]
        calm = [r for r in mine if not math.isfinite(r.crossing)]
        for name in ("monitor", "plain"):
            delay = np.array([getattr(r, name) - r.crossing for r in crossing])
            ends = np.quantile(delay, [0.05, 0.95], method="nearest")
            table.add_row(
                rule,
                name,
                f"{len(crossing)}",
                f"{np.mean(delay > 1):.2f}",
                f"{np.mean(delay < -2):.2f}",
                f"{np.median(delay):+.0f}",
                f"{ends[0]:+.0f} to {ends[1]:+.0f}",
                f"{sum(getattr(r, name) <= r.fall for r in falling)}/{len(falling)}",
                f"{sum(math.isfinite(getattr(r, name)) for r in calm)}/{len(calm)}",
            )
    return table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Forecast and monitor judged on fresh toy runs; several minutes. There is nothing to set."""


def main(options: Options) -> int:
    """Run both trials and print them."""
    console = Console(width=150)
    console.print(forecast_table(list(forecasts())))
    console.print("* measured at each step, so it knows the run up to the crossing: no forecast")
    console.print(monitor_table(list(watched())))
    return 0


if __name__ == "__main__":
    sys.exit(start(Options, "python -m validation.monitor_trial", main))
