"""Countdown for verl: Parquet files of chat prompts, and the reward function verl imports by path.

    python -m real.verl.task DIR

Rewards are +-1. The answer is read between the last ``<answer>`` tags and judged by the exact verifier;
nothing a policy writes is ever evaluated. Token ids stay token ids: text is only read for the reward.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import tyro

from real.command_line import start
from real.countdown import Problem, Split, problems
from real.verifier import solves

SOURCE = "lagfloor/countdown"
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
TRAIN_PROBLEMS, TEST_PROBLEMS = 64 * 40, 512
"""One pass of the articles' 40 steps of 64 prompts; as many held-out problems as the mini model's"""


def question(problem: Problem, /) -> str:
    """Text of the task, as one user turn."""
    numbers = ", ".join(map(str, problem.numbers))
    return (
        f"Using each of the numbers {numbers} exactly once and the signs + - * / ( ), write an expression "
        f"that equals {problem.target}. Give it as <answer>expression</answer>, for example "
        "<answer>(1+2)*3</answer>."
    )


def compute_score(
    data_source: str, solution_str: str, ground_truth: dict[str, Any], extra_info: Any = None, **_: Any
) -> float:
    """+1 for a response whose last answer solves the problem, -1 for any other; verl's signature."""
    found = ANSWER.findall(solution_str)
    if not found:
        return -1.0
    text = "".join(found[-1].split())
    return 1.0 if solves(text, list(ground_truth["numbers"]), int(ground_truth["target"])) else -1.0


def table(count: int, /, *, seed: int, split: Split) -> pa.Table:
    """Problems as verl reads them: one row a prompt."""
    rows = [
        {
            "data_source": SOURCE,
            "prompt": [{"role": "user", "content": question(p)}],
            "ability": "math",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"numbers": list(p.numbers), "target": p.target},
            },
            "extra_info": {"split": split, "index": i},
        }
        for i, p in enumerate(problems(count, seed=seed, split=split))
    ]
    return pa.Table.from_pylist(rows)


def write(folder: Path, /, *, seed: int = 0) -> tuple[Path, Path]:
    """Write ``train.parquet`` and ``test.parquet`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = folder / "train.parquet", folder / "test.parquet"
    pq.write_table(table(TRAIN_PROBLEMS, seed=seed, split="train"), train)
    pq.write_table(table(TEST_PROBLEMS, seed=0, split="test"), test)
    return train, test


class Options(NamedTuple):  # verl loads this file under no name, which a dataclass cannot stand
    """Write Countdown as the Parquet files verl reads."""

    folder: Annotated[Path, tyro.conf.Positional]
    """where train.parquet and test.parquet go; made if it does not exist"""


def main(arguments: list[str] | None = None) -> int:
    """Write the files from the command line."""
    return start(Options, "python -m real.verl.task", _main, arguments=arguments)


def _main(options: Options) -> int:
    print(*write(options.folder), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
