"""Accuracy a method loses against the on-policy runs of its world, by the end."""

from __future__ import annotations

from validation.evidence import World


def lost(world: World, cell: str, /) -> float:
    """Share of the on-policy accuracy that a cell lacks at the last step."""
    reference = world.cells[world.on_policy].accuracy[-1].mean()
    return float(1 - world.cells[cell].accuracy[-1].mean() / reference)


def untrained(world: World, /) -> float:
    """Share that a method would lack that learns nothing after the first compared step."""
    accuracy = world.cells[world.on_policy].accuracy
    return float(1 - accuracy[0].mean() / accuracy[-1].mean())
