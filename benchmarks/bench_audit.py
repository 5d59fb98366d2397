"""Throughput and memory of the audit: ten million tokens of JSON lines end to end, and the statistics alone.

    OMP_NUM_THREADS=1 python benchmarks/bench_audit.py [--tokens 10000000] [--json FILE]

CPU time beside wall time, since the machine may be busy. Rows have 300 tokens, three log-probs and ids each.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from validation.audit.collect import Collector  # noqa: E402
from validation.audit.run import audit, judge  # noqa: E402
from validation.audit.source import open_log  # noqa: E402

LENGTH = 300
TARGET_SECONDS = 60.0
"""Wanted: 10^7 tokens of JSON lines end to end"""
TARGET_RATE = 2e6
"""Wanted: tokens a second once parsed"""


def write(path: Path, tokens: int) -> None:
    """A healthy log with lag, rows of LENGTH tokens."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for i in range(tokens // LENGTH):
            mu = -rng.exponential(size=LENGTH) * rng.choice([0.05, 2.0], LENGTH)
            pi_s = mu + 0.03 * rng.normal(size=LENGTH)
            pi = pi_s + 0.03 * rng.normal(size=LENGTH)
            row = {
                "step": i // 512,
                "seq_id": i,
                "group_id": i // 8,
                "prompt_ids": list(range(40)),
                "response_ids": rng.integers(0, 150_000, LENGTH).tolist(),
                "mask": [1] * LENGTH,
                "logp_mu": np.round(mu, 6).tolist(),
                "logp_pi_s": np.round(pi_s, 6).tolist(),
                "logp_pi": np.round(pi, 6).tolist(),
                "version": i // 512 - 1,
                "trainer_version": i // 512,
            }
            file.write(orjson.dumps(row) + b"\n")


def main() -> None:
    """Print seconds, rates and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write(path, options.tokens)
        size = path.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, cpu = time.perf_counter(), time.process_time()
        audit([str(path)])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # the statistics alone, on blocks that are already arrays
        log = open_log([str(path)])
        held, count = [], 0
        for block in log.blocks():
            held.append(block)
            count += int(block.starts[-1])
            if count >= 2_000_000:
                break
        collected, start = Collector(), time.process_time()
        for block in held:
            collected.add(block)
        pass_over = time.process_time() - start
        start = time.process_time()
        judge(log, collected)
        judging = time.process_time() - start
    told = {
        "tokens": options.tokens,
        "megabytes": round(size / 1e6),
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "cpu_tokens_per_second": round(options.tokens / cpu),
        "peak_megabytes": round(peak / 1024),
        "grown_megabytes": round((peak - before) / 1024),
        "statistics_tokens_per_cpu_second": round(count / pass_over),
        "detectors_cpu_seconds": round(judging, 2),
    }
    for name, value in told.items():
        print(f"{name:36s} {value:,}")
    scaled = cpu * 1e7 / options.tokens
    print(f"10^7 tokens of JSON lines: {scaled:.1f} CPU s (wanted <= {TARGET_SECONDS:g})")
    rate = count / pass_over / 1e6
    print(f"once parsed: {rate:.1f} million tokens a CPU second (wanted >= {TARGET_RATE / 1e6:g})")
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
