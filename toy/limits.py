"""What sizes and shares of the toy's environments must be, beyond `theory.limits`; a refusal is a line."""

from __future__ import annotations

import math
from typing import Any

from theory.limits import LARGEST_COUNT, LARGEST_REAL, refuse_count, refuse_real


def check_sizes(seed: Any, /, **sizes: tuple[Any, int]) -> None:
    """Refuse a seed or sizes that are no whole numbers, or below the least that each can be."""
    refuse_count("seed", seed, least=0, most=math.inf)
    for name, (got, least) in sizes.items():
        refuse_count(name, got, least=least)


def check_table(*shape: int) -> None:
    """Refuse tables with more entries than their indices can count."""
    if math.prod(shape) > LARGEST_COUNT:
        raise ValueError(
            f"a table of the environment has at most {LARGEST_COUNT} entries, got "
            f"{' x '.join(map(str, shape))}; lower a size"
        )


def check_reals(least: float = -LARGEST_REAL, /, **numbers: Any) -> None:
    """Refuse what is no finite number, or below the least it can be."""
    for name, got in numbers.items():
        refuse_real(name, got, least=least)


def check_quantile(quantile: Any) -> None:
    """Refuse a share that leaves no failure, or no success."""
    check_reals(quantile=quantile)
    if not 0 < quantile < 1:
        raise ValueError(
            f"quantile is a share strictly between 0 and 1, got {quantile}; .7 and .93 are the usual ones"
        )
