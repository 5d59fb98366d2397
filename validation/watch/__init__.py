"""What a run has reported so far: a run folder of the store, or the canonical trace of a foreign trainer.

A source is asked again and again; it reads only what is new.
"""

from __future__ import annotations

from pathlib import Path

from validation.watch.progress import Progress, Source
from validation.watch.run_folder import RunFolder
from validation.watch.trace_files import TraceFiles, traces_in

__all__ = ["Progress", "RunFolder", "Source", "TraceFiles", "source_of"]

COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How gzip and zstandard begin"""


def source_of(path: Path, /) -> Source:
    """Find out what is at a path.

    Raises
    ------
    ValueError
        If nothing there can be watched.
    """
    if path.is_dir() and (path / "status.json").exists():
        return RunFolder(path)
    found = [path] if path.is_file() else traces_in(path)
    for file in found or sorted(path.glob("*.jsonl.*")):
        if _compressed(file):
            raise ValueError(
                f"watch needs a trace that is plain JSON lines, got {file}, which is compressed; "
                "`lagfloor audit` reads it as it is"
            )
    if found:
        return TraceFiles(found, None if path.is_file() else path)
    raise ValueError(
        f"watch needs a run folder (with status.json) or a canonical trace (.jsonl), got {path}, which is "
        + ("neither" if path.exists() else "not there")
        + "; a run of `lagfloor run` is under runs/"
    )


def _compressed(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4).startswith(COMPRESSED)
