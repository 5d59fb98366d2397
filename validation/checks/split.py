"""Claim ``split``: the mismatch is discrepancy plus lag, per token, in KL and in variance."""

from __future__ import annotations

import numpy as np

from theory.decomposition import kl, kl_split, split, variance_split
from theory.estimate import Estimate
from validation.check import Check, Control
from validation.claims import CLAIMS
from validation.evidence import Evidence, Rows

ROUNDING = 8.0
"""Residuals are counted in roundings, eps times the sum of the magnitudes that were added; exact algebra in
float64 stays below 8 of them, and a swapped policy leaves 1e12 and more"""
UNIT = "roundings"

SWAPPED = "pi and pi_s swapped in the lag term"


def checks(evidence: Evidence, /) -> list[Check]:
    """Largest residuals of the three identities over the rows of a run."""
    rows = evidence.rows
    right = {} if rows is None else _residuals(rows, swapped=False)
    wrong = {} if rows is None else _residuals(rows, swapped=True)
    note = "no run reported full rows" if rows is None else rows.what
    return [
        Check(
            claim="split",
            reading=reading,
            form="within",
            predicted=Estimate(value=0.0, unit=UNIT),
            margin=ROUNDING,
            measured=right.get(reading),
            control=Control(what=SWAPPED, measured=wrong.get(reading)),
            source=f"{CLAIMS['split'].source}; {CLAIMS['split'].law}",
            note=note,
        )
        for reading in (
            "largest residual per action",
            "largest residual in KL",
            "largest residual in variance",
        )
    ]


def _residuals(rows: Rows, *, swapped: bool) -> dict[str, Estimate]:
    """Distance of both sides of each identity, over actions the engine can sample."""
    mu, pi_s, pi = rows.logmu, rows.logpi_s, rows.logpi
    live = np.isfinite(mu).all(axis=-1) & np.isfinite(pi).all(axis=-1) & np.isfinite(pi_s).all(axis=-1)
    mu, pi_s, pi = mu[live], pi_s[live], pi[live]
    terms = split(mu, pi_s, pi)
    parts = kl_split(mu, pi_s, pi)
    variance = variance_split(mu, pi_s, pi)
    lag, cross, spread = terms.lag, parts.cross, variance.lag
    if swapped:
        back = split(mu, pi, pi_s)
        lag, cross = back.lag, kl_split(mu, pi, pi_s).cross
        spread = variance_split(mu, pi, pi_s).discrepancy
    p = np.exp(mu)
    e = mu - pi
    total_variance = (p * e**2).sum(-1) - (p * e).sum(-1) ** 2
    size = np.abs(mu) + np.abs(pi_s) + np.abs(pi)
    found = {
        "largest residual per action": (e - (terms.discrepancy + lag), size),
        "largest residual in KL": (
            kl(mu, pi) - (parts.discrepancy + parts.lag + cross),
            ((p + np.exp(pi_s)) * size).sum(-1),
        ),
        "largest residual in variance": (
            total_variance - (variance.discrepancy + spread + variance.covariance),
            (p * size**2).sum(-1),
        ),
    }
    eps = np.finfo(np.float64).eps
    return {
        # a sum of zeros has no rounding, and its residual is 0
        name: Estimate(
            value=float(np.max(np.abs(r) / np.maximum(eps * m, np.finfo(np.float64).tiny))), unit=UNIT
        )
        for name, (r, m) in found.items()
    }
