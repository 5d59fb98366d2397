"""Whether a policy stops where its search hits the target, and only there.

``python -m real.long.stopping`` prints it for the shipped warm start on held-out problems. Suffixes as in
`real.samplers.base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from real.long.attempt import WIDTH, read
from real.long.search import BETWEEN, SEARCH
from real.rewards import ended
from real.samplers.base import Rollout
from real.task import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Counts over the whole attempts of a batch that use the problem's numbers."""

    attempts: int
    """Whole attempts, and pieces that are none"""
    whole: int
    """Written out, with the problem's numbers"""
    exact: int
    """Of those: both equalities hold"""
    hits: int
    """Whole attempts whose value is the target, if the response went on or ended after them"""
    stops_at_hit: int
    misses: int
    stops_at_miss: int

    @property
    def at_hit(self) -> float:
        """Share of hits after which the response ends; NaN without a hit."""
        return self.stops_at_hit / self.hits if self.hits else float("nan")

    @property
    def at_miss(self) -> float:
        """Share of misses after which it ends all the same."""
        return self.stops_at_miss / self.misses if self.misses else float("nan")


def stopping(rollout: Rollout, problems: Sequence[Problem], /) -> Stopping:
    """Count hits, misses and what came after them.

    The last attempt of a response that was cut off at the limit counts as neither: nothing came after it.
    """
    names = ("attempts", "whole", "exact", "hits", "stops_at_hit", "misses", "stops_at_miss")
    count: dict[str, int] = dict.fromkeys(names, 0)
    rows = zip(
        rollout.response_BT.tolist(), rollout.mask_BT.sum(-1).tolist(), ended(rollout).tolist(), strict=True
    )
    for b, (tokens, length, has_end) in enumerate(rows):
        problem = problems[b // rollout.samples]
        tries = SEARCH.decode(tokens[: length - has_end]).split(BETWEEN)
        count["attempts"] += len(tries)
        for place, text in enumerate(tries, start=1):
            chain = read(text)
            if chain is None or len(text) != WIDTH or sorted(chain.numbers) != sorted(problem.numbers):
                continue
            count["whole"] += 1
            count["exact"] += chain.exact
            if place == len(tries) and not has_end:
                continue
            kind = "hit" if chain.value == problem.target else "miss"
            count["hits" if kind == "hit" else "misses"] += 1
            count[f"stops_at_{kind}"] += place == len(tries)
    return Stopping(**count)


def main() -> None:
    """Measure the shipped warm start as experiments use it."""
    from real.evaluate import evaluate, held_out, own_samples
    from real.loop import start_model
    from real.settings import longer_responses
    from theory.corrections import correction

    environment = longer_responses(correction("pg")).environment
    model = start_model(environment)
    right = evaluate(model, environment, seed=0)
    problems = held_out(environment.eval_prompts, SEARCH)
    found = stopping(own_samples(model, environment, seed=0), problems)
    print(
        f"accuracy {right.accuracy.value:.3f} +- {right.accuracy.stderr:.3f}, {right.length:.0f} tokens, "
        f"{right.entropy:.2f} nats a token; {found.whole}/{found.attempts} attempts whole, "
        f"{found.exact / max(found.whole, 1):.2f} of them exact; stops after {found.at_hit:.2f} of "
        f"{found.hits} hits and {found.at_miss:.3f} of {found.misses} misses"
    )


if __name__ == "__main__":
    from real import process

    process.prepare()
    main()
