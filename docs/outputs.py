"""Run every block of the documentation and write what it printed back under it.

    python docs/outputs.py                     # the blocks that take seconds
    python docs/outputs.py --slow= theory.md   # every block of a page
    python docs/outputs.py --slow=toy          # and of the slow blocks those that hold a word
    python docs/outputs.py --slow= --runs DIR  # stored runs to be reused (the folder is written to)

Blocks of a page run in the page's order, in a folder of their own that looks like a checkout without runs:

* a ``python`` block runs in the page's namespace; what it prints stands in the ``output`` block after it;
* a ``console`` block holds commands, each behind ``$``, and under each what it printed.

What a fast block prints must not depend on a slow one before it: the tests leave those out.

An HTML comment on the line before a block changes how it is taken: ``slow`` (run on request only, with how
long it takes), ``floats`` (digits depend on the processor: compared without them), ``machine`` (says what is
installed here: run, not compared), ``exit N`` (fails with that code on purpose). A ``sh`` block is shown and
not run; its comment says why. `tests/test_docs.py` runs the same blocks and compares.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
LANGUAGES = ("python", "console", "output", "sh")
TAGS = ("slow", "floats", "machine", "exit")
WIDTH = 100
"""Characters a command believes its terminal to have"""
_TIME = re.compile(r"\b\d+(?:\.\d+)?(?= ?(?:s|ms|min|seconds|CPU-seconds|steps/s)\b)")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?")
_SPACES = re.compile(r"[ \u2500-\u257f]+")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    source: str
    start: int
    """Of the source in the page's text, in characters"""
    tags: Mapping[str, str]
    """From the comment before it: the word, and what follows it"""


@dataclass(slots=True)
class Ran:
    """What a page's blocks printed, against what the page shows."""

    edits: list[tuple[int, int, str]] = field(default_factory=list)
    """Start, end and new text, in the page's order"""
    differences: list[str] = field(default_factory=list)
    slow: int = 0
    """Blocks left out"""


def blocks(document: Document) -> Iterator[Block]:
    """Fenced blocks in the languages known here, in order."""
    found = [r for language in LANGUAGES for r in FencedCodeBlockLexer(language)(document)]
    for region in sorted(found, key=lambda r: r.start):
        source = region.lexemes["source"]
        before = re.search(r"<!-- ([^\n]*?) -->\n$", document.text[: region.start])
        words = [w.strip().partition(" ") for w in before[1].split(";")] if before else []
        yield Block(
            language=region.lexemes["language"],
            source=str(source),
            start=region.start + source.offset,
            tags={word: rest.strip() for word, _, rest in words},
        )


def commands(source: str) -> list[tuple[str, str]]:
    """Commands of a console block with what stands under each; a backslash carries on to the next line."""
    found: list[tuple[list[str], list[str]]] = []
    carried = False
    for line in source.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif not found:
            raise ValueError(f"a console block starts with a command behind '$ ', got {line!r}")
        else:
            found[-1][0 if carried else 1].append(line)
        carried = bool(found[-1][0]) and not found[-1][1] and found[-1][0][-1].endswith("\\")
    return [("\n".join(command), "\n".join(out)) for command, out in found]


@contextlib.contextmanager
def checkout(runs: Path | None = None) -> Iterator[Path]:
    """Yield a folder that looks like a fresh checkout; what commands write there is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="lagfloor-docs-") as folder:
        place = Path(folder).resolve()
        for part in ROOT.iterdir():
            hidden = part.name.startswith(".") and part.name not in (".venv-trl", ".venv-verl")
            if not hidden and part.name not in ("runs", "report"):
                (place / part.name).symlink_to(part)
        if runs is not None:
            (place / "runs").symlink_to(runs.resolve())
        yield place


def shell(command: str, place: Path) -> tuple[str, int]:
    """Output (both streams) and exit code of a command in a folder, this interpreter first on the path."""
    settings = {
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(place),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=place,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.replace(f"{place}/", "").replace(str(place), ".")
    said = said.replace(sys.prefix, ".venv").replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
    return "\n".join(line.rstrip() for line in said.rstrip().splitlines()), done.returncode


def comparable(text: str, *, digits: bool = True) -> str:
    """Text without its times, and without any number where `digits` is False."""
    text = _TIME.sub("N", text)
    text = text if digits else _NUMBER.sub("N", text)
    return "\n".join(_SPACES.sub(" ", line).strip() for line in text.strip().splitlines())


def run_page(page: Path, place: Path, *, slow: str | None = None) -> Ran:
    """Run the blocks of a page in a folder and compare; of the slow ones those that hold the word `slow`."""
    text = page.read_text()
    document = Document(text, str(page))
    ran = Ran()
    printed: tuple[Block, str] | None = None
    for block in blocks(document):
        last, printed = printed, None
        line = text.count("\n", 0, block.start)
        if block.language == "output" and last is not None:
            _compare(ran, f"{page.name}:{line}", last[0], block.source, last[1])
            ran.edits.append((block.start, block.start + len(block.source), last[1]))
        elif "slow" in block.tags and (slow is None or slow not in block.source):
            ran.slow += 1
        elif block.language == "python":
            printed = (block, _run_python(block, document, line, place))
        elif block.language == "console":
            made = [
                _run_command(ran, f"{page.name}:{line}", block, *pair, place)
                for pair in commands(block.source)
            ]
            ran.edits.append((block.start, block.start + len(block.source), "".join(made)))
    return ran


class _Source(str):
    """What sybil's Python evaluator takes: a source that knows on which line of the example it begins."""

    __slots__ = ()
    line_offset = 0


def _run_python(block: Block, document: Document, line: int, place: Path) -> str:
    region = Region(block.start, block.start + len(block.source), parsed=_Source(block.source))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.chdir(place):
        PythonEvaluator()(Example(document, line, 1, region, document.namespace))
    return said.getvalue()


def _run_command(ran: Ran, where: str, block: Block, command: str, shown: str, place: Path) -> str:
    said, code = shell(command, place)
    if code != int(block.tags.get("exit", "0")):
        ran.differences.append(f"{where}: $ {command}\nexit code {code}\n{said}")
    _compare(ran, f"{where}: $ {command}", block, shown, said)
    return f"$ {command}\n{said}\n" if said else f"$ {command}\n"


def _compare(ran: Ran, where: str, block: Block, shown: str, said: str) -> None:
    digits = "floats" not in block.tags
    if "machine" not in block.tags and comparable(shown, digits=digits) != comparable(said, digits=digits):
        ran.differences.append(f"{where}\nshown:\n{shown}\nprinted:\n{said}")


def rewritten(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Text with its edits made, from the last to the first so that places stay true."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def pages() -> list[Path]:
    """Pages of the documentation, without what a build leaves there."""
    return sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)


def main(arguments: list[str] | None = None) -> int:
    """Regenerate; 1 if a command ended with another exit code than its page says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pages", nargs="*", help="file names of pages; all if left out")
    parser.add_argument("--slow", metavar="WORD", help="run the slow blocks that hold WORD, too; = for all")
    parser.add_argument("--runs", type=Path, help="folder of stored runs to reuse")
    chosen = parser.parse_args(arguments)
    known = {str(p.relative_to(DOCS)): p for p in pages()}
    unknown = sorted(set(chosen.pages) - set(known))
    if unknown:
        parser.error(f"unknown page {unknown[0]!r}; known: {', '.join(known)}")
    failed = 0
    for name in chosen.pages or known:
        page = known[name]
        text = page.read_text()
        with checkout(chosen.runs) as place:
            ran = run_page(page, place, slow=chosen.slow)
        codes = [d for d in ran.differences if "exit code" in d]
        if page.read_text() != text:
            print(f"{name}: left alone, it was changed while its blocks ran; run them again", file=sys.stderr)
            failed += 1
            continue
        new = rewritten(text, ran.edits)
        if new != text:
            page.write_text(new)
        print(f"{name}: {'rewritten' if new != text else 'unchanged'}, {ran.slow} slow blocks left out")
        for problem in codes:
            print(problem, file=sys.stderr)
        failed += len(codes)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
