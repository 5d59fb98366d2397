"""What goes wrong between sampler and trainer on the toy, as settings; `toy.infrastructure` does it."""

from __future__ import annotations

from dataclasses import dataclass

from theory.limits import refuse_count, refuse_flag, refuse_share, shown
from toy.limits import check_reals


@dataclass(frozen=True, slots=True, kw_only=True)
class Infrastructure:
    """What goes wrong between sampler and trainer beside numerics and lag; nothing by default."""

    top_p: float = 1.0
    """The sampler draws from its smallest set of likeliest tokens with this mass"""
    processed: bool = False
    """It reports log-probs after that truncation, and not those before it"""
    retokenise: tuple[int, int, int] | None = None
    """Ids (a, b, ab): a response that starts with a, b is trained on as if it started with ab"""
    keep_wrong: float = 1.0
    """Probability that a wrong response is trained on; right ones always are"""
    defer_from: int | None = None
    """Responses whose first token has this id or a higher one are long and arrive one step late"""

    def __post_init__(self) -> None:
        """Refuse shares that are none, and ids that are no whole numbers."""
        check_reals(top_p=self.top_p)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}; 1 draws from everything")
        refuse_share("keep_wrong", self.keep_wrong, what="a probability", do="1 filters nothing")
        refuse_flag("processed", self.processed)
        pair = self.retokenise
        if pair is not None and not (isinstance(pair, tuple) and len(pair) == 3):
            raise ValueError(f"retokenise needs three ids (a, b, ab), got {shown(pair)}; None leaves it out")
        for name, ids in (
            ("retokenise", pair),
            ("defer_from", None if self.defer_from is None else (self.defer_from,)),
        ):
            for token in ids or ():
                refuse_count(f"a token id of {name}", token, least=0)
        if pair is not None and len(set(pair)) < 3:
            raise ValueError(
                f"retokenise needs three ids (a, b, ab) that differ, got {pair}; None leaves it out"
            )
