"""``lagfloor doctor``: say whether what is installed here fits our adapters."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from validation.errors import usage


@dataclass(frozen=True, kw_only=True)
class Options:
    """Examine the installed trainers: TRL's private methods we override, verl's registries, the launch."""

    only: str = ""
    """packages, trl, verl, separated by commas; all if left out"""
    require: str = ""
    """Of these, what must be there: absent counts as broken"""


def main(options: Options) -> int:
    """Print one line a finding; 1 if anything is broken, or absent and required."""
    from validation.doctor import examine

    required, only = _words(options.require), _words(options.only)
    with usage():
        if options.only and not only:
            raise ValueError(f"--only names parts, got {options.only!r}; leave it out for all")
        unknown = sorted(set(required) - {"trl", "verl"})
        if unknown:
            raise ValueError(f"only trl and verl can be required, got {unknown[0]!r}")
        if unseen := [part for part in required if only and part not in only]:
            raise ValueError(
                f"what is required must be examined, got {unseen[0]!r} beside --only {options.only}"
            )
        findings = examine(*([only] if only else []))
    bad = 0
    for f in findings:
        wrong = f.health == "broken" or (f.health == "absent" and f.name.removeprefix("real.") in required)
        bad += wrong
        print(f"{'BROKEN' if wrong else f.health:<7} {f.name:<14} {f.detail}", flush=True)
    if bad:
        print(f"lagfloor doctor: {bad} of {len(findings)} findings need care", file=sys.stderr)
    return 1 if bad else 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in text.split(",") if w.strip())
