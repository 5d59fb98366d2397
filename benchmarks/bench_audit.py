"""Throughput and memory of the audit: ten million tokens of JSON lines end to end, and the statistics alone.

    OMP_NUM_THREADS=1 python benchmarks/bench_audit.py [--tokens 10000000] [--forms plain gz zst shards]

CPU time beside wall time, since the machine may be busy. The same log is read as one file, compressed, and as
a folder of shards. Rows have 300 tokens, three log-probs and ids each.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

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


FORMS = ("plain", "gz", "zst", "shards")
SHARDS = 20


def reform(path: Path, form: str) -> Path:
    """Rewrite a file of lines as its gz or zst, or as a folder of shards; return where."""
    if form == "plain":
        return path
    if form == "shards":
        folder = path.parent / "shards"
        folder.mkdir()
        with path.open("rb") as lines:
            files = [(folder / f"rank_{k}.jsonl").open("wb") for k in range(SHARDS)]
            for i, line in enumerate(lines):
                files[i % SHARDS].write(line)
            for file in files:
                file.close()
        return folder
    target = path.with_suffix(f".{form}")
    with ExitStack() as stack:
        source = stack.enter_context(path.open("rb"))
        if form == "gz":
            out = stack.enter_context(gzip.open(target, "wb", compresslevel=1))
        else:
            out = stack.enter_context(zstandard.open(target, "wb"))
        shutil.copyfileobj(source, out, 1 << 20)
    return target


def _peak() -> int:
    """Peak resident memory of this process so far, kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print seconds, rates and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["plain"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = _peak()
    read: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write(path, options.tokens)
        size = path.stat().st_size
        for form in options.forms:
            given = reform(path, form)
            wall, cpu = time.perf_counter(), time.process_time()
            told = audit([str(given)])
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            count = told.numbers["counts"]["tokens"]
            read[form] = {
                "tokens": count,
                "wall_seconds": round(wall, 1),
                "cpu_seconds": round(cpu, 1),
                "peak_megabytes": round(_peak() / 1024),
            }
            spent = f"{cpu:.1f} CPU s, {wall:.1f} s wall, peak {_peak() / 1024:.0f} MB"
            print(f"{form:8s} {count:,} tokens: {spent}")
            sys.stdout.flush()
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
    result: dict[str, Any] = {
        "megabytes": round(size / 1e6),
        "megabytes_before": round(before / 1024),
        "read": read,
        "statistics_tokens_per_cpu_second": round(count / pass_over),
        "detectors_cpu_seconds": round(judging, 2),
    }
    for form, of in read.items():
        scaled = of["cpu_seconds"] * 1e7 / of["tokens"]
        print(f"{form:8s} 10^7 tokens: {scaled:.1f} CPU s (wanted <= {TARGET_SECONDS:g})")
    rate = count / pass_over / 1e6
    print(f"once parsed: {rate:.1f} million tokens a CPU second (wanted >= {TARGET_RATE / 1e6:g})")
    print(f"detectors: {judging:.2f} CPU s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
