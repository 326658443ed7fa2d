"""torchtitan: a job file (TOML), and such files or configuration functions read back."""

from __future__ import annotations

from ridgeline.targets.target import Target
from ridgeline.targets.torchtitan.names import ID
from ridgeline.targets.torchtitan.read import read, recognises
from ridgeline.targets.torchtitan.write import write

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
