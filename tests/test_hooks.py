"""What each hook writes, the audit reads: log-probs, mask, versions and rewards survive the round trip."""

from __future__ import annotations

import fcntl
import math
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

torch = pytest.importorskip("torch")

from real.hooks import prime_rl, slime  # noqa: E402
from real.hooks import verl as verl_hook  # noqa: E402
from real.hooks.canonical import append, row  # noqa: E402
from validation.audit.block import Block  # noqa: E402
from validation.audit.files import peek, records  # noqa: E402
from validation.audit.packing import blocks  # noqa: E402
from validation.audit.readers import reader_for  # noqa: E402
from validation.audit.readers.base import Source  # noqa: E402

MU, PI_S, PI = [-0.91, -0.05, -0.30], [-0.93, -0.05, -0.28], [-1.20, -0.04, -0.35]
PROMPT, RESPONSE = [11, 12], [21, 22, 2]


def read(path: Path) -> Block:
    """The file as the audit sees it."""
    rows = []
    for record in records(peek(path)):
        reader = reader_for(record.value)
        assert reader is not None
        assert reader.name == "canonical"
        rows += list(reader.rows(record.value, Source(path), record.line))
    (block,) = blocks(rows)
    return block


def expect(block: Block, **columns: Any) -> None:
    for name, wanted in columns.items():
        got = block.tokens[name] if name in block.tokens else block.rows[name]
        np.testing.assert_allclose(np.asarray(got, dtype=float), np.asarray(wanted, dtype=float), rtol=1e-6)


def known(block: Block, name: str) -> bool:
    """Whether every token has the column; a column nobody wrote is absent."""
    return name in block.tokens and bool(np.isfinite(block.tokens[name]).all())


def test_a_line_of_the_format_is_read_back_as_written(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = row(
        step=7,
        seq_id=0,
        group_id=3,
        prompt_ids=PROMPT,
        response_ids=torch.tensor(RESPONSE),
        mask=torch.tensor([True, True, False]),
        logp_mu=MU,
        logp_pi_s=PI_S,
        logp_pi=torch.tensor(PI, dtype=torch.float64),
        advantage=0.7,
        version=4,
        trainer_version=6,
        reward=1.0,
        source="test",
    )
    assert append(file, [line, line]) == 2
    block = read(file)
    expect(block, logmu=MU * 2, logpi_s=PI_S * 2, logpi=PI * 2, mask=[1, 1, 0] * 2, token=RESPONSE * 2)
    expect(block, step=[7, 7], sampler_version=[4, 4], trainer_version=[6, 6], reward=[1, 1], group=[3, 3])


def test_what_cannot_be_told_is_null_and_never_zero(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    broken = [math.nan, -math.inf, -0.3]
    append(
        file, [row(step=1, seq_id=0, response_ids=RESPONSE, mask=[1, 1, 1], logp_mu=broken, source="test")]
    )
    line = orjson.loads(file.read_bytes())
    assert line["logp_mu"] == [None, None, -0.3]
    assert line["logp_pi_s"] is line["logp_pi"] is line["version"] is None


def test_a_list_of_another_length_and_an_unknown_field_are_refused() -> None:
    with pytest.raises(ValueError, match="3 response tokens, got 2"):
        row(step=1, seq_id=0, response_ids=RESPONSE, mask=[1, 1, 1], logp_mu=[-1.0, -1.0], source="test")
    with pytest.raises(ValueError, match="no field 'logprobs'"):
        row(step=1, seq_id=0, response_ids=RESPONSE, mask=[1, 1, 1], logprobs=MU, source="test")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": None}, "mask must be a list, one entry a response token, got None"),
        ({"mask": [0.5, 1]}, "mask says by 0 or 1 whether a token counts, got 0.5"),
        ({"mask": [2, 1]}, "mask says by 0 or 1 whether a token counts, got 2"),
        ({"mask": "11"}, "mask must be a list, one entry a response token, got '11'"),
        ({"mask": [None, 1]}, "mask says by 0 or 1 whether a token counts, got None"),
        ({"response_ids": torch.tensor(3)}, "response_ids must be a list, one entry a response token, got 3"),
        ({"response_ids": "ab"}, "response_ids must be a list, one entry a response token, got 'ab'"),
        ({"logp_mu": torch.tensor(-1.0)}, "logp_mu must be a list, one entry a response token, got -1.0"),
        ({"logp_mu": [[-1.0], [-1.0]]}, "logp_mu must be a list of numbers, got \\[-1.0\\] in it"),
        ({"logp_pi": ["-1", "-1"]}, "logp_pi must be a list of numbers, got '-1' in it"),
        ({"entropy": b"ab"}, "entropy must be a list, one entry a response token, got b'ab'"),
        ({"advantage": [1.0, 2.0, 3.0]}, "advantage must have one entry for each of the 2 response tokens"),
        ({"step": 1.5}, "step is a whole number, from 1, got 1.5"),
        ({"step": None}, "step is a whole number, from 1, got None"),
    ],
)
def test_what_is_no_line_is_refused_in_the_trainer_and_not_written(
    fields: dict[str, Any], message: str
) -> None:
    line: dict[str, Any] = {"step": 1, "seq_id": 0, "response_ids": [1, 2], "mask": [1, 1], "source": "test"}
    with pytest.raises(ValueError, match=message):
        row(**(line | fields))


@pytest.mark.parametrize(
    "rows",
    [
        row(step=1, seq_id=0, response_ids=[1], mask=[1], source="test"),
        "text",
        [{"step": 1}, {"step": object()}],
        [{"step": 1}, {"step": 2**70}],
        [{"run": "\ud800"}],
    ],
)
def test_lines_that_json_cannot_hold_leave_no_file(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(ValueError, match=r"^a line (is a mapping|holds numbers)"):
        append(tmp_path / "trace.jsonl", rows)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_in_the_settings_of_the_sampler_are_written_as_numbers(tmp_path: Path) -> None:
    settings = {"T": np.float32(0.5), "top_k": np.int64(3), "stop": ("a", "b")}
    line = row(step=1, seq_id=0, response_ids=[1], mask=[1], sampling=settings, source="test")
    append(tmp_path / "trace.jsonl", [line])
    written = orjson.loads((tmp_path / "trace.jsonl").read_bytes())
    assert written["sampling"] == {"T": 0.5, "top_k": 3, "stop": ["a", "b"]}


def test_what_a_killed_writer_left_of_a_line_swallows_no_other(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = row(step=1, seq_id=0, response_ids=[1], mask=[1], source="test")
    append(file, [line])
    file.write_bytes(file.read_bytes() + b'{"run":null,"st')
    append(file, [line])
    whole, half, after = file.read_bytes().splitlines()
    assert whole == after == orjson.dumps(line)
    assert half == b'{"run":null,"st'


def test_a_writer_waits_for_another_and_makes_the_folder_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "trace.jsonl"
    line = row(step=1, seq_id=0, response_ids=[1], mask=[1], source="test")
    append(file, [line])
    with file.open("ab") as other, ThreadPoolExecutor() as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(append, file, [line])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert waiting.result(timeout=60) == 1
    assert len(file.read_bytes().splitlines()) == 2


FULL = """
import resource, sys
from real.hooks.canonical import append, row
file = sys.argv[1]
line = row(step=1, seq_id=0, response_ids=[1], mask=[1], source="test")
append(file, [line])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    append(file, [line] * 9)
except OSError:
    print("told")
"""


def test_a_disk_that_fills_up_leaves_no_part_of_a_line_and_is_told(tmp_path: Path) -> None:
    file, root = tmp_path / "trace.jsonl", Path(prime_rl.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(file)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "told\n"
    (line,) = file.read_bytes().splitlines(keepends=True)
    assert line.endswith(b"}\n")


WORKER = """
import sys
from real.hooks.canonical import append, row
file, worker = sys.argv[1], int(sys.argv[2])
for step in range(25):
    same = [worker] * 2000
    append(file, [row(step=step, seq_id=s, response_ids=same, mask=[1] * 2000, source="test") for s in "ab"])
"""


def test_appending_from_many_processes_keeps_lines_whole(tmp_path: Path) -> None:
    file, root = tmp_path / "trace.jsonl", Path(prime_rl.__file__).parents[2]
    started = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(file), str(worker)], cwd=root)
        for worker in range(4)
    ]
    assert [worker.wait(timeout=120) for worker in started] == [0, 0, 0, 0]
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert len(lines) == 200
    assert all(len(set(line["response_ids"])) == 1 for line in lines)


def trl_batch(**extra: Any) -> dict[str, Any]:
    """One micro-batch as TRL buffers it: two responses, the second padded."""
    pad = [0.0]
    return {
        "prompt_ids": torch.tensor([[0, *PROMPT], [0, *PROMPT]]),
        "prompt_mask": torch.tensor([[0, 1, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([RESPONSE, [21, 2, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "advantages": torch.tensor([0.7, -0.7]),
        "old_per_token_logps": torch.tensor([PI_S, PI_S[:2] + pad]),
        **extra,
    }


def test_trls_hook_cuts_the_padding_and_leaves_what_trl_does_not_know_null(tmp_path: Path) -> None:
    trl_hook = pytest.importorskip("real.hooks.trl")
    file = tmp_path / "trace.jsonl"
    batch = trl_batch(sampling_per_token_logps=torch.tensor([MU, [*MU[:2], 0.0]]))
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=1, process_index=0), _buffered_inputs=[batch]
    )
    callback = trl_hook.Dump(trainer, str(file))
    state = SimpleNamespace(global_step=5)
    callback.on_step_end(None, state, None)
    callback.on_step_end(None, state, None)
    block = read(file)
    expect(block, logmu=MU + MU[:2], logpi_s=PI_S + PI_S[:2], token=[*RESPONSE, 21, 2], step=[5, 5])
    assert not known(block, "logpi"), "not computed by TRL"
    assert len(file.read_bytes().splitlines()) == 2, "a batch is written once"


def test_trls_hook_tells_micro_batches_processes_and_the_words_of_a_tool_apart(tmp_path: Path) -> None:
    trl_hook = pytest.importorskip("real.hooks.trl")
    batch = trl_batch(tool_mask=torch.tensor([[1, 0, 1], [1, 1, 0]]))
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=2, process_index=1), _buffered_inputs=[batch, batch]
    )
    callback = trl_hook.Dump(trainer, str(tmp_path / "trace.jsonl"))
    callback.on_step_end(None, SimpleNamespace(global_step=1), None)
    (file,) = tmp_path.iterdir()
    assert file.name == "trace.jsonl.rank1"
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [line["seq_id"] for line in lines] == [0, 1, 2, 3]
    assert [line["mask"] for line in lines] == [[1, 0, 1], [1, 1]] * 2
    assert [line["advantage"] for line in lines] == pytest.approx([0.7, -0.7] * 2)
    assert lines[0]["prompt_ids"] == PROMPT
    assert {line["version"] for line in lines} == {line["trainer_version"] for line in lines} == {0}


def test_trls_hook_without_vllm_says_that_mu_is_unknown() -> None:
    trl_hook = pytest.importorskip("real.hooks.trl")
    first, _ = trl_hook.rows([trl_batch()], step=1)
    assert first["logp_mu"] is None
    assert first["logp_pi_s"] == pytest.approx(PI_S)


def verl_data(**extra: Any) -> dict[str, Any]:
    def nested(*parts: Sequence[float]) -> Any:
        return torch.nested.as_nested_tensor([torch.tensor(p) for p in parts], layout=torch.jagged)

    return {
        "prompts": nested(PROMPT, PROMPT),
        "responses": nested(RESPONSE, [21, 2]),
        "response_mask": nested([1, 1, 1], [1, 1]),
        "rollout_log_probs": nested(MU, MU[:2]),
        "old_log_probs": nested(PI_S, PI_S[:2]),
        "rm_scores": nested([0.0, 0.0, 1.0], [0.0, -1.0]),
        **{name: nested(*value) for name, value in extra.items()},
    }


def test_verls_hook_knows_pi_s_only_where_sampler_and_trainer_agree(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    tags = [{"min_global_steps": 6, "max_global_steps": 6}, {"min_global_steps": 2, "max_global_steps": 2}]
    append(file, verl_hook.rows(verl_data(), tags, step=7, bypass=False))
    block = read(file)
    expect(block, logmu=MU + MU[:2], logpi=PI_S + PI_S[:2], sampler_version=[6, 2], trainer_version=[6, 6])
    assert np.isfinite(block.tokens["logpi_s"][:3]).all()
    assert np.isnan(block.tokens["logpi_s"][3:]).all(), "old_log_probs of a stale sample are not pi_s"
    expect(block, reward=[1.0, -1.0])


def test_verls_hook_cuts_columns_that_are_longer_than_the_response() -> None:
    tags = [{"min_global_steps": 6, "max_global_steps": 6}] * 2
    padded = verl_data(rollout_log_probs=([*MU, 0.0], [*MU[:2], 0.0]), advantages=([1.0] * 4, [2.0] * 3))
    first, second = verl_hook.rows(padded, tags, step=7, bypass=False)
    assert first["logp_mu"] == pytest.approx(MU)
    assert second["logp_mu"] == pytest.approx(MU[:2])
    assert (first["advantage"], second["advantage"]) == ([1.0] * 3, [2.0] * 2)
    assert (first["prompt_ids"], first["seq_id"], second["seq_id"]) == (PROMPT, 0, 1)


def test_verls_hook_reports_bypass_mode_as_unknown_and_mixed_versions_too() -> None:
    tags = [{"min_global_steps": 5, "max_global_steps": 6}, {"min_global_steps": 6, "max_global_steps": 6}]
    mixed, same = verl_hook.rows(verl_data(), tags, step=7, bypass=False)
    assert mixed["version"] is None
    assert mixed["logp_pi_s"] is None
    assert same["logp_pi_s"] is not None
    for line in verl_hook.rows(verl_data(), tags, step=7, bypass=True):
        assert line["logp_pi_s"] is line["logp_pi"] is None, "a copy of mu is no measurement"


def test_verls_hook_under_the_gated_trainer_has_all_three(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    data = verl_data(log_probs=(PI, PI[:2]))
    tags = [{"min_global_steps": 2, "max_global_steps": 2}] * 2
    append(file, verl_hook.rows(data, tags, step=7, bypass=False, after_update=True))
    expect(read(file), logmu=MU + MU[:2], logpi_s=PI_S + PI_S[:2], logpi=PI + PI[:2], trainer_version=[7, 7])


def slime_data() -> dict[str, Any]:
    return {
        "tokens": [torch.tensor(PROMPT + RESPONSE), torch.tensor([*PROMPT, 21, 2])],
        "response_lengths": [3, 2],
        "loss_masks": [torch.tensor([1, 1, 1]), torch.tensor([1, 1])],
        "rollout_log_probs": [torch.tensor(MU), torch.tensor(MU[:2])],
        "log_probs": [torch.tensor(PI_S), torch.tensor(PI_S[:2])],
        "advantages": [torch.tensor([0.7] * 3), torch.tensor([-0.7] * 2)],
        "weight_versions": [["6"], ["5", "6"]],
        "rewards": [1.0, -1.0],
    }


@pytest.mark.parametrize(("colocate", "interval"), [(True, 1), (True, 2), (False, 1)])
def test_slimes_hook_calls_the_trainers_log_probs_pi_s_only_where_it_was_just_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colocate: bool, interval: int
) -> None:
    monkeypatch.setenv("LAGFLOOR_DUMP", str(tmp_path / "trace"))
    monkeypatch.setenv("RANK", "3")
    args = SimpleNamespace(colocate=colocate, update_weights_interval=interval, rollout_temperature=1.0)
    slime.write(args, 6, slime_data())
    block = read(tmp_path / "trace.rank3.jsonl")
    expect(block, logmu=MU + MU[:2], logpi=PI_S + PI_S[:2], step=[7, 7], reward=[1.0, -1.0])
    expect(block, trainer_version=[6, 6], mask=[1] * 5, token=[*RESPONSE, 21, 2])
    assert known(block, "logpi_s") == (colocate and interval == 1)
    assert block.rows["sampler_version"][0] == 6
    assert block.rows["sampler_version"][1] < 0, "two sets of weights wrote it: not known"


def test_slimes_hook_numbers_the_responses_of_a_rank_unless_slime_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGFLOOR_DUMP", str(tmp_path / "trace"))
    monkeypatch.delenv("RANK", raising=False)
    for numbers in ({}, {"sample_indices": [torch.tensor(40), 41]}):
        slime.write(SimpleNamespace(), 0, slime_data() | numbers)
    lines = [orjson.loads(line) for line in (tmp_path / "trace.rank0.jsonl").read_bytes().splitlines()]
    assert [line["seq_id"] for line in lines] == [0, 1, 40, 41]
    assert [line["prompt_ids"] for line in lines] == [PROMPT] * 4


def test_slimes_hook_leaves_context_parallel_parts_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGFLOOR_DUMP", str(tmp_path / "trace"))
    monkeypatch.setenv("RANK", "0")
    data = slime_data()
    data["log_probs"][0] = data["log_probs"][0][:1]
    slime.write(SimpleNamespace(), 0, data)
    assert len((tmp_path / "trace.rank0.jsonl").read_bytes().splitlines()) == 1


def test_prime_rls_exports_are_rewritten_and_its_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {
        "schema_version": 1,
        "step": 7,
        "rank": 0,
        "export_sequence_idx": 0,
        "token_ids": PROMPT + RESPONSE,
        "loss_mask": [False, False, True, True, True],
        "inference_logprobs": [0.0, 0.0, *MU],
        "trainer_logprobs": [0.0, -3.1, *PI],
        "entropy": [2.1, 1.9, 1.0, 0.2, 0.6],
    }
    for step in (10, 9):
        folder = tmp_path / "exports" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "rank_0.jsonl").write_bytes(orjson.dumps(record | {"step": step}) + b"\n")
    out = tmp_path / "trace.jsonl"
    assert prime_rl.main([str(tmp_path / "exports"), str(out)]) == 0
    block = read(out)
    expect(block, logmu=MU * 2, logpi=PI * 2, token=RESPONSE * 2, step=[10, 11])
    assert not known(block, "logpi_s")
    lines = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert [line["prompt_ids"] for line in lines] == [PROMPT] * 2
    between = record | {"loss_mask": [False, False, True, False, True]}
    assert prime_rl.canonical(between)["logp_mu"] == [MU[0], None, MU[2]], "not sampled there"
    assert prime_rl.canonical(between)["mask"] == [1, 0, 1]
    silent = prime_rl.canonical(record | {"loss_mask": [False] * 5})
    assert (silent["prompt_ids"], silent["response_ids"]) == (PROMPT + RESPONSE, [])
    (tmp_path / "exports" / "step_copy").mkdir()
    (tmp_path / "exports" / "step_copy" / "rank_0.jsonl").write_text("not a step of the run")
    assert prime_rl.main([str(tmp_path / "exports"), str(out)]) == 0, "again, during the run"
    expect(read(out), step=[10, 11])
    assert prime_rl.main([str(tmp_path / "nothing"), str(out)]) == 2
    assert "enable_token_export" in capsys.readouterr().err
    kept = out.read_bytes()
    file = tmp_path / "exports" / "step_9" / "rank_0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b"{")
    assert prime_rl.main([str(tmp_path / "exports"), str(out)]) == 2
    assert f"{file}:2: a line must be" in capsys.readouterr().err
    file.write_bytes(whole)
    assert prime_rl.main([str(tmp_path / "exports"), str(file / "trace.jsonl")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert prime_rl.main([str(tmp_path / "exports"), "/dev/full"]) == 1
    assert "got 'no space left on device'; free some space" in capsys.readouterr().err
    assert out.read_bytes() == kept
    assert sorted(f.name for f in tmp_path.iterdir()) == ["exports", "trace.jsonl"]


def test_slimes_hook_says_which_variable_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGFLOOR_DUMP", raising=False)
    with pytest.raises(ValueError, match="needs LAGFLOOR_DUMP=/path/to/trace, got none"):
        slime.write(SimpleNamespace(), 0, slime_data())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "unexpected end of data"),
        (b"[]", "list indices"),
        (b'{"step": 1}', "no 'loss_mask'"),
        (b'{"loss_mask": 3}', "argument of type 'int'"),
        (
            orjson.dumps(
                {"loss_mask": [True], "step": 1, "rank": 0, "export_sequence_idx": 0, "token_ids": [1]}
            ),
            "no",
        ),
    ],
)
def test_a_line_that_is_no_export_of_prime_rl_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, why: str
) -> None:
    file, out = tmp_path / "exports" / "step_3" / "rank_0.jsonl", tmp_path / "trace.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(line + b"\n")
    (tmp_path / "exports" / "step_x").mkdir()
    (tmp_path / "exports" / "step_x" / "rank_0.jsonl").write_bytes(b"not read\n")
    assert prime_rl.main([str(tmp_path / "exports"), str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{file}:1: a line must be a token export of schema 1, got another ({why}" in said
    assert said.count("\n") == 1
    assert not out.exists()
