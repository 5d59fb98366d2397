"""What the user knows better than the format: it overrides rows and their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from theory.records import NOT_MEASURED, Provenance
from validation.audit.block import Row
from validation.audit.readers.base import OldMeans


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a log is to be read."""

    format: str | None = None
    """Name of a reader; None: by content"""
    old_means: OldMeans | None = None
    """What the recomputed log-probs are; None: as the format's provenance says"""
    align: int = 0
    """Entry i of the engine's log-probs belongs to token i + align"""
    skip_bad: bool = False
    """Pass over lines that cannot be read"""

    def provenance(self, read: Mapping[str, Provenance], /) -> dict[str, Provenance]:
        """Provenance by column under `old_means`, from that of the format."""
        said = Provenance(kind="measured", how=f"--old-means {self.old_means}")
        match self.old_means:
            case None:
                return dict(read)
            case "pi_s":
                only_pi = read.get("logpi_s", NOT_MEASURED).kind == "not measured"
                moved = Provenance(kind="not measured", how="read as pi_s (--old-means pi_s)")
                return {**read, "logpi_s": said} | ({"logpi": moved} if only_pi else {})
            case "pi":
                return {**read, "logpi_s": NOT_MEASURED, "logpi": said}
            case "mu":
                copied = Provenance(kind="not measured", how="a copy of mu (--old-means mu)")
                return {**read, "logpi_s": copied}

    def applied_to(self, row: Row, /) -> Row:
        """Row with its columns renamed by `old_means` and the engine's moved by `align`."""
        old = self.old_means
        if old == "mu":
            row = row._replace(logpi_s=None)
        elif old == "pi" and row.logpi_s is not None:
            row = row._replace(logpi_s=None, logpi=row.logpi if row.logpi is not None else row.logpi_s)
        elif old == "pi_s" and row.logpi_s is None:
            row = row._replace(logpi_s=row.logpi, logpi=None)
        if self.align and isinstance(row.logmu, list):
            mu = row.logmu
            k = max(-len(mu), min(self.align, len(mu)))
            moved = [None] * k + mu[: len(mu) - k] if k > 0 else mu[-k:] + [None] * -k
            mask = row.mask if row.mask is not None else [1] * len(mu)
            edge = [0] * k + mask[k:] if k > 0 else mask[:k] + [0] * -k
            row = row._replace(logmu=moved, mask=edge)
        return row

    def moves_out(self, row: Row, /) -> bool:
        """Whether `align` leaves none of a row's engine log-probs."""
        return isinstance(row.logmu, list) and 0 < len(row.logmu) <= abs(self.align)
