"""The JSON of an audit: inputs, provenance, numbers, findings, and what cannot be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from validation import atomic
from validation.audit.errors import BadLog, one_line
from validation.audit.run import Audit


def document(audit: Audit, /) -> dict[str, Any]:
    """Plain values under the five keys of the format."""
    return {
        "inputs": [
            {"path": f.path, "format": f.format, "rows": f.rows, "tokens": f.tokens, "note": f.note}
            for f in audit.inputs
        ],
        "provenance": {name: {"kind": p.kind, "how": p.how} for name, p in audit.provenance.items()},
        "numbers": audit.numbers,
        "findings": [f.to_dict() for f in audit.findings],
        "cannot_know": audit.cannot_know,
    }


def write_json(audit: Audit, path: Path, /) -> None:
    """Write the document whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, document(audit))
    except OSError as error:
        raise BadLog(f"{one_line(path)}: cannot be written ({error.strerror}); name another file") from None


def write_text(text: str, path: Path, /) -> None:
    """Write a page whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, text)
    except OSError as error:
        raise BadLog(f"{one_line(path)}: cannot be written ({error.strerror}); name another file") from None
