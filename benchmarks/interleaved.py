"""Variants of one job that take turns, so that a ratio holds on a busy machine.

Each round runs every variant once, in turn; a ratio is the median over rounds of the ratio within a round.
LAGFLOOR_BENCH_ROUNDS sets the rounds (default 5); short jobs take more, up to `MOST`: five rounds of a few
milliseconds tell little. Nothing is asserted: targets are printed beside what was measured.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROUNDS = int(os.environ.get("LAGFLOOR_BENCH_ROUNDS", "5"))
MOST = 100
LONG_ENOUGH = 3.0
"""Seconds that all rounds together should last, where `MOST` allows it"""


@dataclass
class Interleaved:
    """Variants that take turns; CPU seconds of each, round by round."""

    variants: dict[str, Callable[[], Any]]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def once(self) -> None:
        for name, run in self.variants.items():
            start = time.process_time()
            run()
            self.seconds.setdefault(name, []).append(time.process_time() - start)

    def ratio(self, name: str, reference: str) -> float:
        pairs = zip(self.seconds[name], self.seconds[reference], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def measure(self, benchmark: Any) -> None:
        """Two warm-up rounds, then `ROUNDS` or more that count."""
        self.once()
        self.once()
        last = sum(s[-1] for s in self.seconds.values())
        rounds = max(ROUNDS, min(MOST, math.ceil(LONG_ENOUGH / max(last, 1e-3))))
        self.seconds = {}
        benchmark.pedantic(self.once, rounds=rounds, iterations=1)

    def report(
        self, capsys: Any, benchmark: Any, title: str, targets: list[tuple[str, str, str, float]]
    ) -> None:
        """Print each variant's time, and each target (id, variant, reference, limit) beside its ratio."""
        import torch  # late: the environment is prepared before it is imported

        with capsys.disabled():
            rounds = max(map(len, self.seconds.values()))
            print(f"\n{title}, {rounds} rounds, {torch.get_num_threads()} thread")
            for name, s in self.seconds.items():
                print(f"  {name:34s} {statistics.median(s):8.3f} CPU s")
            for target, name, reference, limit in targets:
                got = self.ratio(name, reference)
                benchmark.extra_info[target] = round(got, 3)
                verdict = (
                    f"(limit {limit:g}) {'met' if got <= limit else 'MISSED'}" if limit < math.inf else ""
                )
                print(f"  {target:5s} {name} / {reference}: {got:.2f} {verdict}".rstrip())
