"""Environments of the toy, and the named experiments: functions that return an `Experiment`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from theory.advantage import Baseline
from theory.corrections import Correction
from theory.corrections import correction as named_correction
from theory.experiment import Experiment, Numerics
from theory.limits import refuse_choice, refuse_other, refuse_real, shown
from toy.limits import check_quantile, check_reals, check_sizes, check_table
from toy.toggles import Infrastructure

Memory = Literal["first", "last"]
"""What the policy sees of the past. first: the first token, for the whole response (an early decision, then
filler on which the advantage has no contrast but is not zero, as in long responses); last: the token
before"""

STALE = 64
"""Sync period longer than a run of 40 steps: the articles' stale sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Autoregressive environment: a softmax policy over (prompt, position, memory) with shared parameters.

    Logits are ``z0 + (h W) O``: fixed random logits z0, unit features h, trained W starting at 0, and a
    low-rank output embedding O. Rewards are +1 from the prompt's quantile of the score upwards and -1 below.
    """

    prompts: int = 8
    length: int = 8
    """Tokens of every response"""
    vocabulary: int = 16
    embedding: int = 8
    """Features of a state, the rows of W"""
    rank: int = 6
    """Rank of the output embedding, at most the vocabulary"""
    beta: float = 3.0
    """Scale of the initial logits, nats"""
    het: float = 1.0
    """Spread of that scale over states, as the sigma of a log-normal"""
    memory: Memory = "first"
    quantile: float = 0.93
    """Share of the initial policy's responses that score below a success"""
    seed: int = 0
    """Of the environment: fixes logits, features, scores and the engine's frozen noise"""
    infrastructure: Infrastructure = field(default_factory=Infrastructure)

    def __post_init__(self) -> None:
        """Refuse sizes no policy has, and token ids outside the vocabulary."""
        refuse_choice("memory", self.memory, get_args(Memory))
        refuse_other("infrastructure", self.infrastructure, Infrastructure, do="leave it out for none")
        check_sizes(
            self.seed,
            prompts=(self.prompts, 1),
            length=(self.length, 1),
            vocabulary=(self.vocabulary, 2),
            embedding=(self.embedding, 1),
            rank=(self.rank, 1),
        )
        check_table(self.prompts, self.length, self.vocabulary + 1, max(self.vocabulary, self.embedding))
        check_reals(beta=self.beta)
        check_reals(0, het=self.het)
        if self.rank > self.vocabulary:
            raise ValueError(f"rank is at most the vocabulary ({self.vocabulary}), got {self.rank}; lower it")
        check_quantile(self.quantile)
        chosen = self.infrastructure
        ids = (*(chosen.retokenise or ()), *(() if chosen.defer_from is None else (chosen.defer_from,)))
        wrong = [i for i in ids if not 0 <= i < self.vocabulary]
        if wrong:
            raise ValueError(
                f"token ids run from 0 to {self.vocabulary - 1}, got {wrong[0]}; name tokens that exist"
            )

    @property
    def weights(self) -> int:
        """Entries of W, which is what is trained."""
        return self.embedding * self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Long responses with a way out that the sampler all but never takes and a lagging trainer keeps to.

    Every state shares a direction of features with all others, states after the exit have nothing else: a
    change of the weights that all visited states agree on is larger there. The exit's output embedding points
    away from that of a token that is wrong: unlearning the one teaches the other. Neither the sampler's
    prefixes nor its samples show it. Claim ``invisible``.
    """

    prompts: int = 4
    length: int = 64
    words: int = 4
    """Ordinary tokens; after them come the wrong one and the exit"""
    embedding: int = 8
    wrong: float = 0.03
    """Initial probability of the wrong token; a response succeeds with as many of them as the median has, or
    fewer"""
    leave: float = 1e-4
    """Initial probability of the exit at an ordinary state"""
    stay: float = 8e-4
    """Initial probability of the exit after the exit: below 1e-3, so the initial model comes back"""
    shared: float = 0.3
    """Cosine between the features of an ordinary state and the shared direction"""
    opposition: float = 1.4
    """How far the exit's embedding points away from the wrong token's, in lengths of that"""
    spread: float = 0.3
    """Standard deviation of the ordinary tokens' initial logits, nats"""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes and shares that describe no policy."""
        check_sizes(
            self.seed,
            prompts=(self.prompts, 1),
            length=(self.length, 2),
            words=(self.words, 2),
            embedding=(self.embedding, 2),
        )
        check_table(self.prompts, self.length, self.vocabulary + 1, max(self.vocabulary, self.embedding))
        check_reals(wrong=self.wrong, leave=self.leave, stay=self.stay, shared=self.shared)
        check_reals(opposition=self.opposition)
        check_reals(0, spread=self.spread)
        shares = (self.wrong, self.leave, self.stay, self.shared)
        if not all(0 < x < 1 for x in shares) or self.wrong + max(self.leave, self.stay) >= 1:
            raise ValueError(
                "wrong, leave, stay and shared are shares in (0, 1), and ordinary tokens need what is left, "
                f"got {shares}; lower them"
            )

    @property
    def vocabulary(self) -> int:
        """Ordinary tokens, the wrong one, the exit."""
        return self.words + 2

    @property
    def weights(self) -> int:
        """Entries of W, which is what is trained."""
        return self.embedding * self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandit:
    """One-step bandit with one free logit per prompt and arm, as in the closed forms of the theory."""

    prompts: int = 8
    arms: int = 16
    beta: float = 2.0
    """Scale of the initial logits, nats"""
    het: float = 0.8
    """Spread of that scale over prompts, as the sigma of a log-normal"""
    quantile: float = 0.7
    """Share of the initial policy's draws that score below a success"""
    logits: tuple[tuple[float, ...], ...] | None = None
    """Initial logits, one row a prompt, in place of random ones"""
    rewards: tuple[tuple[float, ...], ...] | None = None
    """Reward of each arm, one row a prompt, in place of +-1 by random score; right if positive"""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes and tables that do not fit each other."""
        check_sizes(self.seed, prompts=(self.prompts, 1), arms=(self.arms, 2))
        check_table(self.prompts, max(self.prompts, self.arms))
        check_reals(beta=self.beta)
        check_reals(0, het=self.het)
        check_quantile(self.quantile)
        for name in ("logits", "rewards"):
            table = getattr(self, name)
            if table is None:
                continue
            if not (isinstance(table, tuple) and all(isinstance(row, tuple) for row in table)):
                raise ValueError(
                    f"{name} is a tuple of rows, each a tuple, got {shown(table)}; None makes it up"
                )
            if len(table) != self.prompts or any(len(row) != self.arms for row in table):
                shape = f"{len(table)} rows of {sorted({len(row) for row in table})}"
                raise ValueError(
                    f"{name} needs one row a prompt and one number an arm ({self.prompts} x {self.arms}), "
                    f"got {shape}; set prompts and arms to match"
                )
            for number in (x for row in table for x in row):
                refuse_real(f"an entry of {name}", number)

    @property
    def length(self) -> int:
        """Tokens of every response."""
        return 1

    @property
    def weights(self) -> int:
        """Logits, which are what is trained."""
        return self.prompts * self.arms


def _rule(correction: str | Correction) -> Correction:
    return named_correction(correction) if isinstance(correction, str) else correction


def setting_s(
    env_seed: int = 0,
    *,
    quantile: float = 0.93,
    lr: float = 2.0,
    correction: str | Correction = "pg",
    sync_every: int = 1,
    numerics: Numerics | None = None,
    samples: int = 128,
    steps: int = 40,
    baseline: Baseline = "group",
    minibatches: int = 1,
    seed: int = 0,
) -> Experiment:
    """Return standard setting S: 8 prompts, 8 tokens, 16 words, an early decision and long filler.

    The defaults are the on-policy reference; ``sync_every=STALE`` makes it stale, `numerics` noisy. The usual
    pairs are quantile .7 with lr 4 and quantile .93 with lr 2.
    """
    environment = Sequence(quantile=quantile, seed=env_seed)
    return Experiment(
        environment=environment,
        correction=_rule(correction),
        lr=lr,
        steps=steps,
        prompts=environment.prompts,
        samples=samples,
        baseline=baseline,
        sync_every=sync_every,
        numerics=numerics or Numerics(),
        minibatches=minibatches,
        seed=seed,
    )


def leaving(
    env_seed: int = 0,
    *,
    correction: str | Correction = "pg",
    sync_every: int = 1,
    lr: float = 2.0,
    samples: int = 32,
    steps: int = 40,
    seed: int = 0,
) -> Experiment:
    """Return the setting of the invisible collapse; the defaults are the on-policy reference."""
    environment = Exit(seed=env_seed)
    return Experiment(
        environment=environment,
        correction=_rule(correction),
        lr=lr,
        steps=steps,
        prompts=environment.prompts,
        samples=samples,
        sync_every=sync_every,
        seed=seed,
    )


def bandit(
    env_seed: int = 0,
    *,
    lr: float = 2.0,
    correction: str | Correction = "pg",
    sync_every: int = 1,
    numerics: Numerics | None = None,
    samples: int = 256,
    steps: int = 40,
    baseline: Baseline = "none",
    minibatches: int = 1,
    seed: int = 0,
) -> Experiment:
    """Return the one-step bandit of 8 prompts and 16 arms.

    The baseline is the raw reward: with a group baseline centring changes nothing on a shared prefix (the
    lemma of claim ``centering``).
    """
    environment = Bandit(seed=env_seed)
    return Experiment(
        environment=environment,
        correction=_rule(correction),
        lr=lr,
        steps=steps,
        prompts=environment.prompts,
        samples=samples,
        baseline=baseline,
        sync_every=sync_every,
        numerics=numerics or Numerics(),
        minibatches=minibatches,
        seed=seed,
    )
