"""Digests of code: what a number rests on changes them, and words about it do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation import provenance
from validation.provenance import module_digest

FILES = {
    "theory/__init__.py": "",
    "theory/law.py": (
        '"""Law."""\nMARGIN = 0.5\n"""Half"""\n\n\n'
        'def law(x):\n    """Apply it."""\n    return MARGIN * x\n'
    ),
    "theory/other.py": "UNUSED = 1\n",
    "validation/__init__.py": "",
    "validation/store.py": "FORMAT = 1\n",
    "validation/reading.py": (
        "from validation.store import FORMAT\n\n\ndef reading(x):\n    from theory.law import law\n\n"
        "    return law(x) + 1  # one\n"
    ),
}  # fmt: skip


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Digest of validation.reading in a tree of its own, with one text of one file replaced."""

    def of(file: str = "", old: str = "", new: str = "", module: str = "validation.reading") -> str:
        root = tmp_path / f"tree-{len(list(tmp_path.iterdir()))}"  # parsed files are cached by their path
        for name, text in FILES.items():
            assert name != file or old in text
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if name == file else text)
        monkeypatch.setattr(provenance, "ROOT", root)
        return module_digest(module)

    return of


def test_equal_trees_have_equal_digests_of_twelve_hex_digits(digest) -> None:
    first = digest()
    assert digest() == first
    assert len(first) == 12
    int(first, 16)
    assert digest(module="theory.law") != first


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("theory/law.py", "MARGIN = 0.5", "MARGIN = 0.25"),
        ("theory/law.py", "MARGIN * x", "MARGIN + x"),
        ("validation/reading.py", "+ 1", "+ 2"),
        ("validation/reading.py", "from theory.law import law", "from theory.other import UNUSED as law"),
    ],
)
def test_what_is_computed_changes_it_wherever_it_is_imported(file: str, old: str, new: str, digest) -> None:
    assert digest(file, old, new) != digest()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("theory/law.py", '"""Law."""', '"""The law."""'),
        ("theory/law.py", '"""Half"""', '"""A half"""'),
        ("theory/law.py", '"""Apply it."""\n    ', ""),
        ("validation/reading.py", "# one", "# still one"),
        ("validation/reading.py", "\n\n\ndef", "\n\n\n\ndef"),
        ("theory/other.py", "UNUSED = 1", "UNUSED = 2"),
        ("validation/store.py", "FORMAT = 1", "FORMAT = 2"),
    ],
)
def test_words_layout_and_what_is_not_imported_do_not(file: str, old: str, new: str, digest) -> None:
    assert digest(file, old, new) == digest()


def test_a_module_that_is_not_there_is_refused_with_what_to_pass(digest) -> None:
    with pytest.raises(ValueError, match=r"no module of this project is called 'validation\.none'; pass its"):
        digest(module="validation.none")


def test_the_digest_of_a_package_is_that_of_its_init(digest) -> None:
    assert digest("theory/__init__.py", "", "X = 1\n", module="theory") != digest(module="theory")
