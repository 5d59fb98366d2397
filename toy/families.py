"""One compiled function for every correction: what is structure becomes a branch, what is a number is traced.

Two corrections of one *family* differ in numbers alone (bounds, thresholds, powers). The families of the
whole table are the branches of one ``lax.switch``; a correction whose family is not among them is compiled
alone, once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from theory.corrections import CORRECTIONS, PPO_REFERENCE, Center, Clip, Correction, Level, Ratio, correction


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The structure of a correction: what decides which code runs."""

    ratio: Ratio
    level: Level
    clip: Clip
    clip_on: Ratio | None
    center: Center
    scaled: bool
    """Whether the learning rate depends on the correction's own ESS"""


class RuleSettings(NamedTuple):
    """The numbers of a correction, traced."""

    low: Any
    high: Any
    dual: Any
    lr_power: Any
    resync_below: Any
    resync_on_sequence: Any


def family_of(rule: Correction) -> Family:
    """Structure of a correction; no clip is a truncation at infinity, so it needs no branch of its own."""
    clip_on = rule.clip_on if rule.clip != "none" and rule.clip_on != rule.ratio else None
    return Family(
        ratio=rule.ratio,
        level=rule.level,
        clip="truncate" if rule.clip == "none" else rule.clip,
        clip_on=clip_on,
        center=rule.center,
        scaled=rule.lr_power != 0,
    )


def rule_settings(rule: Correction, dtype: Any) -> RuleSettings:
    """Numbers of a correction, with the settings that switch a clip off where it has none."""
    unclipped = rule.clip == "none"
    return RuleSettings(
        low=np.asarray(0.0 if unclipped else rule.low, dtype),
        high=np.asarray(math.inf if unclipped else rule.high, dtype),
        dual=np.asarray(math.inf if rule.dual is None else rule.dual, dtype),
        lr_power=np.asarray(rule.lr_power, dtype),
        resync_below=np.asarray(rule.resync_below, dtype),
        resync_on_sequence=np.bool_(rule.resync_level == "sequence"),
    )


def rule_of(family: Family, settings: RuleSettings) -> Correction:
    """Correction of a family with traced numbers in it: what the core sees inside the compiled function."""
    template = Correction(
        cite="a branch of the compiled simulator",
        ratio=family.ratio,
        level=family.level,
        clip=family.clip,
        clip_on=family.clip_on,
        center=family.center,
    )
    return replace(
        template, low=settings.low, high=settings.high, dual=settings.dual, lr_power=settings.lr_power
    )


def _table() -> tuple[Family, ...]:
    """Families of the table, of PPO's references and of DLC's clips and centres."""
    rules = list(CORRECTIONS.values())
    rules += [correction("ppo", ppo_ref=reference) for reference in PPO_REFERENCE]
    clips = ({}, {"clip": "mask", "low": 0.5, "high": 2.0}, {"clip": "ppo", "low": 0.8, "high": 1.2})
    centers: tuple[Center, ...] = ("matched", "form-i", "numerics")
    rules += [correction("dlc", center=center, **clip) for center, clip in product(centers, clips)]
    rules += [correction("is", ratio="lag"), correction("tis", center="matched")]
    return tuple(dict.fromkeys(map(family_of, rules)))


FAMILIES: tuple[Family, ...] = _table()
"""The branches of the compiled simulator."""


def branches_for(rule: Correction) -> tuple[Family, ...]:
    """Branches to compile for a correction: the table's, or its own family alone where the table lacks it."""
    family = family_of(rule)
    return FAMILIES if family in FAMILIES else (family,)
