"""How often the audit names the right kind: random draws of each synthetic case.

And false alarms on healthy logs.

Run as ``python benchmarks/audit_confusion.py [--draws 20] [--healthy 200] [--json FILE]``; minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import audit_cases  # noqa: E402
import audit_files  # noqa: E402
import audit_logs  # noqa: E402
from audit_plain import HEALTHY, PLAIN, World  # noqa: E402

from validation.audit.run import audit  # noqa: E402


def first_kind(name: str, form: str, seed: int) -> str:
    """Kind of the first finding for one draw of a case, "none" if there is none."""
    made = audit_cases.CASES[name].make(np.random.default_rng(seed))
    return _audited(made, form)[0]


def plain_kinds(name: str, seed: int) -> str:
    """The same for a case of the plainer world, of any size."""
    rng = np.random.default_rng(seed)
    world = World(rng, int(rng.choice([24, 64, 160])), int(rng.choice([60, 150, 300])))
    kinds = _audited(PLAIN[name][1](world), "canonical")
    if PLAIN[name][0] != HEALTHY:
        return kinds[0]
    return HEALTHY if not set(kinds) - {"none", "lag (healthy)"} else ", ".join(kinds)


def _audited(made: Any, form: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        findings = audit([str(audit_files.write(form, made, Path(folder)))]).findings
    kinds = [f"{f.kind}{' (healthy)' if f.healthy else ''}" for f in findings]
    return kinds or ["none"]


def healthy_kinds(seed: int) -> tuple[str, list[str]]:
    """All kinds found in one healthy log."""
    rng = np.random.default_rng(seed)
    word, log = audit_logs.healthy(rng)
    form = str(rng.choice(["canonical", "canonical", "nemo_rl", "prime_rl", "slime"]))
    if form in ("nemo_rl", "slime"):
        log = audit_logs.at_step_start(log)
    return f"{word}/{form}", _audited(log, form)


def main() -> None:
    """Print the table and the false alarms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--seed", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.only or list(audit_cases.CASES)
    jobs = []
    for n in names:
        forms = audit_cases.CASES[n].formats
        jobs += [(n, forms[k % len(forms)], options.seed + k) for k in range(options.draws)]
    work = Parallel(n_jobs=options.jobs)
    kinds: list[str] = list(work(delayed(first_kind)(*job) for job in jobs))  # type: ignore[arg-type]
    table: dict[str, Counter[str]] = {n: Counter() for n in names}
    for (name, _, _), kind in zip(jobs, kinds, strict=True):
        table[name][kind.removesuffix(" (healthy)")] += 1
    right = 0
    for name, counts in table.items():
        case = audit_cases.CASES[name]
        hits = sum(counts[k] for k in {case.kind, *case.also})
        right += hits
        mark = "" if hits == options.draws else "   <-- " + ", ".join(f"{k} {v}" for k, v in counts.items())
        print(f"{name:26s} {case.kind:26s} {hits}/{options.draws}{mark}")
    print(f"right kind first: {right}/{len(jobs)}")
    plain = [
        (n, options.seed + 20_000 + k) for n in PLAIN for k in range(0 if options.only else options.draws)
    ]
    told: list[str] = list(work(delayed(plain_kinds)(*job) for job in plain))  # type: ignore[arg-type]
    wrong = [
        (n, s, k)
        for (n, s), k in zip(plain, told, strict=True)
        if k.removesuffix(" (healthy)") != PLAIN[n][0]
    ]
    for name, seed, kind in wrong:
        print(f"plainer world: {name} (draw {seed}) is called {kind}, is {PLAIN[name][0]}")
    print(f"plainer world: right {len(plain) - len(wrong)}/{len(plain)}")
    seeds = range(options.seed + 10_000, options.seed + 10_000 + options.healthy)
    tried: list[tuple[str, list[str]]] = list(work(delayed(healthy_kinds)(s) for s in seeds))  # type: ignore[arg-type]
    alarms = [
        (k, word, found) for k, (word, found) in enumerate(tried) if set(found) - {"none", "lag (healthy)"}
    ]
    for k, word, found in alarms:
        print(f"false alarm: healthy log {options.seed + 10_000 + k} ({word}): {', '.join(found)}")
    print(f"false alarms: {len(alarms)}/{options.healthy}")
    if options.json:
        first = {n: dict(c) for n, c in table.items()}
        text = {
            "draws": options.draws,
            "first_kind": first,
            "healthy": options.healthy,
            "alarms": len(alarms),
        }
        options.json.write_text(json.dumps(text, indent=1))


if __name__ == "__main__":
    main()
