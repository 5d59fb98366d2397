"""The documentation does what it shows: blocks run, outputs are real, the site builds, links lead on."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


def load(name: str) -> ModuleType:
    """A script of the documentation, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


outputs, generated = load("outputs"), load("generated")
PAGES = outputs.pages()
LIVE = [p for p in PAGES if re.search(r"^```(python|console)$", p.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("page", LIVE, ids=lambda p: p.stem)
def test_blocks_of_a_page_run_and_print_what_the_page_shows(page: Path) -> None:
    with outputs.checkout() as place:
        ran = outputs.run_page(page, place)
    print(f"{ran.slow} slow blocks left out: python docs/outputs.py --slow {page.name}")
    assert not ran.differences, "\n\n".join([*ran.differences, "python docs/outputs.py writes it anew"])


@pytest.mark.parametrize("page", LIVE, ids=lambda p: p.stem)
def test_no_block_is_without_its_output_or_a_reason(page: Path) -> None:
    text = page.read_text()
    fences = re.findall(r"^```([^\s`]+)", text, re.MULTILINE)
    assert set(fences) <= {*outputs.LANGUAGES, "{generated}", "{include}", "{toctree}"}
    document = outputs.Document(text, str(page))
    for block in outputs.blocks(document):
        tags = set(block.tags)
        if block.language == "sh":
            assert tags, f"not run, and no comment says why:\n{block.source}"
            continue
        assert tags <= set(outputs.TAGS), f"unknown tag in {tags}"
        if block.language == "output":
            assert block.source.strip(), "an output block is empty: python docs/outputs.py fills it"
        if block.language == "console":
            for command, shown in outputs.commands(block.source):
                silent = "> /dev/null" in command or command.startswith("cat >")
                assert shown.strip() or silent, f"no output under: {command}"


def test_a_difference_is_found_and_times_and_paths_are_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"

    def differences(text: str) -> list[str]:
        page.write_text(text)
        with outputs.checkout() as place:
            return outputs.run_page(page, place).differences

    assert not differences("```python\nprint(1 + 1)\n```\n```output\n2\n```\n")
    assert differences("```python\nprint(1 + 1)\n```\n```output\n3\n```\n")
    assert not differences("```console\n$ echo took 3.2 s\ntook 17 s\n```\n")
    assert differences("```console\n$ echo took 3.2 nats\ntook 17 nats\n```\n")
    assert not differences("<!-- floats -->\n```console\n$ echo took 3.2 nats\ntook 17 nats\n```\n")
    assert differences("<!-- floats -->\n```console\n$ echo took 3.2 nats\ngave 3.2 nats\n```\n")
    assert differences("```console\n$ exit 3\n```\n")
    assert not differences("<!-- exit 3 -->\n```console\n$ exit 3\n```\n")
    assert not differences(
        "```python\nimport pathlib\npathlib.Path('f').write_text('x')\n```\n```console\n$ cat f\nx\n```\n"
    )


def test_regeneration_writes_what_was_printed_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = (
        "# A\n\n```python\nprint(2)\n```\n```output\n{}```\n\n```console\n$ echo a\n{}$ echo b\n{}```\nend\n"
    )
    before, after = text.format("old\n", "old\n", ""), text.format("2\n", "a\n", "b\n")
    page.write_text(before)
    with outputs.checkout() as place:
        ran = outputs.run_page(page, place)
    assert outputs.rewritten(before, ran.edits) == after


def test_the_metrics_of_the_peers_are_all_explained() -> None:
    assert set(generated.PEERS) == set(generated.example_batch()) - {"raw ESS, tokens"}


def test_the_tables_hold_every_row_of_the_code() -> None:
    from theory.corrections import CORRECTIONS
    from theory.records import STEP_COLUMNS

    assert all(f"| `{name}` |" in generated.corrections() for name in CORRECTIONS)
    assert all(f"| `{name}` |" in generated.step_columns() for name in STEP_COLUMNS)


def test_every_module_of_the_theory_is_in_the_reference() -> None:
    theory = DOCS.parent / "theory"
    there = set(re.findall(r"automodule:: (\S+)", (DOCS / "api" / "theory.md").read_text()))
    assert there == {f"theory.{p.stem}" for p in theory.glob("*.py") if p.stem != "__init__"}


class Page(HTMLParser):
    """Anchors and links of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[k] or "" for k in ("id", "name") if k in found}
        for name in ("href", "src"):
            if found.get(name) is not None and tag != "link":
                self.links.append(found[name] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew; a warning of the build is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(out / "doctrees"), str(DOCS), str(out / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_link_of_the_built_site_leads_somewhere(site: Path) -> None:
    pages = {f.resolve(): Page(f.read_text()) for f in site.rglob("*.html")}
    assert len(pages) > len(PAGES)
    broken, outside = [], set()
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outside.add(link)
                continue
            target = (file.parent / parts.path).resolve() if parts.path else file
            if target not in pages:
                if not target.is_file():
                    broken.append(f"{file.name}: {link}")
            elif parts.fragment and parts.fragment not in pages[target].anchors:
                broken.append(f"{file.name}: {link}")
    assert not broken
    wrong = [
        u for u in outside if urlsplit(u).scheme not in ("https", "http") or "." not in urlsplit(u).netloc
    ]
    assert not wrong


def test_formulas_need_no_script_and_none_is_broken(site: Path) -> None:
    text = (site / "theory.html").read_text()
    assert text.count("<math") > 50
    assert "merror" not in text
    assert "mathjax.js" not in text.lower()
    assert "katex" not in text.lower()


def test_names_of_code_in_the_pages_are_in_the_reference(site: Path) -> None:
    # a role that does not resolve is plain text to Sphinx where docstrings may name anything
    _, _, body = (site / "objects.inv").read_bytes().partition(b"using zlib.\n")
    known = {line.split(" ")[0] for line in zlib.decompress(body).decode().splitlines()}
    named: set[str] = set()
    for page in PAGES:
        named |= set(re.findall(r"\{(?:func|class|data|mod|attr)\}`([^`]+)`", page.read_text()))
    assert len(named) > 40
    elsewhere = {n for n in named - known if n.startswith("validation.")}
    assert named - known == elsewhere
    for name in elsewhere:
        assert importlib.util.find_spec(name) is not None, f"{name} is no module"
