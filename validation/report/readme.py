"""The claims table of the README, between two markers, from the last results of `check` and `table`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from validation.atomic import write_text
from validation.claims import CLAIMS
from validation.report.results import VERDICTS, Result

BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"
COLUMNS = {"theory": "closed form", "toy": "toy", "real": "mini-Qwen3"}


def claims_table(results: Sequence[Result], tables: Sequence[Mapping[str, Any]] = (), /) -> str:
    """Markdown: one line a claim, its verdicts by engine and table; "-" where it was not checked.

    Parameters
    ----------
    results : sequence of Result
        Of `check`, one an engine.
    tables : sequence of mapping
        What `table` kept, as `validation.report.table_page.read_tables` reads it: a column for each whole one.
    """
    cells: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for row in result.rows:
            cells[row["claim"]][result.engine].append(row["verdict"])
    columns = dict(COLUMNS)
    for made in tables:
        if made.get("variant"):
            continue  # no part of a table, and none of other settings, stands for the whole one
        column = f"table {made['preset']}, {made['point']}"
        columns[column] = column
        for row in made["checks"]:
            cells[row["claim"]][column].append(row["verdict"])
    lines = [f"| claim | says | {' | '.join(columns.values())} |", "|---" * (2 + len(columns)) + "|"]
    for name, claim in CLAIMS.items():
        if name in cells:
            verdicts = " | ".join(_short(cells[name][column]) for column in columns)
            lines.append(f"| `{name}` | {claim.statement} | {verdicts} |")
    return "\n".join(lines)


def write_readme(path: Path, results: Sequence[Result], tables: Sequence[Mapping[str, Any]] = (), /) -> None:
    """Put the table between the markers of a README.

    Raises
    ------
    ValueError
        If the markers are not there.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path} needs the lines {BEGIN} and {END} once each; add them where the table goes")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    write_text(path, f"{head}{BEGIN}\n{claims_table(results, tables)}\n{tail}")


def _short(verdicts: Sequence[str]) -> str:
    """One word where all readings agree, else the counts."""
    if not verdicts:
        return "-"
    count = Counter(verdicts)
    if len(count) == 1:
        return verdicts[0]
    return ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
