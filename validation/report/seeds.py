"""Verdicts of the same checks on other environments or seeds: which ones changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.results import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Checks of one engine under several seeds."""

    engine: str
    seeds: Sequence[int]
    alike: int
    """Readings whose verdict is the same under every seed"""
    changed: Sequence[tuple[str, str, Mapping[int, str]]]
    """Claim, reading and verdict by seed, where they differ or a seed lacks the reading"""


def compare_seeds(folder: Path, engine: str, /) -> Comparison | None:
    """Compare what `check` kept of an engine under each seed; None for fewer than two seeds.

    Parameters
    ----------
    folder : Path
        Where `validation.results.save` keeps them.
    engine : str
        "toy", "real" or "theory".

    Raises
    ------
    ValueError
        If a file is not the result of a check.
    """
    found = {}
    for path in folder.glob(f"{engine}-seed-*.json"):
        match = re.fullmatch(rf"{engine}-seed-(\d+)", path.stem)
        data = load(path) if match else None
        if match and data is not None:
            found[int(match[1])] = {(row["claim"], row["reading"]): row["verdict"] for row in data["details"]}
    if len(found) < 2:
        return None
    seeds = sorted(found)
    readings = list(dict.fromkeys(key for seed in seeds for key in found[seed]))
    verdicts = {key: {seed: found[seed].get(key, "-") for seed in seeds} for key in readings}
    changed = [(*key, by_seed) for key, by_seed in verdicts.items() if len({*by_seed.values()}) > 1]
    return Comparison(engine=engine, seeds=seeds, alike=len(readings) - len(changed), changed=changed)
