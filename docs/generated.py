"""Tables written from the code when the site is built, so that no page repeats what the code says.

In a page, ``{generated} NAME`` as a fenced directive; NAME is a function of `TABLES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive

from theory.corrections import CORRECTIONS, PPO_REFERENCE, Correction
from theory.decomposition import split
from theory.ess import ess_fraction
from theory.records import SEQUENCE_COLUMNS, STEP_COLUMNS, TOKEN_COLUMNS
from validation.audit.peers import PeerSums


def table(head: Sequence[str], rows: Iterable[Sequence[str]], /) -> str:
    """Markdown of a table; bars inside a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def corrections() -> str:
    """Every row of `theory.corrections.CORRECTIONS`."""
    head = ("name", "ratio", "level", "clip", "centre", "step", "resync", "source")
    return table(head, [_correction(name, row) for name, row in CORRECTIONS.items()])


RATIOS = {"none": "1", "lag": "pi/pi_s", "total": "pi/mu", "batch": "pi/pi_old"}


def _correction(name: str, row: Correction) -> list[str]:
    level = {"token": "token", "sequence": "response", "geometric": "response, geometric mean"}[row.level]
    return [
        f"`{name}`",
        RATIOS[row.ratio],
        level if row.ratio != "none" else "",
        _clip(row),
        "" if row.center == "none" else row.center,
        f"lr x min(1, ESS)^{row.lr_power:g}" if row.lr_power else "",
        f"{row.resync_level} ESS < {row.resync_below:g}" if row.resync_below else "",
        row.cite,
    ]


def _clip(row: Correction) -> str:
    on = "" if row.clip_on in (None, row.ratio) else f" on {RATIOS[row.clip_on]}"
    low, high = f"{row.low:g}", f"{row.high:g}"
    words = {
        "none": "",
        "truncate": f"min(w, {high})",
        "mask": f"0 unless {low} <= w <= {high}",
        "ppo": f"gradient of PPO's min, {low} to {high}",
        "second-moment": f"largest log(w)^2 dropped until their mean <= {high}",
    }
    return words[row.clip] + on + (f"; dual {row.dual:g}" if row.dual else "")


def ppo_references() -> str:
    """Every reference that the ratio of ``ppo`` may have."""
    return table(("`ppo_ref`", "ratio"), [(f"`{ref}`", RATIOS[to]) for ref, to in PPO_REFERENCE.items()])


def token_columns() -> str:
    """Columns a run reports per token."""
    return _columns(TOKEN_COLUMNS)


def sequence_columns() -> str:
    """Columns a run reports per response."""
    return _columns(SEQUENCE_COLUMNS)


def step_columns() -> str:
    """Measures a run reports per step."""
    return _columns(STEP_COLUMNS)


def _columns(columns: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", column.unit, column.what) for name, column in columns.items()]
    return table(("name", "unit", "what"), rows)


PEERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "verl rollout_corr/kl": ("mean of log(mu/pi')", "k1 estimate"),
        "verl rollout_corr/k3_kl": ("mean of w - 1 - log w", "k3 estimate; one huge ratio decides it"),
        "verl rollout_corr/chi2_token": ("1/ESS - 1", "log ratio bounded at 20; the nearest to the raw ESS"),
        "verl rollout_corr/chi2_seq": ("1/ESS - 1, responses", "product over the response, bounded at 20"),
        "verl rollout_corr/rollout_is_mean": ("mean of w", "of min(w, 2)"),
        "verl rollout_corr/rollout_is_eff_sample_size": ("ESS", "of min(w, 2): reads high"),
        "verl training/rollout_probs_diff_mean": ("-", "probabilities, not their logs"),
        "verl training/rollout_probs_diff_max": ("-", "probabilities, not their logs"),
        "verl training/rollout_probs_diff_std": ("-", "probabilities, not their logs"),
        "verl training/rollout_actor_probs_pearson_corr": ("-", "of probabilities: blind to rare tokens"),
        "ms-swift rollout_correction/ess": ("ESS", "of w clipped to [1/2, 2]: cannot fall below .64"),
        "TRL sampling/sampling_logp_difference/mean": ("-", "mean of the absolute log ratio"),
        "TRL sampling/sampling_logp_difference/max": ("-", "largest absolute log ratio"),
        "TRL sampling/importance_sampling_ratio/mean": ("mean of w, responses", "0 where above 3"),
        "slime train_rollout_logprob_abs_diff": ("-", "mean over responses of their mean absolute log ratio"),
        "SkyRL policy/rollout_train_logprobs_abs_diff_mean": ("-", "mean of the absolute log ratio"),
        "prime-rl mismatch_kl/all/mean": ("mean of w - 1 - log w", "k3 estimate"),
        "NeMo-RL token_mult_prob_error": ("-", "mean of exp of the absolute log ratio"),
        "NeMo-RL gen_kl_error": ("mean of w - 1 - log w", "k3 estimate"),
        "open-instruct debug/vllm_vs_local_logprob_diff_mean": ("-", "mean of the absolute log ratio"),
        "open-instruct debug/vllm_local_reverse_kl": ("-", "mean of mu log(mu/pi') on tokens drawn from mu"),
        "tinker optim/kl_sample_train_v1": ("mean of log(mu/pi')", "k1 estimate"),
        "tinker optim/kl_sample_train_v2": ("mean of log(w)^2 / 2", "k2 estimate"),
        "OpenRLHF vllm_kl": ("mean of log(mu/pi')", "k1 estimate"),
        "response ratio, geometric mean": ("-", "mean over responses of exp of the mean log ratio"),
    }
)
"""By the name a framework logs: our quantity with the same meaning, and how its definition differs"""


def example_batch() -> dict[str, float]:
    """Peers' metrics and ours on one batch: 512 x 64 tokens, a Gaussian lag of raw token ESS one half."""
    rng = np.random.default_rng(0)
    variance = math.log(2)
    logmu = np.log(rng.uniform(0.0005, 0.02, (512, 64)))  # pi = w mu is a probability too
    log_w = rng.normal(-variance / 2, math.sqrt(variance), logmu.shape)
    d = split(logmu, logmu, logmu + log_w).lag
    sums = PeerSums()
    sums.add(logmu.ravel(), d.ravel(), np.exp(log_w).ravel(), np.arange(0, logmu.size, logmu.shape[1]))
    return {"raw ESS, tokens": float(ess_fraction(log_w.ravel()))} | sums.metrics()


def peers() -> str:
    """Frameworks' metrics beside ours, with what each reads on `example_batch`."""
    read = example_batch()
    ours = (
        "**lagfloor** `ess_total`, `ess_token`",
        "ESS",
        "raw, pooled",
        f"{read.pop('raw ESS, tokens'):.3g}",
    )
    rows = [(_logged(name), *PEERS[name], f"{value:.3g}") for name, value in read.items()]
    return table(("logged as", "of", "definition, where it differs", "reads"), [ours, *rows])


def _logged(name: str) -> str:
    framework, _, metric = name.partition(" ")
    return f"{framework} `{metric}`" if "/" in metric or "_" in metric else name


TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        f.__name__.replace("_", "-"): f
        for f in (corrections, ppo_references, token_columns, sequence_columns, step_columns, peers)
    }
)


class Generated(Directive):
    """The directive: parses the table as the page's own Markdown."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes of the table."""
        name = self.arguments[0]
        if name not in TABLES:
            raise self.error(f"unknown table {name!r}; known: {', '.join(TABLES)}")
        holder = nodes.container()
        lines = TABLES[name]().splitlines()
        from docutils.statemachine import StringList

        self.state.nested_parse(StringList(lines, source=f"generated {name}"), self.content_offset, holder)
        return holder.children


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
