"""The actor's update of a verl run, read as a training step of its own: what `--from verl-update` asks for."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.targets.dialects.verl.read import read_update
from ridgeline.targets.target import Files, Imported

ID = "verl-update"


def read(files: Files) -> Imported:
    """What the files say of the actor's update."""
    return replace(read_update(files), target=ID)


def recognises(_: Files) -> bool:
    """Never by itself: such files run a whole step of post-training."""
    return False
