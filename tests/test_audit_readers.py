"""Each format read from a hand-made example, and from files that are cut off, mixed or hostile."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from validation.audit.block import UNKNOWN, Block
from validation.audit.collect import Collector
from validation.audit.command import main
from validation.audit.errors import BadLog
from validation.audit.options import Options
from validation.audit.readers import READERS
from validation.audit.run import audit
from validation.audit.source import Log, open_log

MU = [-0.91, -0.05, -0.30]
PI_S = [-0.93, -0.05, -0.28]
IDS = [21, 22, 2]

CANONICAL = {
    "run": "r",
    "step": 7,
    "seq_id": 0,
    "group_id": "a",
    "prompt_ids": [11, 12],
    "response_ids": IDS,
    "mask": [1, 1, 1],
    "logp_mu": MU,
    "logp_pi_s": PI_S,
    "logp_pi": [-1.0, -0.06, -0.31],
    "version": [[5, 0, 2], [6, 2, 3]],
    "trainer_version": 6,
    "entropy": [1.0, 0.2, 0.6],
    "kept_mass": None,
    "sampling": {"T": 1.0, "top_p": 1.0, "logprobs_mode": "processed_logprobs"},
    "reward": 1.0,
    "finish_reason": "stop",
    "source": "hand",
}
NEMO = {
    "content": ["q a"],
    "rewards": [1.0],
    "input_lengths": [5],
    "token_ids": [[11, 12, *IDS, 0, 0]],
    "token_loss_mask": [[0, 0, 1, 1, 1, 0, 0]],
    "sample_loss_mask": [1.0],
    "advantages": [[0.0, 0.0, 0.7, 0.7, 0.7, 0.0, 0.0]],
    "generation_logprobs": [[0.0, 0.0, *MU, 0.0, 0.0]],
    "prev_logprobs": [[0.0, -3.10, *PI_S, 0.0, 0.0]],
    "idx": 0,
}
PRIME = {
    "schema_version": 1,
    "step": 7,
    "rank": 0,
    "micro_step": 0,
    "micro_sequence_idx": 0,
    "export_sequence_idx": 0,
    "env_name": "toy",
    "token_ids": [11, 12, *IDS],
    "loss_mask": [False, False, True, True, True],
    "inference_logprobs": [0.0, 0.0, *MU],
    "trainer_logprobs": [0.0, -3.1, -1.20, -0.04, -0.35],
    "entropy": [2.1, 1.9, 1.0, 0.2, 0.6],
    "mismatch_kl": [0.0, 0.0, 0.038, 0.0001, 0.001],
}
TRACES = {
    "run": {
        "type": "train",
        "id": "r",
        "work": {"type": "train", "step": 7, "policy": {"start": 6, "end": 7}},
    },
    "traces": [
        {
            "nodes": [
                {"sampled": False, "token_ids": [11, 12], "mask": [False, False]},
                {
                    "parent": 0,
                    "sampled": True,
                    "token_ids": [*IDS, 5],
                    "mask": [True, True, True, False],
                    "logprobs": MU,
                    "advantages": [0.7, 0.7, 0.7],
                },
            ]
        }
    ],
}
OPEN_INSTRUCT = {
    "step": 7,
    "sample_idx": 0,
    "prompt_idx": 0,
    "prompt_tokens": [11, 12],
    "response_tokens": IDS,
    "reward": 1.0,
    "advantage": 0.7,
    "finish_reason": "stop",
    "dataset": "toy",
    "ground_truth": [4],
    "request_info": None,
    "logprobs": MU,
}
CHAT = {
    "prompt_token_ids": [11, 12],
    "prompt_logprobs": [None, {"12": {"logprob": -3.1, "rank": 7, "decoded_token": "x"}}],
    "choices": [
        {
            "index": 0,
            "token_ids": IDS,
            "finish_reason": "stop",
            "routed_experts": None,
            "logprobs": {
                "content": [
                    {"token": f"token_id:{t}", "logprob": lp, "bytes": [97], "top_logprobs": []}
                    for t, lp in zip(IDS, MU, strict=True)
                ]
            },
        }
    ],
}
COMPLETION = {
    "choices": [
        {
            "index": 0,
            "token_ids": IDS,
            "prompt_token_ids": [11, 12],
            "finish_reason": "length",
            "logprobs": {
                "tokens": ["a", "b", "c"],
                "token_logprobs": MU,
                "top_logprobs": None,
                "text_offset": [0, 1, 2],
            },
        }
    ]
}
TRL_ASYNC = {
    "input_ids": [11, 12, *IDS],
    "completion_mask": [0, 0, 1, 1, 1],
    "old_log_probs": [0.0, 0.0, *MU],
    "advantage": 0.7,
    "model_version": 6,
    "group_id": 3,
}
AREAL = {
    "input_ids": [11, 12, *IDS],
    "loss_mask": [0, 0, 1, 1, 1],
    "logprobs": [0, 0, *MU],
    "versions": [-1, -1, 6, 6, 7],
    "rewards": 1.0,
}
OPENRLHF = {
    "sequences": [[11, 12, *IDS]],
    "action_mask": [[0, 1, 1, 1]],
    "rollout_log_probs": [[0, *MU]],
    "action_log_probs": [[-3.1, *PI_S]],
}
TINKER = {
    "model_input": [11, 12, 21, 22],
    "loss_fn_inputs": {
        "target_tokens": [12, *IDS],
        "logprobs": [0, *MU],
        "advantages": [0, 0.7, 0.7, 0.7],
        "mask": [0, 1, 1, 1],
    },
    "loss_fn_outputs": {"logprobs": [-3.1, *PI_S]},
}
VERL = {
    "prompts": [[11, 12]],
    "responses": [[*IDS, 0]],
    "response_mask": [[1, 1, 1, 0]],
    "rollout_log_probs": [[*MU, 0.0]],
    "old_log_probs": [[*PI_S, 0.0]],
    "uid": ["u"],
    "min_global_steps": [6],
    "max_global_steps": [6],
}
SGLANG = {
    "output_ids": IDS,
    "meta_info": {
        "output_token_logprobs": [[lp, token, "x"] for lp, token in zip(MU, IDS, strict=True)],
        "weight_version": "6",
        "finish_reason": {"type": "stop"},
    },
}
SWIFT = {
    "response_token_ids": [IDS[:2], IDS[2:]],
    "response_loss_mask": [[1, 1], [1]],
    "rollout_logprobs": [[*MU[:2], -7.0], [*MU[2:], -7.0]],
    "old_per_token_logps": [PI_S[:2], PI_S[2:]],
}

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "canonical": ("canonical", CANONICAL),
    "nemo": ("nemo-rl", NEMO),
    "prime export": ("prime-rl", PRIME),
    "prime traces": ("prime-rl-traces", TRACES),
    "open-instruct": ("open-instruct", OPEN_INSTRUCT),
    "vllm chat": ("vllm-openai", CHAT),
    "vllm completion": ("vllm-openai", COMPLETION),
    "trl async": ("trl-async", TRL_ASYNC),
    "areal": ("areal", AREAL),
    "openrlhf": ("openrlhf", OPENRLHF),
    "tinker": ("tinker", TINKER),
    "verl batch": ("verl-batch", VERL),
    "sglang": ("sglang", SGLANG),
    "ms-swift": ("ms-swift", SWIFT),
}


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def read(path: Path, **options: Any) -> tuple[Log, Block]:
    log = open_log([str(path)], options=Options(**options))
    (block,) = log.blocks()
    return log, block


def counted(block: Block, name: str) -> list[float]:
    return block.tokens[name][block.tokens["mask"]].tolist()


def slime_dumps(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    for name in ("rollout_data", "train_data"):
        (folder / name).mkdir(parents=True)
    sample = {
        "index": 0,
        "group_index": 4,
        "prompt": "q",
        "tokens": [11, 12, *IDS],
        "response": "a",
        "response_length": 3,
        "loss_mask": [1, 1, 1],
        "rollout_log_probs": MU,
        "weight_versions": ["6"],
        "reward": 1.0,
        "status": "completed",
    }
    torch.save({"rollout_id": 7, "samples": [sample]}, folder / "rollout_data" / "7.pt")
    trained = {
        "data_parallel_rank": 0,
        "rollout_position": 0,
        "tokens": torch.tensor([11, 12, *IDS]),
        "response_lengths": 3,
        "loss_masks": [1, 1, 1],
        "rollout_log_probs": torch.tensor(MU, dtype=torch.float64),
        "log_probs": torch.tensor(PI_S, dtype=torch.float64),
        "advantages": [0.7, 0.7, 0.7],
    }
    torch.save(
        {"format_version": 2, "rollout_id": 7, "rank": 0, "samples": [trained]},
        folder / "train_data" / "7.pt",
    )
    return folder


# -- hand-made examples
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_format_is_recognised_by_content_and_aligned_to_the_sampled_tokens(tmp_path, name):
    expected, record = EXAMPLES[name]
    log, block = read(lines(tmp_path / "misleading_name.txt", record))
    assert log.reader is not None
    assert log.reader.name == expected
    assert counted(block, "logmu") == MU
    assert counted(block, "token") == IDS


@pytest.mark.parametrize(
    ("name", "column", "values"),
    [
        ("canonical", "logpi_s", PI_S),
        ("nemo", "logpi_s", PI_S),
        ("openrlhf", "logpi_s", PI_S),
        ("verl batch", "logpi_s", PI_S),
        ("prime export", "logpi", [-1.20, -0.04, -0.35]),
        ("tinker", "logpi", PI_S),
        ("canonical", "logpi", [-1.0, -0.06, -0.31]),
        ("prime export", "entropy", [1.0, 0.2, 0.6]),
    ],
)
def test_the_trainers_side_lands_in_the_column_its_format_means(tmp_path, name, column, values):
    _, block = read(lines(tmp_path / "log.jsonl", EXAMPLES[name][1]))
    assert counted(block, column) == values


def test_positions_count_from_the_first_response_token(tmp_path):
    for name in ("nemo", "prime export", "canonical"):
        _, block = read(lines(tmp_path / f"{name}.jsonl", EXAMPLES[name][1]))
        assert counted(block, "position") == [0, 1, 2]


def test_versions_are_read_as_numbers_words_spans_and_per_token(tmp_path):
    _, spans = read(lines(tmp_path / "a", CANONICAL))
    _, single = read(lines(tmp_path / "b", CANONICAL | {"version": "v6"}))
    _, each = read(lines(tmp_path / "c", AREAL))
    _, mixed = read(lines(tmp_path / "d", TRACES))
    assert spans.extra["version"].tolist() == [5, 5, 6]
    assert single.extra["version"].tolist() == [6, 6, 6]
    assert each.extra["version"].tolist() == [6, 6, 7]
    assert mixed.rows["mixed_version"].all()


def test_the_step_comes_from_the_files_name_where_the_format_keeps_it_there(tmp_path):
    _, block = read(lines(tmp_path / "train_data_step7.jsonl", NEMO))
    assert block.rows["step"].tolist() == [7]
    _, unknown = read(lines(tmp_path / "other.jsonl", NEMO))
    assert unknown.rows["step"].tolist() == [UNKNOWN]


def test_slime_train_dumps_are_joined_with_what_only_the_rollout_knows(tmp_path):
    log, block = read(slime_dumps(tmp_path / "dump"))
    assert log.reader is not None
    assert log.reader.name == "slime"
    assert counted(block, "logpi_s") == PI_S
    assert block.rows["sampler_version"].tolist() == [6]
    assert block.rows["group"].tolist() == [4]
    assert block.rows["id_error"].tolist() == [0]


def test_a_slime_dump_without_torch_is_one_line(tmp_path, monkeypatch):
    folder = slime_dumps(tmp_path / "dump")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadLog, match="pip install torch"):
        audit([str(folder)])


def test_a_dump_with_code_in_it_is_refused(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    torch.save({"rollout_id": 1, "samples": [Path("x")]}, tmp_path / "1.pt")
    assert main([str(tmp_path / "1.pt")]) == 2
    assert "never unpickled" in one_error_line(capsys)


def test_all_zero_recomputed_log_probs_are_not_a_measurement(tmp_path):
    path = lines(tmp_path / "log.jsonl", NEMO | {"prev_logprobs": [[0.0] * 7]})
    told = audit([str(path)])
    assert told.provenance["logpi_s"].kind == "not measured"
    assert "numerics" not in told.numbers
    assert "mismatch" not in told.numbers


def test_masked_fill_values_never_count(tmp_path):
    for fill in (0.0, 1.0, -9999.0, None):
        record = CANONICAL | {"mask": [1, 0, 1], "logp_mu": [MU[0], fill, MU[2]]}
        told = audit([str(lines(tmp_path / "log.jsonl", record))])
        assert told.numbers["counts"]["tokens_compared"] == 2
        assert all(f.healthy for f in told.findings)


@pytest.mark.parametrize("padding", [0, 50, 200])
def test_padding_changes_nothing(tmp_path, padding):
    width = 7 + padding
    record = {
        k: [v[0] + [0] * padding] if isinstance(v[0], list) else v for k, v in NEMO.items() if k != "idx"
    }
    assert len(record["token_ids"][0]) == width
    plain, padded = lines(tmp_path / "a" / "x.jsonl", NEMO), lines(tmp_path / "b" / "x.jsonl", record)
    assert audit([str(padded)]).numbers == audit([str(plain)]).numbers


def test_a_list_of_another_length_is_counted_not_guessed(tmp_path):
    _, block = read(lines(tmp_path / "log.jsonl", CANONICAL | {"logp_mu": [*MU, -0.2]}))
    assert block.rows["length_error"].tolist() == [1]
    assert counted(block, "logmu") == MU


def test_old_log_probs_mean_what_the_user_says(tmp_path):
    path = lines(tmp_path / "log.jsonl", NEMO)
    _, now = read(path, old_means="pi")
    assert counted(now, "logpi") == PI_S
    assert "logpi_s" not in now.tokens
    _, copied = read(path, old_means="mu")
    assert "logpi_s" not in copied.tokens
    prime = lines(tmp_path / "prime.jsonl", PRIME)
    log, synced = read(prime, old_means="pi_s")
    assert counted(synced, "logpi_s") == [-1.20, -0.04, -0.35]
    assert log.provenance()["logpi_s"].kind == "measured"


def test_align_moves_the_engines_side(tmp_path):
    _, block = read(lines(tmp_path / "log.jsonl", CANONICAL), align=1)
    assert counted(block, "logmu") == MU[:2]
    assert counted(block, "token") == IDS[1:]


@pytest.mark.parametrize("by", [-(10**12), -4, 4, 10**12])
def test_align_beyond_a_row_leaves_nothing_to_compare(tmp_path, by):
    _, block = read(lines(tmp_path / "log.jsonl", CANONICAL), align=by)
    assert counted(block, "logmu") == []


def test_compressed_files_and_folders_of_shards_read_as_the_plain_file(tmp_path):
    text = "".join(json.dumps(CANONICAL | {"step": k}) + "\n" for k in (9, 10)).encode()
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(text))
    (folder / "b.anything").write_bytes(zstandard.compress(text))
    (folder / "STABLE").touch()
    _, block = read(folder)
    assert block.rows["step"].tolist() == [9, 10, 9, 10]


def test_a_document_or_an_array_reads_as_lines_do(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(CHAT, indent=2))
    (tmp_path / "many.json").write_text(json.dumps([CHAT, CHAT]))
    assert counted(read(tmp_path / "one.json")[1], "logmu") == MU
    assert counted(read(tmp_path / "many.json")[1], "logmu") == MU * 2


def test_python_nan_and_infinity_words_are_read(tmp_path):
    record = CANONICAL | {"logp_mu": [math.nan, -math.inf, -0.3]}
    _, block = read(lines(tmp_path / "log.jsonl", record))
    assert math.isnan(counted(block, "logmu")[0])
    assert counted(block, "logmu")[1] == -math.inf


def test_parquet_with_the_canonical_columns_is_read(tmp_path):
    pq.write_table(pa.Table.from_pylist([CANONICAL | {"version": 5}]), tmp_path / "trace.parquet")
    _, block = read(tmp_path / "trace.parquet")
    assert counted(block, "logpi_s") == PI_S


def test_curves_join_by_step_from_csv_and_json(tmp_path):
    (tmp_path / "m.csv").write_text("step,rollout_corr/kl,note\n1,0.1,x\n2,nan,y\n")
    lines(tmp_path / "m.jsonl", {"_step": 1, "rollout_corr": {"chi2_token": 0.2}}, {"_step": 3, "loss": 1})
    log = open_log([str(tmp_path)])
    assert list(log.blocks()) == []
    columns = log.metrics.columns()
    assert columns["step"].tolist() == [1, 2]
    assert columns["rollout_corr/kl"][0] == 0.1
    assert columns["rollout_corr/chi2_token"][0] == 0.2
    assert log.metrics.broken() == {"rollout_corr/kl": 1}


# -- what cannot be audited
# --------------------------------------------------------------------------------------------

TEXT_DUMPS = {
    "verl": {"input": "q", "output": "a", "gts": "4", "score": 1.0, "step": 7, "request_id": "r"},
    "AReaL": {
        "task_id": 0,
        "sample_idx": 0,
        "seqlen": 5,
        "prompt_len": 2,
        "head_version": -1,
        "tail_version": 7,
        "reward": 1.0,
        "prompt": "q",
        "completion": "a",
    },
    "ms-swift": {"step": ["7"], "prompt": ["q"], "completion": ["a"], "Accuracy": [1.0], "advantages": [0.7]},
    "Tinker": {"sampling_client_step": 3, "iteration": 4, "lengths": [5]},
}


@pytest.mark.parametrize("name", TEXT_DUMPS)
def test_a_dump_without_log_probs_says_what_to_switch_on(tmp_path, name, capsys):
    path, out = lines(tmp_path / "dump.jsonl", TEXT_DUMPS[name]), tmp_path / "out.json"
    assert main([str(path), "--json", str(out)]) == 0
    assert "not auditable" in capsys.readouterr().out
    told = json.loads(out.read_text())
    assert told["findings"] == []
    assert any(name in line and "not auditable" in line for line in told["cannot_know"])


def test_trl_completions_say_what_to_switch_on(tmp_path, capsys):
    table = pa.table({"step": [1], "prompt": ["q"], "completion": ["a"], "advantage": [0.5]})
    pq.write_table(table, tmp_path / "completions_00001.parquet")
    assert main([str(tmp_path)]) == 0
    assert "hook" in capsys.readouterr().out


def test_a_pickle_is_refused_with_the_way_out(tmp_path, capsys):
    (tmp_path / "global_step_1_training_input.pkl").write_bytes(pickle.dumps({"sequences": [1]}))
    assert main([str(tmp_path)]) == 2
    assert "never opened" in one_error_line(capsys)


# -- broken files
# ------------------------------------------------------------------------------------------------------


def one_error_line(capsys: Any) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


GOOD = json.dumps(CANONICAL).encode() + b"\n"
BROKEN = {
    "cut": GOOD + GOOD[:100],
    "cut gz": gzip.compress(GOOD * 50)[:-30],
    "cut zst": zstandard.compress(GOOD * 50)[:-10],
    "not gz": b"\x1f\x8b" + b"x" * 50,
    "words": b"hello world\n",
    "binary": struct.pack("<5d", 1, 2, 3, 4, 5),
    "number": b"{}\n5\n",
    "unknown keys": b'{"a": 1}\n',
    "mixed formats": GOOD + json.dumps(PRIME).encode() + b"\n",
    "two kinds of record": GOOD + b'{"other": 1}\n',
    "deep": GOOD + b'{"logp_mu":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "text for numbers": json.dumps(CANONICAL | {"logp_mu": ["a", "b", "c"]}).encode(),
    "nested numbers": json.dumps(CANONICAL | {"logp_mu": [[1], [2], [3]]}).encode(),
    "object for a list": json.dumps(CANONICAL | {"logp_mu": {"a": 1}}).encode(),
    "huge id": json.dumps(CANONICAL | {"response_ids": [10**30, 1, 2]}).encode(),
    "one number for a second list of ids": json.dumps(CANONICAL | {"trainer_ids": 5}).encode(),
    "choices of numbers": b'{"choices": [1, 2]}\n',
    "broken utf-8": GOOD + b'{"logp_mu": "\xff\xfe"}\n',
    "table without metrics": b"a,b\n1,2\n",
    "broken zip": b"PK\x03\x04" + b"0" * 100,
    "parquet by name": b"PAR1" + b"0" * 100,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_and_code_2(tmp_path, name, capsys):
    path = tmp_path / "log"
    path.write_bytes(BROKEN[name])
    assert main([str(path), "--json", str(tmp_path / "out.json")]) == 2
    one_error_line(capsys)
    assert not (tmp_path / "out.json").exists()


def test_a_missing_path_an_empty_folder_and_an_unwritable_answer_are_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    one_error_line(capsys)
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    one_error_line(capsys)
    path = lines(tmp_path / "log.jsonl", CANONICAL)
    assert main([str(path), "--json", str(path / "below" / "a.json")]) == 2
    one_error_line(capsys)
    assert main([str(path), "--format", "nonsense"]) == 2
    assert "known: " in one_error_line(capsys)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", gzip.compress(b"", mtime=0), b"[]", b'{"responses": [], "rollout_log_probs": []}'],
)
def test_a_log_without_a_record_is_one_line_and_code_2(tmp_path, capsys, content):
    (tmp_path / "log.jsonl").write_bytes(content)
    assert main([str(tmp_path / "log.jsonl"), "--json", str(tmp_path / "out.json")]) == 2
    one_error_line(capsys)
    assert not (tmp_path / "out.json").exists()


def test_an_empty_shard_beside_others_is_no_fault(tmp_path, capsys):
    (tmp_path / "step_2.jsonl").touch()
    lines(tmp_path / "step_1.jsonl", CANONICAL)
    assert main([str(tmp_path)]) == 0
    capsys.readouterr()


def test_the_help_lists_the_formats(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    said = "".join(capsys.readouterr().out.split())
    assert all(name in said for name in READERS)


def test_a_frameworks_sample_stays_its_own_with_a_canonical_column_beside(tmp_path):
    path = lines(tmp_path / "log.jsonl", TRL_ASYNC | {"logp_pi_s": [0.0, 0.0, -1.0, -0.1, -0.2]})
    told = audit([str(path)])
    assert told.inputs[0].format == "trl-async"
    assert told.numbers["counts"]["tokens_compared"] == 3


def test_versions_beyond_all_integers_are_unknown(tmp_path):
    path = lines(tmp_path / "log.jsonl", CANONICAL | {"version": [2**63 + 5] * 3})
    for block in open_log([str(path)]).blocks():
        assert (block.extra["version"] == UNKNOWN).all()


def test_bad_lines_can_be_passed_over(tmp_path, capsys):
    (tmp_path / "log").write_bytes(BROKEN["cut"])
    assert main([str(tmp_path / "log"), "--skip-bad"]) == 0
    capsys.readouterr()


def test_a_hostile_name_cannot_forge_a_line(tmp_path, capsys):
    path = tmp_path / "log\n0 findings"
    path.write_bytes(b"{}\n{")
    assert main([str(path)]) == 2
    one_error_line(capsys)


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = sorted(
    {k for _, record in EXAMPLES.values() for k in record} | {"samples", "rollout_id", "log_probs"}
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])  # pyright: ignore[reportArgumentType] an enum is iterable


@FEW
@given(st.sampled_from(list(EXAMPLES)), st.data())
def test_any_value_in_any_field_is_read_or_refused_in_one_line(tmp_path_factory, name, data):
    record = dict(EXAMPLES[name][1])
    for field in data.draw(st.lists(st.sampled_from(list(record)), min_size=1, max_size=3)):
        record[field] = data.draw(JUNK)
    judged(tmp_path_factory.mktemp("x") / "log.jsonl", json.dumps(record).encode())


@FEW
@given(st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=6))
def test_any_object_is_read_or_refused_in_one_line(tmp_path_factory, record):
    judged(tmp_path_factory.mktemp("x") / "log.jsonl", json.dumps(record).encode())


@FEW
@given(st.sampled_from([GOOD, gzip.compress(GOOD * 5), zstandard.compress(GOOD * 5)]), st.data())
def test_any_flipped_or_cut_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content, data):
    changed = bytearray(content[: data.draw(st.integers(0, len(content)))])
    for at in data.draw(st.lists(st.integers(0, max(len(changed) - 1, 0)), max_size=4)):
        if at < len(changed):
            changed[at] = data.draw(st.integers(0, 255))
    judged(tmp_path_factory.mktemp("x") / "log", bytes(changed))


@FEW
@given(st.binary(max_size=200))
def test_any_torch_file_is_read_or_refused_in_one_line(tmp_path_factory, tail):
    torch = pytest.importorskip("torch")
    held = io.BytesIO()
    torch.save({"rollout_id": 1, "samples": [{"tokens": [1, 2], "response_length": 1}]}, held)
    content = held.getvalue()
    judged(tmp_path_factory.mktemp("x") / "1.pt", content[: len(content) - len(tail)] + tail)


@FEW
@given(
    st.lists(
        st.sampled_from(["step", "rollout_corr/kl", "entropy", "1", "nan", "", '"', "x,y", "1e999"]),
        max_size=12,
    )
)
def test_any_table_is_read_or_refused_in_one_line(tmp_path_factory, cells):
    text = "step,rollout_corr/kl\n" + "\n".join(",".join(cells[k : k + 3]) for k in range(0, len(cells), 3))
    judged(tmp_path_factory.mktemp("x") / "m.csv", text.encode())


def judged(path: Path, content: bytes) -> None:
    """Audit bytes: either an answer or a `BadLog` of one line; nothing else may come out."""
    path.write_bytes(content)
    try:
        told = audit([str(path)])
    except BadLog as error:
        one_line = "\n" not in str(error)
        assert one_line, error  # noqa: PT017 either outcome is fine, so pytest.raises does not fit
    else:
        assert all(0 <= f.explains <= 1 and 0 <= f.confidence <= 1 for f in told.findings)


# -- bounds and merging
# ------------------------------------------------------------------------------------------------


def test_numbers_do_not_depend_on_the_size_of_blocks(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        CANONICAL
        | {
            "seq_id": k,
            "response_ids": list(range(20)),
            "mask": [1] * 20,
            "version": k % 3,
            "entropy": None,
            **{name: (-rng.exponential(size=20)).tolist() for name in ("logp_mu", "logp_pi_s", "logp_pi")},
        }
        for k in range(40)
    ]
    path = lines(tmp_path / "log.jsonl", *records)

    def collected(size: int) -> Collector:
        from validation.audit.packing import blocks

        out = Collector()
        for block in blocks(open_log([str(path)])._rows(), size=size):
            out.add(block)
        return out

    whole, parts = collected(1 << 20), collected(100)
    # sums in another order: 8 rounding steps of float64 on 800 tokens
    assert parts.discrepancy.ess == pytest.approx(whole.discrepancy.ess, rel=1e-12)
    assert parts.lag.variance == pytest.approx(whole.lag.variance, rel=1e-12)
    assert parts.lag.k3 == pytest.approx(whole.lag.k3, rel=1e-10)
    assert parts.peers.metrics() == pytest.approx(whole.peers.metrics(), rel=1e-10)
    assert [p.size for p in sorted(parts.largest)] == [p.size for p in sorted(whole.largest)]


def test_every_reader_has_a_name_of_its_own():
    assert len(READERS) == len({r.source for r in READERS.values()})


# -- folders as they are ---------------------------------------------------------------------


def test_what_lies_beside_the_logs_in_a_folder_is_passed_over(tmp_path):
    lines(tmp_path / "trace.jsonl", CANONICAL)
    (tmp_path / "config.json").write_text('{"lr": 1e-6}')
    (tmp_path / "notes.txt").write_text("lr is too high\n")
    (tmp_path / "state.pkl").write_bytes(pickle.dumps([1]))
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    told = audit([str(tmp_path)])
    assert told.numbers["counts"]["tokens"] == 3
    assert sum("passed over" in f.note for f in told.inputs) == 4


def test_of_two_token_formats_in_a_folder_the_one_with_both_sides_is_read(tmp_path):
    lines(tmp_path / "rollouts" / "traces.jsonl", TRACES)
    lines(tmp_path / "token_exports" / "step_7" / "rank_0.jsonl", PRIME)
    told = audit([str(tmp_path)])
    assert "mismatch" in told.numbers
    assert [f.note for f in told.inputs if f.format == "prime-rl-traces"] == ["passed over: beside prime-rl"]
    both = [str(p) for p in (tmp_path / "rollouts" / "traces.jsonl", tmp_path / "token_exports")]
    with pytest.raises(BadLog, match="one token format"):
        audit(both)
