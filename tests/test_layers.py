"""What each folder may load: theory <- toy | real <- validation, and heavy frameworks only where they run."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("theory", "toy", "real", "validation")
FRAMEWORKS = ("jax", "torch", "vllm", "transformers")

FORBIDDEN = {
    "theory": (*FRAMEWORKS, "toy", "real", "validation"),
    "toy": ("torch", "vllm", "transformers", "real", "validation"),
    "real": ("jax", "toy", "validation"),
}
ADAPTERS = ("real.verl", "real.trl", "real.hooks", "real.samplers.vllm")
"""Modules written for a package that need not be installed, or not with all it needs itself"""


def modules_of(package: str) -> list[str]:
    """Every module of a package, without importing any."""
    found = pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
    return [package, *sorted(m.name for m in found if not m.name.endswith("__main__"))]


def loaded_by(modules: list[str], watched: tuple[str, ...]) -> list[str]:
    """Which of `watched` a fresh interpreter holds after importing `modules` from the repository root."""
    code = f"""
import importlib, sys
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        ours = (missing.name or "").partition(".")[0] in {PACKAGES!r}
        if ours or not name.startswith({ADAPTERS!r}):
            raise
print(*(m for m in {watched!r} if m in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()


@pytest.mark.parametrize("package", FORBIDDEN)
def test_every_module_of_a_layer_stays_in_it(package):
    """Transitive loads included, which a list of import lines would not show."""
    loaded = loaded_by(modules_of(package), FORBIDDEN[package])
    assert not loaded, f"{package}/ also loads {', '.join(loaded)}"


@pytest.mark.parametrize("module", ["validation", "validation.cli", "validation.claims", "validation.check"])
def test_the_command_line_starts_without_a_framework(module):
    """Otherwise `check toy` would wait for torch, and `--help` for everything."""
    loaded = loaded_by([module], FRAMEWORKS)
    assert not loaded, f"{module} also loads {', '.join(loaded)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_those_of_the_repository(package):
    """Another distribution may ship a top-level folder of the same name (PyPI has a `validation`)."""
    origin = importlib.import_module(package).__file__
    assert origin is not None
    assert Path(origin).parents[1] == ROOT


def test_no_module_takes_a_name_of_the_standard_library():
    """`python real/x.py` puts real/ first on the path: real/logging.py would then replace logging."""
    clashes = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.stem in sys.stdlib_module_names and path.stem not in ("__init__", "__main__")
    ]
    assert not clashes
