"""One file per claim: margins as constants with their reason, and a function from evidence to checks.

A file never asks which engine the evidence is from. To add a claim, write its file and name it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from validation.check import Check
from validation.checks import dlc, ess_half, noise_floor, resync_is, split, stale
from validation.claims import CLAIMS
from validation.evidence import Evidence

CHECKS: Mapping[str, Callable[[Evidence], list[Check]]] = MappingProxyType(
    {
        "split": split.checks,
        "noise-floor": noise_floor.checks,
        "ess-half": ess_half.checks,
        "stale": stale.checks,
        "dlc": dlc.checks,
        "resync-is": resync_is.checks,
    }
)
"""By claim id, in the order of the verdict table"""


def selected(only: Iterable[str], /) -> list[str]:
    """Ids of the claims to check, in table order; all that have a check if `only` is empty.

    Raises
    ------
    ValueError
        For an id that is unknown or has no check yet.
    """
    wanted = list(only)
    for name in wanted:
        if name not in CLAIMS:
            raise ValueError(f"unknown claim {name!r}; known: {', '.join(CLAIMS)}")
        if name not in CHECKS:
            raise ValueError(f"claim {name!r} has no check here yet; checked: {', '.join(CHECKS)}")
    return [name for name in CHECKS if not wanted or name in wanted]
