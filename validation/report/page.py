"""The page: verdict tables and figures in one HTML file without a single outside address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from validation.report.results import VERDICTS, Result
from validation.report.seeds import Comparison

TEMPLATE = "page.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A figure on the page."""

    svg: str
    """Rendered by us: the only text that goes in unescaped"""
    caption: str
    command: str
    """What makes its data"""


def render(
    results: Sequence[Result],
    figures: Sequence[Shown],
    *,
    made: Mapping[str, str] | None = None,
    compared: Sequence[Comparison] = (),
) -> str:
    """Return the page as HTML; every text but our own SVG is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    count = Counter(row["verdict"] for result in results for row in result.rows)
    return environment.get_template(TEMPLATE).render(
        counts={verdict: count[verdict] for verdict in VERDICTS},
        results=results,
        figures=[{"svg": Markup(f.svg), "caption": f.caption, "command": f.command} for f in figures],
        made=made or {},
        compared=compared,
    )
