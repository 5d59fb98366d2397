"""What a run folder says of itself: its manifest, and whether its files are what that says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

FORMAT = 1
TABLES = ("steps", "tokens", "sequences")
STATUS, SETTINGS = "status.json", "settings.json"
REQUIRED: Mapping[str, Any] = MappingProxyType(
    {"state": str, "code": str, "seconds": (int, float), "provenance": dict, "notes": dict, "files": dict}
)
"""What a manifest says, and by which type"""


class CorruptRun(ValueError):
    """A run folder whose files are not what its manifest says."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"run folder {folder}: {what}; delete the folder and run again, it will be redone")
        self.folder, self.what = folder, what


def read_status(folder: Path, /) -> dict[str, Any] | None:
    """Return the manifest of a run folder; None where there is none.

    Raises
    ------
    CorruptRun
        If it is there and cannot be what this store wrote.
    """
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise CorruptRun(folder, f"{STATUS} is not JSON") from None
    if not isinstance(status, dict) or status.get("format") != FORMAT:
        raise CorruptRun(folder, f"{STATUS} is not of format {FORMAT}")
    missing = REQUIRED.keys() - status.keys()
    if missing:
        raise CorruptRun(folder, f"{STATUS} lacks {', '.join(sorted(missing))}")
    for name, kind in REQUIRED.items():
        if not isinstance(status[name], kind) or not _whole(name, status[name]):
            raise CorruptRun(folder, f"{STATUS} says of {name} what it cannot")
    if status["state"] == "done" and not {SETTINGS, f"{TABLES[0]}.parquet"} <= status["files"].keys():
        raise CorruptRun(folder, f"{STATUS} lists no settings, or no steps")
    return status


def _whole(name: str, value: Any) -> bool:
    """Whether what a manifest says under a name has the entries this store writes."""
    if name == "state":
        return value in ("running", "done")
    if name == "files":
        return all(isinstance(f, dict) and f.keys() == {"bytes", "sha256"} for f in value.values())
    if name == "provenance":
        return all(isinstance(p, list) and len(p) == 2 for p in value.values())
    return True


def verify(folder: Path, name: str, entry: Mapping[str, Any], /) -> None:
    """Refuse a file that is not what its manifest says."""
    path = folder / name
    if not path.is_file():
        raise CorruptRun(folder, f"{name} is missing")
    content = path.read_bytes()
    if len(content) != entry["bytes"]:
        raise CorruptRun(folder, f"{name} has {len(content)} bytes in place of {entry['bytes']}")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CorruptRun(folder, f"{name} has been changed since it was written")
