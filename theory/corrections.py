r"""The correction core: every correction of the mismatch is one row of a table.

One formula covers all of them. For a token `a` sampled from the engine (mu) with advantage A, the gradient
in the logits of its prefix is

.. math:: G = A \, wc_a \, (e_a - \hat q)

with `wc` the clipped ratio of the row and `qhat` proportional to ``mu * wc`` when the score is centred,
``pi`` when it is not. A row of `CORRECTIONS` says which ratio, at which level, with which clip, and how it
is centred; `theory.centering` turns that into constants an engine differentiates with its own autograd. The
core never differentiates and never samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from theory.arrays import Array
from theory.limits import is_number_array, refuse_choice, refuse_number, refuse_share, refuse_text, shown
from theory.resync import FAILURE_THRESHOLD

Ratio = Literal["none", "lag", "total", "batch"]
"""none: 1; lag: pi/pi_s; total: pi/mu; batch: pi/pi_old, the trainer before this batch's first update"""
Level = Literal["token", "sequence", "geometric"]
"""Whose ratio a token gets: its own, its response's product, or the geometric mean over its response"""
Clip = Literal["none", "truncate", "mask", "ppo", "second-moment"]
"""truncate: min(w, high); mask: w inside [low, high], else 0; ppo: the gradient of
min(wA, clip(w, low, high) A); second-moment: drop the largest log(w)^2 until the mean of the rest is
<= high"""
Center = Literal["none", "matched", "form-i", "numerics"]
"""matched: qhat of the clipped row; form-i: the clipped weighted mean score, unnormalised; numerics: only the
engine's part (mu - pi_s) of it"""
ResyncLevel = Literal["token", "sequence"]
"""Whose ESS the resync rule looks at: that of tokens, or of responses (product)"""
PpoRef = Literal["before-batch", "synced", "engine"]
"""What PPO's ratio refers to: the trainer before the batch, the trainer at the sync, or the engine"""

PPO_REFERENCE: Mapping[PpoRef, Ratio] = MappingProxyType(
    {"before-batch": "batch", "synced": "lag", "engine": "total"}
)

CHOICES: Mapping[str, Any] = MappingProxyType(
    {
        "ratio": Ratio,
        "level": Level,
        "clip": Clip,
        "clip_on": Ratio,
        "center": Center,
        "resync_level": ResyncLevel,
    }
)
"""Fields of a correction that hold a name, with the names"""


class Logps(NamedTuple):
    """Log-probabilities of the same tokens (or row entries) under the three policies, in nats, one shape."""

    mu: Array
    """Engine, as really sampled"""
    pi_s: Array
    """Trainer at the sampler's weights"""
    pi: Array
    """Trainer now"""
    pi_old: Array | None = None
    """Trainer before this batch's first update; None means the batch is one update, so it equals `pi`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One row of the corrections table (README, "Corrections")."""

    cite: str
    """Who proposed it, or which part of the theory it follows"""
    ratio: Ratio = "none"
    level: Level = "token"
    clip: Clip = "none"
    clip_on: Ratio | None = None
    """Ratio the clip looks at; None: the one that weights (decoupled PPO clips another)"""
    low: float = 0.0
    """Lower edge of the clip, a ratio"""
    high: float = math.inf
    """Upper edge of the clip, a ratio; for second-moment the budget in nats squared"""
    dual: float | None = None
    """PPO only: for A < 0 a ratio above this has no gradient (dual clip; verl's default is 3)"""
    center: Center = "none"
    lr_power: float = 0.0
    """The step is multiplied by ``min(1, ESS)^lr_power``; 0 leaves it alone"""
    resync_below: float = 0.0
    """Sync when the ESS of the lag ratio at the new weights falls below this share; 0: never"""
    resync_level: ResyncLevel = "token"

    def __post_init__(self) -> None:
        """Refuse rows that have no meaning; traced numbers (under jit) are taken as they are."""
        refuse_text("cite", self.cite)
        for field, kind in CHOICES.items():
            if field != "clip_on" or self.clip_on is not None:
                refuse_choice(field, getattr(self, field), get_args(kind))
        if self.center != "none" and self.level != "token":
            raise ValueError(
                f"a centred correction needs level 'token', got {self.level!r}: "
                "the centre is a row of one prefix"
            )
        if self.center != "none" and self.clip == "second-moment":
            raise ValueError(
                "a centred correction needs a clip per token, got 'second-moment'; use clip='mask'"
            )
        for field in ("low", "high", "lr_power", "resync_below"):
            if not is_number_array(getattr(self, field)):
                refuse_number(field, getattr(self, field))
        self._refuse_edges()
        if not is_number_array(self.lr_power) and not 0 <= self.lr_power < math.inf:
            raise ValueError(
                f"lr_power must be finite and >= 0, got {shown(self.lr_power)}: the step shrinks with the "
                "ESS; 0: never"
            )
        if not is_number_array(self.resync_below):
            refuse_share("resync_below", self.resync_below, what="an ESS share", do="0 switches the rule off")

    def _refuse_edges(self) -> None:
        """Refuse edges of a clip that leave nothing between them."""
        low, high, dual = self.low, self.high, self.dual
        if not (is_number_array(low) or is_number_array(high)) and not 0 <= low < high:
            raise ValueError(
                f"a clip needs 0 <= low < high, got ({shown(low)}, {shown(high)}); to switch clipping off "
                "use clip='none'"
            )
        if dual is not None and not is_number_array(dual):
            refuse_number("dual", dual)
            if not dual > 1:
                raise ValueError(f"dual clips ratios above 1, got {shown(dual)}; dual=None leaves it out")

    @property
    def centered(self) -> bool:
        """Whether the gradient needs the sampler's row."""
        return self.center != "none"

    @property
    def needs_pi_s(self) -> bool:
        """Whether the gradient needs the trainer's log-probs at the sampler's weights."""
        return "lag" in (self.ratio, self.clip_on) or self.center == "numerics"


DLC_CLIP = 5.0
"""Truncation of the lag ratio in DLC; its gate is at token level. The articles fix neither. Runs within two
floors at every compared step, token gate / response gate, seeds used for nothing else: toy (15 runs) 2: 1/11,
5: 7/11, 10: 9/11, mask 5: 1/11, ppo .2: 0/0; mini-Qwen3 (4 runs) 2: 4/3, 5: 4/3, 10: 3/3, mask 5: 3/3,
ppo .2: 2/3. The response gate is the safer one on the toy's 8 tokens; on mini-Qwen3 it syncs 11 times in 40
steps where the token gate syncs twice, and its ESS falls as a power of the length: the default is the token
gate. ``python -m validation.dlc_default``; whole tables in validation/LOG.md."""

CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {
        "pg": Correction(cite="REINFORCE on the engine's samples; PPO's first update of a batch"),
        "is": Correction(ratio="total", cite="importance sampling, pi/mu per token"),
        "tis": Correction(
            ratio="total", clip="truncate", high=2.0, cite="truncated IS; Yao et al. 2025; verl default 2"
        ),
        "seq-is": Correction(
            ratio="total", level="sequence", cite="importance sampling, product over the response"
        ),
        "sc": Correction(center="matched", cite="score centring; article 1"),
        "is-sc": Correction(ratio="lag", center="matched", cite="lag ratio with matched centre; article 2"),
        "mis": Correction(
            ratio="total", clip="mask", low=0.0, high=2.0, cite="masked IS; Liu, Li et al. 2025"
        ),
        "icepop": Correction(ratio="total", clip="mask", low=0.5, high=5.0, cite="IcePop; bounds .5 and 5"),
        "ppo": Correction(
            ratio="batch", clip="ppo", low=0.8, high=1.2, dual=3.0, cite="PPO, clip .2, dual clip 3"
        ),
        "decoupled-ppo": Correction(
            ratio="total", clip="ppo", clip_on="batch", low=0.8, high=1.2, cite="Hilton et al. 2021; AReaL"
        ),
        "m2po": Correction(
            ratio="total", clip="second-moment", high=0.04, cite="M2PO, arXiv 2510.01161; budget .04"
        ),
        "vcpo": Correction(
            ratio="total",
            level="sequence",
            clip="truncate",
            high=8.0,
            lr_power=0.5,
            cite="VCPO, arXiv 2602.17616; its baseline is off-policy-optimal",
        ),
        "dlc": Correction(
            ratio="lag",
            clip="truncate",
            high=DLC_CLIP,
            center="matched",
            resync_below=FAILURE_THRESHOLD,
            cite="discrepancy-lag correction; article 1",
        ),
    }
)
"""Every correction by its name, read-only"""


def correction(name: str, /, *, ppo_ref: PpoRef | None = None, **changes: Any) -> Correction:
    """Return a row of the table, with fields replaced where asked.

    Parameters
    ----------
    name : str
        A key of `CORRECTIONS`.
    ppo_ref : {"before-batch", "synced", "engine"}, optional
        For "ppo": what its ratio refers to. With one update per batch "before-batch" has ratio 1, so it is
        "pg".
    **changes
        Fields of `Correction`, for example ``resync_below=0.5`` on any of them.

    Raises
    ------
    ValueError
        For an unknown name, reference or field, naming the known ones.
    """
    refuse_choice("correction", name, sorted(CORRECTIONS))
    row = CORRECTIONS[name]
    if ppo_ref is not None:
        if name != "ppo":
            raise ValueError(f"ppo_ref belongs to the correction 'ppo', got it with {name!r}; leave it out")
        refuse_choice("ppo_ref", ppo_ref, PPO_REFERENCE)
        changes["ratio"] = PPO_REFERENCE[ppo_ref]
    unknown = sorted(set(changes) - set(Correction.__dataclass_fields__))
    if unknown:
        raise ValueError(
            f"a correction has no field {unknown[0]!r}; known: {', '.join(Correction.__dataclass_fields__)}"
        )
    return replace(row, **changes)
