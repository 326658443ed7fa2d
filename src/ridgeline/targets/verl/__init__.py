"""verl: a Hydra file for the actor's update, and such files or the overrides of launch scripts read back."""

from __future__ import annotations

from ridgeline.targets.target import Target
from ridgeline.targets.verl.names import ID
from ridgeline.targets.verl.read import read, recognises
from ridgeline.targets.verl.write import write

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
