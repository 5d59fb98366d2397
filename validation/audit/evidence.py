"""The sample as the detectors see it.

Paired tokens, what is numerics among them, and what is already explained.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from theory.records import Provenance
from validation.audit.block import UNKNOWN
from validation.audit.collect import Collector
from validation.audit.sums import in_use

LagFree = Literal["yes", "assumed", "no"]
"""Whether d is numerics alone. yes: the trainer was scored at the sampler's weights.

Or only tokens of equal versions
are looked at; assumed: at the start of the step, which is the same only in a run that syncs each step; no:
pi"""

BINS = 12
"""Quantile bins of log mu within which differences are compared: noise shrinks where the model is sure"""


class Mean(NamedTuple):
    """A mean over tokens with its standard error over rows."""

    value: float
    stderr: float

    @property
    def z(self) -> float:
        """Value in standard errors; 0 where there is none."""
        return self.value / self.stderr if self.stderr > 0 else 0.0


class Evidence:
    """Paired tokens of the sample as flat arrays; `live` marks those no finding has explained yet."""

    def __init__(
        self,
        collected: Collector,
        /,
        *,
        provenance: Mapping[str, Provenance],
        null_is_broken: bool = False,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.exact = collected
        self.null_is_broken = null_is_broken
        self.settings = settings or {}
        sample = collected.sample()
        self.sample = sample
        tokens, lengths = sample.tokens, np.diff(sample.starts)
        self.reference = collected.reference
        size = sample.size
        none = np.zeros(size, dtype=bool)
        mask = tokens.get("mask", none)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        usable = {n: in_use(tokens[n]) & mask for n in ("logmu", "logpi_s", "logpi") if n in tokens}
        mu_ok = usable.get("logmu", none)
        paired = mu_ok & usable[self.reference] if self.reference in usable else none
        at = np.flatnonzero(paired)
        self.at = at
        self.mu_all = tokens["logmu"][mu_ok] if "logmu" in tokens else np.zeros(0)
        self.row_all = owner[mu_ok]
        self.mu = tokens["logmu"][at] if "logmu" in tokens else np.zeros(0)
        self.ref = tokens[self.reference][at] if self.reference in tokens else np.zeros(0)
        self.d = self.mu - self.ref
        self.row = owner[at]
        self.position = tokens["position"][at].astype(np.int64) if size else np.zeros(0, dtype=np.int64)
        # up to the last counted token: padding must not change where a token stands in its row
        extent = np.zeros(len(lengths), dtype=np.int64)
        np.maximum.at(extent, self.row, self.position + 1)
        self.length = extent[self.row]
        self.token = tokens["token"][at] if "token" in tokens else None
        self.entropy, self.kept = (
            np.where(in_use(tokens[name][at]), tokens[name][at], np.nan) if name in tokens else None
            for name in ("entropy", "kept_mass")
        )
        self.rows = sample.rows
        self.step = self._row_column("step")[self.row] if size else np.zeros(0, dtype=np.int64)
        self.gap = self._gaps(at, owner)
        self.dated = self._dated(at, owner)
        """Tokens whose versions are known on both sides"""
        self.behind = self._behind(at, owner)
        """Updates the sampler is behind by its own claim.

        From the step where the trainer's version is unknown, and
        then up to a constant"""
        self.live = np.ones(len(at), dtype=bool)
        known = provenance.get(self.reference or "", Provenance(kind="not measured"))
        self.lag_free: LagFree
        self.pure = self.live.copy()
        """Tokens whose d is taken as numerics"""
        if self.reference == "logpi_s" and known.kind == "measured":
            self.lag_free = "yes"
        elif (self.gap == 0).any():
            self.lag_free, self.pure = "yes", self.gap == 0
        else:
            self.lag_free = "assumed" if self.reference == "logpi_s" else "no"
        self._lag_columns(usable, owner)

    def _row_column(self, name: str) -> np.ndarray:
        return self.rows[name]

    def _gaps(self, at: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """Return updates between sampler and trainer by token, -1 where not known."""
        if not len(at):
            return np.zeros(0, dtype=np.int64)
        version = self.sample.tokens["version"][at]
        trainer = self._row_column("trainer_version")[owner[at]]
        known = self._dated(at, owner)
        return np.where(known, np.where(known, trainer, 0) - np.where(known, version, 0), -1)

    def _dated(self, at: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """Whether the versions of both sides were logged, by token."""
        if not len(at):
            return np.zeros(0, dtype=bool)
        trainer = self._row_column("trainer_version")[owner[at]]
        return (self.sample.tokens["version"][at] != UNKNOWN) & (trainer != UNKNOWN)

    def _behind(self, at: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """Version gap, or step minus version where only the sampler's version was logged.

        UNKNOWN otherwise.
        """
        if not len(at):
            return np.zeros(0, dtype=np.int64)
        version = self.sample.tokens["version"][at]
        row = owner[at]
        trainer, step = self._row_column("trainer_version")[row], self._row_column("step")[row]
        now = np.where(trainer != UNKNOWN, trainer, step)
        known = (version != UNKNOWN) & (now != UNKNOWN)
        return np.where(known, np.where(known, now, 0) - np.where(known, version, 0), UNKNOWN)

    def _lag_columns(self, usable: Mapping[str, np.ndarray], owner: np.ndarray) -> None:
        tokens = self.sample.tokens
        if "logpi_s" in usable and "logpi" in usable:
            at = np.flatnonzero(usable["logpi_s"] & usable["logpi"])
        else:
            at = np.zeros(0, dtype=np.int64)
        self.lag_at = at
        self.g = tokens["logpi_s"][at] - tokens["logpi"][at] if len(at) else np.zeros(0)
        self.g_ref = tokens["logpi_s"][at] if len(at) else np.zeros(0)
        self.g_row = owner[at]
        self.g_gap = self._gaps(at, owner)
        self.g_behind = self._behind(at, owner)
        self.g_step = self._row_column("step")[self.g_row] if len(at) else np.zeros(0, dtype=np.int64)

    # -- views
    # -------------------------------------------------------------------------------------------------

    @property
    def numerics(self) -> np.ndarray:
        """Live tokens whose d is numerics."""
        return self.live & self.pure

    @property
    def in_lockstep(self) -> bool:
        """Whether the sampler's version moves on with every step: whatever lag there is stays the same."""
        behind = self.behind[self.live]
        several = len(np.unique(self.step[self.live])) > 2
        return several and behind.size > 0 and behind[0] != UNKNOWN and bool((behind == behind[0]).all())

    @property
    def apart(self) -> bool:
        """Whether versions were logged and none are equal: d holds lag, and no token tells how much."""
        return self.lag_free != "yes" and bool(self.dated.any())

    @property
    def has_lag(self) -> bool:
        """Whether the trainer was scored twice, so that lag is measured."""
        return len(self.g) > 0

    def explains(self, tokens: np.ndarray, /) -> float:
        """Share of the mean square of d that stands on `tokens`."""
        total = float(self.d @ self.d)
        return float(self.d[tokens] @ self.d[tokens]) / total if total > 0 else 0.0

    def clustered(self, values: np.ndarray, where: np.ndarray, /) -> Mean:
        """Mean over the tokens `where` of `values` (all paired tokens), error over rows."""
        return clustered_mean(values[where], self.row[where])

    @cached_property
    def bin(self) -> np.ndarray:
        """Bin of each token by its log mu."""
        if not len(self.mu):
            return np.zeros(0, dtype=np.int64)
        edges = np.quantile(self.mu, np.linspace(0, 1, BINS + 1)[1:-1])
        return np.searchsorted(edges, self.mu, side="right")

    def scaled(self) -> np.ndarray:
        """|d| over the median |d| of its bin: of order 1 wherever nothing special happens."""
        size = np.abs(self.d)
        use = self.numerics
        whole = float(np.median(size[use])) if use.any() else 1.0
        spread = float(np.sqrt(np.mean(size[use] ** 2))) if use.any() else 1.0
        out = np.zeros_like(size)
        for b in range(BINS):
            inside = self.bin == b
            here = size[inside & use]
            typical = float(np.median(here)) if here.size >= 8 else whole
            # where half of the differences vanish the median says nothing; a hundredth of the spread does
            out[inside] = size[inside] / max(typical, 0.01 * spread, 1e-9)
        return out

    def place(self, row: int, /) -> str:
        """Where a row stands, for messages."""
        parts = []
        if self.rows["step"][row] != UNKNOWN:
            parts.append(f"step {self.rows['step'][row]}")
        parts.append(f"line {self.rows['line'][row]}")
        return " ".join(parts)


def clustered_mean(values: np.ndarray, cluster: np.ndarray, /) -> Mean:
    """Mean of values with the standard error of a ratio of sums over clusters (rows of unequal length)."""
    n = values.size
    if n == 0:
        return Mean(float("nan"), float("nan"))
    mean = float(values.mean())
    names, index = np.unique(cluster, return_inverse=True)
    count = len(names)
    off = np.bincount(index, weights=values - mean, minlength=count)
    if count < 8:  # too few rows to speak for themselves: tokens do, and the error is then a lower bound
        return Mean(mean, float(values.std() / np.sqrt(n)) if n > 1 else float("nan"))
    return Mean(mean, float(np.sqrt(off @ off * count / (count - 1)) / n))
