"""The two axes of the table, by the names of the command line. Imports no framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from theory.corrections import Correction, correction
from theory.experiment import Numerics
from validation import plan
from validation.flags import words_in

STALE = plan.STALE


EXACT = Numerics()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """One sampler: what its engine rounds, and how often it gets the trainer's weights."""

    numerics: Numerics = EXACT
    sync_every: int = 1
    article: bool = False
    """Whether the articles have it; the others are run where they are asked for"""

    @property
    def stale(self) -> bool:
        """Whether its weights are older than the batch."""
        return self.sync_every > 1


SAMPLERS: Mapping[str, SamplerRow] = MappingProxyType(
    {
        "reference": SamplerRow(article=True),
        "fp8": SamplerRow(numerics=Numerics(kind="fp8"), article=True),
        "stale-64": SamplerRow(sync_every=STALE, article=True),
        "fp8+stale": SamplerRow(numerics=Numerics(kind="fp8"), sync_every=STALE, article=True),
        "stale-4": SamplerRow(sync_every=4),
        "stale-16": SamplerRow(sync_every=16),
        "bf16": SamplerRow(numerics=Numerics(kind="bf16")),
        "int4": SamplerRow(numerics=Numerics(kind="int4")),
        "e2m1": SamplerRow(numerics=Numerics(kind="e2m1")),
        "weight-noise": SamplerRow(numerics=Numerics(kind="weight-noise", scale=0.05)),
    }
)

CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {
        "pg": plan.CORRECTIONS[plan.PG],
        "ppo": correction("ppo"),
        "ppo-synced": correction("ppo", ppo_ref="synced"),
        "ppo-engine": correction("ppo", ppo_ref="engine"),
        "tis": correction("tis"),
        "is": plan.CORRECTIONS[plan.IS],
        "is+resync": plan.CORRECTIONS[plan.IS_RESYNC],
        "seq-is": plan.CORRECTIONS[plan.SEQ_IS],
        "seq-is+resync": plan.CORRECTIONS[plan.SEQ_IS_RESYNC],
        "sc": plan.CORRECTIONS[plan.SC],
        "is-sc": plan.CORRECTIONS[plan.IS_SC],
        "mis": correction("mis"),
        "icepop": correction("icepop"),
        "decoupled-ppo": correction("decoupled-ppo"),
        "m2po": correction("m2po"),
        "vcpo": correction("vcpo"),
        "dlc": plan.CORRECTIONS[plan.DLC],
        "dlc-free": plan.CORRECTIONS[plan.DLC_FREE],
    }
)
"""ppo: its ratio refers to the trainer before the batch; dlc-free: DLC without its resync"""

CELL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "is+resync": plan.IS_RESYNC,
        "seq-is": plan.SEQ_IS,
        "seq-is+resync": plan.SEQ_IS_RESYNC,
        "dlc-free": plan.DLC_FREE,
    }
)
"""Names the checks know some corrections by, where they differ"""


def chosen(text: str, known: Mapping[str, object], what: str, /, default: Iterable[str]) -> tuple[str, ...]:
    """Names in a comma-separated list, in the order of the table.

    Raises
    ------
    ValueError
        For an unknown name, naming the known ones; for one given twice, or a list without any.
    """
    wanted = words_in(text, f"{what}s")
    if len(set(wanted)) < len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise ValueError(f"--{what}s takes each name once, got {twice!r} again; name it once")
    for name in wanted:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return tuple(name for name in known if name in (wanted or set(default)))
