"""MaxText: a YAML file of what differs from its base.yml, and such files or launch scripts read back."""

from __future__ import annotations

from ridgeline.targets.maxtext.names import ID
from ridgeline.targets.maxtext.read import read, recognises
from ridgeline.targets.maxtext.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
