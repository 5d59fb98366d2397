"""When the gated trainer pushes: the core's rule, with the one thing an asynchronous trainer adds to it.

With batches in flight, the batch after a push was still sampled by older weights; its lag would fire the rule
again at once. So only tokens of the last pushed version vote, and a batch without any leaves the sampler
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from theory.limits import refuse_count, refuse_flag, refuse_share
from theory.resync import should_resync


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The rule of the push."""

    resync_below: float
    """ESS share of the lag ratio; 0: the schedule alone"""
    sync_every: int
    """Most updates the sampler is held; 0: no schedule"""
    monitored: bool = False
    """Whether `theory.monitor` asks for the push in place of the plain ESS"""

    def __post_init__(self) -> None:
        """Refuse a gate that never opens."""
        refuse_share("resync_below", self.resync_below, what="an ESS share", do="0 leaves the schedule alone")
        refuse_count("sync_every", self.sync_every, least=0)
        refuse_flag("monitored", self.monitored)
        if self.resync_below == 0 and self.sync_every == 0 and not self.monitored:
            raise ValueError("a gate with resync_below=0 and sync_every=0 never pushes; set one of them")

    def fires(self, ess: float | None, held: int, *, asked: bool = False) -> bool:
        """Whether to push now.

        Parameters
        ----------
        ess : float or None
            ESS of the lag ratio over the voting tokens; None where no token could vote. NaN, broken
            log-probs, is no evidence that the batch is usable: it fires.
        held : int
            Updates since the last push, the one just made included.
        asked : bool
            Whether the monitor asks for a push.
        """
        by_schedule = should_resync(1.0, 0.0, steps_since=held, sync_every=self.sync_every)
        by_lag = asked if self.monitored else ess is not None and should_resync(ess, self.resync_below)
        return bool(by_schedule or by_lag)
