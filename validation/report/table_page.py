"""The table's page: heat map, curves, verdicts, the articles beside it, and a section a cell."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from validation.report.spark import spark
from validation.report.table_figures import FIGURES, samplers_of
from validation.table.articles import NOTES, beside
from validation.table.variant import file_stem
from validation.table.screen import number

TEMPLATE = "table.html.j2"
HOTTEST = 300.0
"""Floors at which the colour of the heat map ends; one floor is its beginning"""
FORMAT = 1


def read_tables(folder: Path, /) -> list[dict[str, Any]]:
    """Read the documents the command `table` kept, by name of file.

    Raises
    ------
    ValueError
        If one is no such document.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            made = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise ValueError(f"{path} is not JSON; delete it and run the table again") from None
        if not isinstance(made, dict) or made.get("format") != FORMAT or "cells" not in made:
            raise ValueError(f"{path} is not a table; delete it and run the table again")
        found.append(made)
    return found


def page_of(made: Mapping[str, Any], /) -> str:
    """File name of a table's page."""
    return f"table-{file_stem(made)}.html"


def heat(floors: float | None, /) -> int:
    """Place on the colour scale, 0 to 100: the logarithm between one floor and `HOTTEST`."""
    if floors is None or math.isnan(floors):
        return 0
    share = math.log(max(floors, 1.0)) / math.log(HOTTEST)
    return round(100 * min(share, 1.0))


def render_table(made: Mapping[str, Any], /, *, draw: bool = True) -> str:
    """Return the page as HTML; every text but our own SVG is escaped.

    Parameters
    ----------
    made : mapping
        Document of the command `table`.
    draw : bool
        With the figures; without them it takes no second.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cells = {(c["sampler"], c["correction"]): c for c in made["cells"]}
    return environment.get_template(TEMPLATE).render(
        made=made,
        samplers=samplers_of(made),
        corrections=list(dict.fromkeys(c["correction"] for c in made["cells"])),
        cells=cells,
        own=[c for c in made["cells"] if c["measured"] and c["same"] is None],
        sparks={key: _sparks(c) for key, c in cells.items() if c["measured"] and c["same"] is None},
        figures=_figures(made) if draw else [],
        beside=beside(made),
        notes=() if made.get("variant") else NOTES.get((made["preset"], made["point"]), ()),
        scale=[(x, heat(x)) for x in (1, 2, 5, 10, 30, 100, 300)],
        heat=heat,
        number=number,
        cell_command=_cell_command(made),
        anchor=lambda sampler, correction: f"{sampler}--{correction}".replace("+", "-with-"),
    )


def _figures(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    from validation.report.style import to_svg

    found = []
    for name, (draw, caption) in FIGURES.items():
        figure = draw(made)
        if figure is not None:
            found.append({"svg": Markup(to_svg(figure, name=name)), "caption": caption})
    return found


def _sparks(cell: Mapping[str, Any]) -> dict[str, Markup]:
    runs = cell["runs"]
    ess = [run["series"].get("ess_token", []) for run in runs]
    return {
        "deviation": spark([r["floors"] for r in runs], low=0.3, high=1000, log=True, line=2.0),
        "accuracy": spark([r["accuracy"] for r in runs], low=0.0, high=0.5),
        "ess": spark(
            ess, low=0.0, high=1.0, line=0.5, marks=[[step - 1 for step in r["resynced"]] for r in runs]
        ),
        "off-support": spark([r["off_support"] for r in runs], low=0.0, high=0.5),
    }


def _cell_command(made: Mapping[str, Any]) -> Any:
    """Make the command of one cell: that of the table with one sampler and one correction."""
    words, kept, skip = shlex.split(made["command"]), [], False
    for word in words:
        if skip:
            skip = False
        elif word.split("=")[0] in ("--samplers", "--corrections", "--json", "--jobs", "--backend"):
            skip = "=" not in word
        else:
            kept.append(word)
    return lambda sampler, correction: shlex.join([*kept, "--samplers", sampler, "--corrections", correction])
