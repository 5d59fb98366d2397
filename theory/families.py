r"""ESS for named laws of the log-ratio, the variance at which it crosses, and where no ESS exists.

Each family is a law of ``log w`` under the sampler with total variance s2. Two kinds:

* one law for all draws, symmetric about its mean (Gaussian, Laplace, variance-gamma,
  normal-inverse-Gaussian);
* conditionally normalised scale mixtures ("cn-..."): each prefix has its own variance ``V s2`` with ``E V =
  1`` and a ratio of mean one, ``log w | V ~ N(-V s2/2, V s2)``. The realistic kind, since every prefix's
  ratio averages to one, and then ``ESS = 1 / E exp(V s2)``.

An ESS may fail to exist. With a finite mean and an infinite second moment it is 0: the sample ESS falls to 0
as the sample grows. With an infinite mean it is undefined (NaN). `Family.reason` says which and why.
Claim ``heavy-tail``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from scipy import optimize

from theory.limits import refuse_flag, refuse_number, refuse_other, refuse_real, refuse_text, shown
from theory.resync import FAILURE_THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A law of the log-ratio, by its total variance s2 (nats squared)."""

    name: str
    neg_log_ess: Callable[[float], float]
    """``-log ESS`` at s2, valid up to and including the limit where it is finite there"""
    second_moment_limit: float = math.inf
    """Variance beyond which E w^2 diverges (at it, too, unless `closed`)"""
    mean_limit: float = math.inf
    """Variance from which E w diverges: no population ESS"""
    closed: bool = False
    """Whether E w^2 is finite at the limit itself, so that ESS jumps there"""

    def __post_init__(self) -> None:
        """Refuse what is no law."""
        refuse_text("name", self.name)
        if not callable(self.neg_log_ess):
            raise ValueError(f"neg_log_ess must be a function of s2, got {shown(self.neg_log_ess)}; pass one")
        for field in ("second_moment_limit", "mean_limit"):
            limit = getattr(self, field)
            refuse_number(field, limit)
            if limit != math.inf:
                refuse_real(field, limit, least=0)
        refuse_flag("closed", self.closed)

    def ess(self, s2: float, /) -> float:
        """ESS share at variance `s2`; 0 where E w^2 diverges, NaN where E w does."""
        refuse_number("a variance", s2)
        if not s2 >= 0:
            raise ValueError(f"a variance must be >= 0, got {shown(s2)}; pass that of log w, in nats squared")
        if s2 > self.mean_limit or (s2 == self.mean_limit and not self.closed):
            return math.nan
        if s2 > self.second_moment_limit or (s2 == self.second_moment_limit and not self.closed):
            return 0.0
        return math.exp(-self.neg_log_ess(s2))

    def reason(self, s2: float, /) -> str:
        """Why the ESS at `s2` is 0 or undefined; empty where it is an ordinary number."""
        value = self.ess(s2)
        if math.isnan(value):
            return f"{self.name}: E w is infinite at variance {s2:g}, so no population ESS exists"
        if value == 0.0:
            return f"{self.name}: E w^2 is infinite at variance {s2:g}; the sample ESS falls to 0 as n grows"
        return ""


class CrossingVariance(NamedTuple):
    """Where a family's ESS passes a threshold."""

    s2: float
    """Total variance of log w at the crossing, nats squared; NaN: the family never has an ESS"""
    ess_before: float
    """ESS just before: the threshold where it is passed continuously, more where ESS jumps to 0"""
    reason: str = ""
    """Why it jumps or does not exist; empty for an ordinary crossing"""

    @property
    def step_ratio(self) -> float:
        """Crossing step over a Gaussian's at the same linear growth of sigma: ``sqrt(s2 / ln 2)``."""
        return math.sqrt(self.s2 / math.log(2))


def crossing_variance(family: Family, /, *, threshold: float = FAILURE_THRESHOLD) -> CrossingVariance:
    """Find the variance at which the ESS of a family falls to `threshold`, by root finding."""
    refuse_other("family", family, Family, do="call one of this module, such as gaussian()")
    refuse_number("an ESS threshold", threshold)
    if not 0 < threshold < 1:
        raise ValueError(f"an ESS threshold must lie in (0, 1), got {shown(threshold)}; 0.5 is the usual")
    target = -math.log(threshold)
    limit = family.second_moment_limit
    if family.mean_limit <= 0:
        return CrossingVariance(math.nan, math.nan, family.reason(1.0))
    if math.isfinite(limit):
        at_limit = family.neg_log_ess(limit) if family.closed else math.inf
        if at_limit < target:
            why = f"{family.name}: ESS jumps to 0 at variance {limit:g}, where E w^2 becomes infinite"
            return CrossingVariance(limit, math.exp(-at_limit), why)
    high = min(limit, target)  # every family here crosses no later than a Gaussian of the same variance
    if high == limit and not family.closed:
        high = math.nextafter(limit, 0.0)
    if family.neg_log_ess(high) == target:
        return CrossingVariance(high, threshold)
    found = optimize.root_scalar(lambda s2: family.neg_log_ess(s2) - target, bracket=(0.0, high), xtol=1e-15)
    return CrossingVariance(float(found.root), threshold)


def _positive(name: str, value: float) -> None:
    refuse_real(name, value)
    if not value > 0:
        raise ValueError(
            f"{name} must be finite and > 0, got {shown(value)}; gaussian() is the law without it"
        )


def gaussian() -> Family:
    """``ESS = exp(-s2)``: crosses 1/2 at ``s2 = ln 2``."""
    return Family(name="gaussian", neg_log_ess=lambda s2: s2)


def laplace() -> Family:
    """Laplace of scale b, ``s2 = 2 b^2``: ``ESS = (1 - 4b^2)/(1 - b^2)^2``; crosses at b^2 = sqrt(10) - 3.

    E w^2 is infinite from b = 1/2 (s2 = 1/2), E w from b = 1 (s2 = 2).
    """
    return Family(
        name="laplace",
        neg_log_ess=lambda s2: 2 * math.log1p(-s2 / 2) - math.log1p(-2 * s2),
        second_moment_limit=0.5,
        mean_limit=2.0,
    )


def variance_gamma(nu: float, /) -> Family:
    """Gaussian with a gamma distributed variance of shape 1/nu; excess kurtosis 3 nu; nu = 1: Laplace."""
    _positive("nu", nu)
    return Family(
        name=f"variance-gamma({nu:g})",
        neg_log_ess=lambda s2: (2 * math.log1p(-nu * s2 / 2) - math.log1p(-2 * nu * s2)) / nu,
        second_moment_limit=1 / (2 * nu),
        mean_limit=2 / nu,
    )


def normal_inverse_gaussian(zeta: float, /) -> Family:
    """Symmetric NIG with ``alpha = sqrt(zeta/s2)``, ``delta = zeta/alpha``; excess kurtosis 3/zeta.

    E w^2 is finite down to alpha = 2 (s2 = zeta/4), where ``-log ESS = zeta (sqrt 3 - 1)``: for
    zeta < ln 2/(sqrt 3 - 1) = .947 the ESS jumps through 1/2.
    """
    _positive("zeta", zeta)

    def neg_log_ess(s2: float) -> float:
        if s2 == 0:
            return 0.0
        alpha = math.sqrt(zeta / s2)
        # rounding can put alpha^2 a hair below 4 at the limit itself
        return (zeta / alpha) * (-alpha - math.sqrt(max(alpha**2 - 4, 0.0)) + 2 * math.sqrt(alpha**2 - 1))

    return Family(
        name=f"nig({zeta:g})",
        neg_log_ess=neg_log_ess,
        second_moment_limit=zeta / 4,
        mean_limit=zeta,
        closed=True,
    )


def cn_gamma(nu: float, /) -> Family:
    """Conditionally normalised, gamma variances of shape 1/nu: ``ESS = (1 - nu s2)^(1/nu)``."""
    _positive("nu", nu)
    return Family(
        name=f"cn-gamma({nu:g})",
        neg_log_ess=lambda s2: -math.log1p(-nu * s2) / nu,
        second_moment_limit=1 / nu,
    )


def cn_inverse_gaussian(zeta: float, /) -> Family:
    """Conditionally normalised, inverse-Gaussian variances of shape zeta; E w^2 finite up to s2 = zeta/2."""
    _positive("zeta", zeta)
    return Family(
        name=f"cn-inverse-gaussian({zeta:g})",
        neg_log_ess=lambda s2: zeta * (1 - math.sqrt(max(1 - 2 * s2 / zeta, 0.0))),
        second_moment_limit=zeta / 2,
        closed=True,
    )


def cn_two_point(share: float, ratio: float, /) -> Family:
    """Conditionally normalised, two variances: a `share` of prefixes has `ratio` times that of the rest."""
    _positive("ratio", ratio)
    refuse_number("share", share)
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {shown(share)}; at the edges all variances are one")
    low = 1 / (1 - share + share * ratio)
    high = ratio * low

    def neg_log_ess(s2: float) -> float:
        top = max(low, high) * s2
        return top + math.log((1 - share) * math.exp(low * s2 - top) + share * math.exp(high * s2 - top))

    return Family(name=f"cn-two-point({share:g}, {ratio:g})", neg_log_ess=neg_log_ess)


def student_t(df: float, /) -> Family:
    """Student-t log-ratio: no exponential moment, so no ESS at any variance > 0.

    Legal only as logit noise, which the softmax bounds, or truncated. The sample ESS falls to 0 as n grows.
    """
    refuse_number("df", df)
    if not df > 2:
        raise ValueError(f"a Student-t has a variance only for df > 2, got {shown(df)}; raise it")
    return Family(
        name=f"student-t({df:g})",
        neg_log_ess=lambda s2: 0.0 if s2 == 0 else math.nan,
        mean_limit=0.0,
        closed=True,
    )
