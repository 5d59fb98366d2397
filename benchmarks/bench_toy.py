"""Throughput of the toy: run-steps per CPU-second beside a plain NumPy loop that reports the same statistics.

    OMP_NUM_THREADS=1 python benchmarks/bench_toy.py [--json FILE] [--figure docs/throughput.svg]
    python benchmarks/bench_toy.py --draw FILE --figure docs/throughput.svg

CPU time, not wall time: the machine may be busy. Two NumPy programs of one run and one correction (IS), where
the compiled loop carries all corrections: the plain loop draws and scores response by response; the array
program keeps arrays over (prompt, sample, position, word). Both report the statistics of the compiled loop.
Then the growth with seeds, with cells (corrections, looped over in Python) and with the length of a response.

Suffixes: C prompts, N samples, T positions, U memory states, V vocabulary, D features.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from theory.tail import k_hat
from toy.environment import build
from toy.settings import STALE, Sequence, setting_s
from toy.simulate import ensemble

TARGET = 30.0
"""Wanted: compiled against the plain NumPy loop, setting S"""


def numpy_program(experiment, *, steps: int, batch: Callable) -> dict[str, list[float]]:
    """Stale IS (pi/mu) with an exact engine, memory 'first'; `batch` draws and differentiates."""
    task = build(experiment.environment).cast(np.float32)
    rng = np.random.default_rng(experiment.seed)
    C, T, U, V = task.logits_CTUV.shape
    N = experiment.samples
    c, t = np.arange(C)[:, None, None], np.arange(T)[None, None]
    weights = np.zeros(task.weights_shape, np.float32)
    sampler = weights.copy()

    def log_probs(w):
        z = task.logits_CTUV + (task.features_CTUD @ w) @ task.projector_VV
        z = z - z.max(-1, keepdims=True)
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    def occupancy(logp):
        out = np.zeros((C, T, U), np.float32)
        out[:, 0, -1] = 1
        out[:, 1:, :V] = np.exp(logp[:, 0, -1])[:, None]
        return out

    rare = log_probs(weights) < np.log(1e-3)
    log: dict[str, list[float]] = {}
    for k in range(steps):
        if k % experiment.sync_every == 0:
            sampler = weights.copy()
        logp, logmu = log_probs(weights), log_probs(sampler)
        tokens, memory, reward, pulled = batch(task, rng, N, logmu, logp)
        rows = logmu[c, t, memory]
        moved = experiment.lr * pulled @ task.projector_VV.T / (C * N)
        weights = weights + moved
        new = log_probs(weights)
        log_w = np.take_along_axis((new[c, t, memory] - rows), tokens[..., None], -1)[..., 0]
        w, whole = np.exp(log_w), np.exp(log_w.sum(-1))
        dev = log_w - log_w.mean()
        seen, own, mu = occupancy(logmu), occupancy(new), np.exp(logmu)
        ratio = np.exp(new - logmu)
        row = {
            "reward": reward.mean(),
            "ess_token": w.mean() ** 2 / (w**2).mean(),
            "ess_sequence": whole.mean() ** 2 / (whole**2).mean(),
            "ess_exact": C * T / (seen[..., None] * mu * ratio**2).sum(),
            "k1": log_w.mean(),
            "k2": (dev**2).mean(),
            "k3": (dev**3).mean(),
            "k4": (dev**4).mean() - 3 * (dev**2).mean() ** 2,
            "k_hat": k_hat(log_w.reshape(-1)),
            "mean_w": w.mean(),
            "lag_rms": np.sqrt((log_w**2).mean()),
            "kl_sampler": (seen[..., None] * mu * (logmu - new)).sum() / (C * T),
            "off_support": (own[..., None] * np.exp(new) * rare).sum() / (C * T),
            "accuracy": (np.exp(new[:, 0, -1]) * (task.reward_CV > 0)).sum(-1).mean(),
            "update_norm": np.linalg.norm(moved),
            "lag_norm": np.linalg.norm(weights - sampler),
        }
        for name, value in row.items():
            log.setdefault(name, []).append(float(value))
    return log


def array_batch(task, rng, N: int, logmu, logp):
    """One batch with arrays over everything: Gumbel noise for the draws."""
    C, T, U, V = logmu.shape
    c, t = np.arange(C)[:, None, None], np.arange(T)[None, None]
    first = np.argmax(logmu[:, 0, -1][:, None] + rng.gumbel(size=(C, N, V)), -1)
    memory = np.concatenate([np.full((C, N, 1), U - 1), np.repeat(first[..., None], T - 1, -1)], -1)
    rows = logmu[c, t, memory]
    tokens = np.argmax(rows + rng.gumbel(size=(C, N, T, V)), -1)
    tokens[..., 0] = first
    reward = task.reward_CV[c[..., 0], first]
    advantage = reward - reward.mean(-1, keepdims=True)
    here = logp[c, t, memory]
    w = np.exp(np.take_along_axis(here - rows, tokens[..., None], -1)[..., 0])
    score = np.eye(V, dtype=np.float32)[tokens] - np.exp(here)
    gradient = (advantage[..., None] * w)[..., None] * score
    return tokens, memory, reward, np.einsum("cntd,cntv->dv", task.features_CTUD[c, t, memory], gradient)


def plain_batch(task, rng, N: int, logmu, logp):
    """One batch response by response."""
    C, T, U, _ = logmu.shape
    tokens, memory = np.zeros((C, N, T), int), np.full((C, N, T), U - 1)
    reward = np.zeros((C, N))
    cumulative = np.cumsum(np.exp(logmu), -1)
    for c in range(C):
        for n in range(N):
            for t in range(T):
                row = cumulative[c, t, memory[c, n, t]]
                tokens[c, n, t] = np.searchsorted(row, rng.random() * row[-1], side="right")
                if t == 0:
                    memory[c, n, 1:] = tokens[c, n, 0]
            reward[c, n] = task.reward_CV[c, tokens[c, n, 0]]
    advantage = reward - reward.mean(-1, keepdims=True)
    pulled = np.zeros(task.weights_shape)
    for c in range(C):
        for n in range(N):
            for t in range(T):
                state = (c, t, memory[c, n, t])
                a = tokens[c, n, t]
                score = -np.exp(logp[state])
                score[a] += 1
                w = np.exp(logp[state][a] - logmu[state][a])
                pulled += np.outer(task.features_CTUD[state], advantage[c, n] * w * score)
    return tokens, memory, reward, pulled


def cpu_seconds(run: Callable[[], object], *, repeats: int = 3) -> float:
    """Least CPU time of a few runs after one that compiles."""
    run()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def per_second(experiment, seeds: int, *, cells: tuple[str, ...] = ("is",)) -> float:
    """Run-steps per CPU-second of the compiled loop."""
    experiments = [setting_like(experiment, name) for name in cells]
    spent = cpu_seconds(lambda: [ensemble(e, seeds=seeds) for e in experiments])
    return seeds * experiment.steps * len(cells) / spent


def setting_like(experiment, name: str):
    """Same experiment under another correction."""
    rule = setting_s(correction=name).correction
    return dataclasses.replace(experiment, correction=rule)


def draw(got: dict, path: Path) -> None:
    """Three panels of run-steps per CPU-second, with both NumPy loops as lines to compare with."""
    from validation.report.style import COLORS, new_figure, to_svg

    titles = {
        "seeds": "training seeds in one call",
        "cells": "corrections, one after another",
        "length": "tokens",
    }
    figure = new_figure(panels=len(titles))
    for axes, (growth, title) in zip(figure.axes, titles.items(), strict=True):
        x = [int(n) for n in got[growth]]
        axes.plot(x, list(got[growth].values()), "o-", color=COLORS[0], label="compiled")
        for name, label, color in (
            ("arrays", "NumPy, arrays (1 seed, 8 tokens)", COLORS[1]),
            ("plain", "NumPy, response by response", COLORS[2]),
        ):
            axes.axhline(got[name], color=color, linestyle="--", label=label)
        axes.set(xscale="log", yscale="log", xlabel=title, xticks=x, xticklabels=[str(n) for n in x])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("run-steps per CPU-second")
    figure.axes[0].set_title("growth of the toy's throughput")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(figure, name="throughput", ink="#808080"), encoding="utf-8")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--figure", type=Path, help="draw the growth into this SVG file")
    parser.add_argument("--draw", type=Path, help="draw figures written by --json, measure nothing")
    options = parser.parse_args()
    if options.draw is not None:
        if options.figure is None:
            parser.error("--draw needs --figure, the file to write")
        draw(json.loads(options.draw.read_text()), options.figure)
        return
    path = options.json
    stale = setting_s(correction="is", sync_every=STALE)
    steps = 5
    plain = steps / cpu_seconds(lambda: numpy_program(stale, steps=steps, batch=plain_batch), repeats=2)
    arrays = stale.steps / cpu_seconds(lambda: numpy_program(stale, steps=stale.steps, batch=array_batch))
    got = {"plain": plain, "arrays": arrays, "seeds": {}, "cells": {}, "length": {}}
    print(f"NumPy, response by response: {plain:.1f} run-steps per CPU-second")
    print(f"NumPy, arrays over all:      {arrays:.0f}")
    for seeds in (1, 4, 16):
        got["seeds"][seeds] = rate = per_second(stale, seeds)
        by = f"{rate / plain:.0f} x the plain loop, wanted {TARGET:.0f} x; {rate / arrays:.1f} x arrays"
        print(f"compiled, {seeds:3d} seeds: {rate:.0f} ({by})")
    for cells in (("is",), ("is", "sc", "dlc"), ("pg", "is", "tis", "seq-is", "sc", "is-sc", "mis", "dlc")):
        got["cells"][len(cells)] = rate = per_second(stale, 4, cells=cells)
        print(f"compiled, 4 seeds, {len(cells)} cells: {rate:.0f}")
    for length in (2, 4, 8, 16, 32):
        longer = dataclasses.replace(stale, environment=Sequence(length=length))
        got["length"][length] = rate = per_second(longer, 4)
        print(f"compiled, 4 seeds, {length:2d} tokens: {rate:.0f}")
    if path is not None:
        path.write_text(json.dumps(got, indent=1))
    if options.figure is not None:
        draw(got, options.figure)


if __name__ == "__main__":
    main()
