"""Longer responses: the run on the other task, its exits, and verdicts that planted courses must get."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tolerances import MONTE_CARLO_Z, OTHER_LIBRARY_FLOAT32

from real.command_line import guarded, parse
from real.evaluate import held_out, kl_on_prefixes, off_support, own_samples, prompt_ids
from real.exits import SEGMENTS, exits, start
from real.long.search import SEARCH
from real.loop import run, start_model
from real.model import row_logps
from real.samplers import open_sampler
from real.settings import Mini, longer_responses
from real.sync import BOUND
from real.task import EOS
from theory.corrections import correction
from theory.experiment import Numerics
from theory.records import Trace
from validation import long_responses as study
from validation.check import Verdict, conclude
from validation.plan import DLC, IS, IS_RESYNC, ON_POLICY, PG
from validation.report.long_table import SHOWN, print_courses

TINY = Mini(task="search", eval_every=2, eval_prompts=12, eval_samples=1)


def tiny(name="is", **changes):
    """A run of some seconds."""
    fields = {"environment": TINY, "prompts": 4, "samples": 2, "steps": 3, "sync_every": 64, "seed": 3}
    return longer_responses(correction(name), **(fields | changes))


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown task 'chess'; known: countdown, search"):
        Mini(task="chess")  # pyright: ignore[reportArgumentType]


def test_a_run_stopped_on_the_search_goes_on_to_the_same_weights(tmp_path):
    whole = run(tiny())

    def stop(record):
        if record.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny(), on_step=stop, checkpoint=tmp_path)
    resumed = run(tiny(), checkpoint=tmp_path, resume=True)
    assert resumed.trace.steps["ess_token"].tolist() == whole.trace.steps["ess_token"].tolist()
    for name, tensor in whole.snapshots[3].weights.items():
        assert torch.equal(tensor, resumed.snapshots[3].weights[name])
    tokens = whole.trace.sequences["length"]
    assert tokens.max() <= SEARCH.response_tokens
    assert tokens.mean() > 20


@pytest.fixture(scope="module")
def policy():
    return start_model(TINY)


@pytest.fixture(scope="module")
def origin(policy):
    return start(policy, TINY)


def test_the_start_has_left_nothing(policy, origin):
    found = exits(policy, origin, TINY, seed=5)
    assert found.kl_own == found.kl_sampler == found.kl_sampler_reverse == 0
    assert found.missing == pytest.approx(0)
    assert found.exit_own < 0.02
    assert len(found.off_segments) == SEGMENTS


@pytest.fixture(scope="module")
def moved(policy):
    """A policy pushed away from the start, not beyond recognition."""
    other = start_model(TINY)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.25 * p.std() * torch.randn(p.shape, generator=draw))
    return other


def test_exits_agree_with_the_measures_of_a_run(policy, origin, moved):
    found = exits(moved, origin, TINY, seed=5)
    own = own_samples(moved, TINY, seed=5)
    assert found.off_support == pytest.approx(off_support(policy, own))
    assert found.kl_own == pytest.approx(kl_on_prefixes(moved, policy, own), **_close())
    assert found.kl_sampler == pytest.approx(kl_on_prefixes(policy, moved, origin.visited), **_close())
    back = kl_on_prefixes(moved, policy, origin.visited)
    assert found.kl_sampler_reverse == pytest.approx(back, **_close())
    assert found.any_off >= found.off_support > 0
    # what the sampler's tokens miss of the moved policy, and responses that reach the limit, by hand
    visited = origin.visited
    rows = [row_logps(model, visited.prompt_CP, visited.response_BT).double() for model in (moved, policy)]
    now, then = (row.gather(-1, visited.response_BT[..., None])[..., 0] for row in rows)
    w = (now - then).exp()[visited.mask_BT]
    assert found.missing == pytest.approx(1 - w.mean().item(), **_close())
    assert abs(found.missing) > 1e-3
    cut = [EOS not in response for response in own.response_BT.tolist()]
    assert found.unended == pytest.approx(np.mean(cut))
    assert 0 < found.unended < 1


def test_the_exit_mass_is_what_the_off_support_share_estimates(policy, moved):
    wide = dataclasses.replace(TINY, eval_prompts=64)
    found = exits(moved, start(policy, wide), wide, seed=6)
    tokens = found.length * 64
    # tokens of a response are not independent: half as many count
    error = (found.exit_own * (1 - found.exit_own) / (tokens / 2)) ** 0.5
    assert abs(found.off_support - found.exit_own) <= MONTE_CARLO_Z * error


def _close():
    return {"rel": OTHER_LIBRARY_FLOAT32["rtol"], "abs": OTHER_LIBRARY_FLOAT32["atol"]}


def course(cell, seed, *, accuracy, off, kl, own):
    """A course with given columns, from a start of .25."""
    length = len(accuracy)
    found = {name: np.zeros(length) for name, _, _ in SHOWN} | {
        "step": 4 * np.arange(length),
        "accuracy": np.array(accuracy),
        "off_support": np.array(off),
        "kl_sampler": np.array(kl),
        "kl_own": np.array(own),
    }
    plan = study.experiments()
    return study.Course(
        cell=cell,
        experiment=dataclasses.replace(plan[cell][0], seed=seed),
        trace=Trace(steps={"step": np.arange(1, 9), "ess_token": np.ones(8), "resynced": np.zeros(8)}),
        found=found,
        stopped=None,
    )


def planted(kl_at_collapse):
    """Stale PG collapses with 95% of its tokens off-support, and so much KL on the sampler's prefixes."""
    well = {"accuracy": (0.25, 0.3, 0.3), "off": (0.001, 0.002, 0.002)}
    healthy = [course(ON_POLICY, s, **well, kl=(0, 0.1, 0.2), own=(0, 0.1, 0.2)) for s in (1, 2, 3)]
    gone = [
        course(
            PG,
            s,
            accuracy=(0.25, 0.26, 0.0),
            off=(0.001, 0.01, 0.95 - s / 1000),
            kl=(0, 0.1, kl_at_collapse + s / 1000),
            own=(0, 0.1, 6.0),
        )
        for s in (4, 5, 6)
    ]
    held = [
        course(cell, s, **well, kl=(0, 0.1, 0.15), own=(0, 0.1, 0.15))
        for cell in (IS_RESYNC, DLC)
        for s in (4, 5, 6)
    ]
    return [*healthy, *gone, *held]


def verdicts(courses, claim):
    return {c.reading: conclude(c).verdict for c in study.checks(courses) if c.claim == claim}


def test_a_planted_invisible_collapse_is_called_one_and_a_visible_one_is_not():
    seen, hidden = (
        next(v for reading, v in verdicts(planted(kl), "invisible").items() if "stale pg," in reading)
        for kl in (9.0, 0.15)
    )
    assert (seen, hidden) == (Verdict.FAILS, Verdict.HOLDS)


def test_methods_of_which_no_run_collapsed_are_not_judged():
    found = verdicts(planted(9.0), "invisible")
    assert sum(v is Verdict.NOT_RUN for v in found.values()) == len(study.STALE_CELLS) - 1


def test_planted_shares_of_the_article_hold_and_a_resync_that_does_not_help_fails():
    assert set(verdicts(planted(9.0), "off-support").values()) == {Verdict.HOLDS}

    def worse(c):
        off = np.array([0.0, 0.1, 0.4 + c.experiment.seed / 1000])
        return dataclasses.replace(c, found={**c.found, "off_support": off}) if c.cell == DLC else c

    by_reading = verdicts([worse(c) for c in planted(9.0)], "off-support")
    (dlc,) = (v for reading, v in by_reading.items() if DLC in reading)
    assert dlc is Verdict.FAILS


def test_collapse_is_the_first_snapshot_below_half_the_start():
    one = planted(9.0)[3]
    assert one.cell == PG
    assert one.collapse(0.25) == 2
    assert planted(9.0)[0].collapse(0.25) is None


def test_the_study_keeps_its_runs_and_measures_them_once(tmp_path, monkeypatch, capsys):
    plan = {IS: (tiny(),)}
    lines: list[str] = []
    (first,) = study.courses(plan, tmp_path, on_step=lines.append)
    assert lines == [f"is, seed 3, step {k}" for k in (1, 2, 3)]
    assert first.found["step"].tolist() == [0, 2, 3]

    def twice(*_, **__):
        raise AssertionError("measured a second time")

    monkeypatch.setattr("real.exits.exits", twice)
    (again,) = study.courses(plan, tmp_path, on_step=lines.append)
    assert len(lines) == 3
    assert again.found["kl_own"].tolist() == first.found["kl_own"].tolist()
    print_courses([first])
    assert "is, seed 3: token ESS first below 1/2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cells", "foo"], "unknown cell 'foo'; known: "),
        (["--seeds", "0"], "--seeds must be 1 to "),
        (["--seeds", "999"], "--seeds must be 1 to "),
        (["--seeds", "x"], "cannot read --seeds"),
        (["--sampler", "foo"], "'foo'"),
        (["--json", "/"], "--json must name a file that can be written"),
    ],
)
def test_bad_options_of_the_study_are_one_line_and_code_2(arguments, said, capsys):
    assert guarded(lambda: study.main(parse(study.Options, "study", arguments, about="x"))) == 2
    error = capsys.readouterr().err
    assert error.startswith("lagfloor: ")
    assert said in error
    assert error.count("\n") == 1


def test_the_figure_has_a_panel_a_cell():
    from validation.report.long import figure
    from validation.report.style import to_svg

    drawn = figure(planted(9.0))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [ON_POLICY, PG, IS_RESYNC, DLC]
    assert to_svg(drawn, name="long").startswith("<svg")


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, inside vLLM's import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit and swig types, inside vLLM's import
@pytest.mark.filterwarnings("ignore::UserWarning")  # vLLM's import of torch internals
def test_vllm_and_torch_give_one_distribution_along_a_search(policy):
    pytest.importorskip("vllm", reason="vllm is not installed", exc_type=ImportError)
    engine = open_sampler(dataclasses.replace(TINY, sampler="vllm"), Numerics())
    try:
        engine.sync(policy.state_dict(), 0)
        rollout = engine.sample(prompt_ids(held_out(12, SEARCH), SEARCH), 2, seed=1)
    finally:
        engine.close()
    with torch.no_grad():
        row_BTV = row_logps(policy, rollout.prompt_CP, rollout.response_BT)
    assert rollout.mask_BT.sum(-1).max() > 20
    gap = (rollout.logmu_BTV - row_BTV)[rollout.mask_BT].double()
    assert gap.square().mean().sqrt().item() < BOUND
