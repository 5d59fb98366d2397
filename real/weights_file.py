"""What a safetensors file says of itself before its weights are read: a bad one is refused at once.

Imports no torch, so that a command line can ask before it starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from real.task import Task

EMBEDDING, TIED = "model.embed_tokens.weight", "lm_head.weight"
"""The same tensor; transformers lists it in a state dict, safetensors files leave the head out"""

Shapes = dict[str, tuple[int, ...]]


class Header(NamedTuple):
    """Head of a safetensors file."""

    path: Path
    """The file, also where its folder was named"""
    shapes: Shapes
    task: str | None
    """Name of the task it was trained on, where it says so"""


def header_of(path: Path | str, /) -> Header:
    """Read the head of a file, or of the ``model.safetensors`` of a folder.

    Raises
    ------
    ValueError
        If there is none, or it is no safetensors file, or a part of one.
    """
    path = Path(path)
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(
            f"a checkpoint must be a safetensors file, got {path}, which does not exist; "
            "make one with `python -m real.warmstart`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
            return Header(path, shapes, (file.metadata() or {}).get("task"))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); make it anew") from None


def check_weights(model: str, task: Task, /) -> None:
    """Refuse a file that is no model of the task, by the heads of it and of the shipped checkpoint.

    Raises
    ------
    ValueError
        As `header_of`, `refuse_other_task` and `refuse_other_model`.
    """
    if model == "mini":
        return
    head = header_of(model)
    refuse_other_task(head, task)
    refuse_other_model(head.path, with_tied(head.shapes), with_tied(header_of(task.checkpoint).shapes))


def refuse_other_task(head: Header, task: Task, /) -> None:
    """Refuse a file that says it is of another task, whose model may well have the same shapes.

    Raises
    ------
    ValueError
        Naming both tasks.
    """
    if head.task not in (None, task.name):
        raise ValueError(
            f"{head.path} must hold a model of the task {task.name!r}, got one of {head.task!r}; "
            "name a file of that task"
        )


def with_tied(shapes: Mapping[str, tuple[int, ...]], /) -> Shapes:
    """Add the head a file may leave out."""
    return {TIED: shapes.get(EMBEDDING, (0,)), **shapes}


def refuse_other_model(path: Path, got: Shapes, wanted: Shapes, /) -> None:
    """Refuse weights of other names or shapes.

    Raises
    ------
    ValueError
        Naming the first that differs.
    """
    if wanted != got:
        differing = sorted(n for n in wanted.keys() | got.keys() if wanted.get(n) != got.get(n))
        raise ValueError(
            f"{path} holds another model: {differing[0]} should have shape {wanted.get(differing[0])}, "
            f"got {got.get(differing[0])}; name the file of such a model"
        )
