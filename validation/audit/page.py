"""The HTML page of an audit: self-contained, no script, every text from the logs escaped."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from validation.audit.document import document
from validation.audit.figures import figures
from validation.audit.run import Audit
from validation.audit.terminal import headline

MOST_INPUTS = 20


def page(audit: Audit, /) -> str:
    """Render the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        finalize=lambda value: "-" if value is None else value,
    )
    told = document(audit)
    numbers = told["numbers"]
    ratios = {n: numbers[n] for n in ("numerics", "mismatch", "lag", "total") if n in numbers}
    return environment.get_template("page.html.j2").render(
        inputs=told["inputs"][:MOST_INPUTS],
        more_inputs=max(0, len(told["inputs"]) - MOST_INPUTS),
        findings=told["findings"],
        faults=[f for f in audit.findings if not f.healthy],
        nothing=headline(audit),
        # drawn here from numbers and fixed labels; no text of a log is in it
        figures={caption: Markup(svg) for caption, svg in figures(audit).items()},
        ratios=ratios,
        ratio_keys=[k for k in next(iter(ratios.values()), {}) if k != "what"],
        peers=numbers.get("peers"),
        curves=numbers.get("curves"),
        forecast=numbers.get("forecast"),
        provenance=told["provenance"],
        cannot_know=told["cannot_know"],
    )
