"""AWS NxD Training: a YAML of NeuronX Distributed Training with the model's config.json, and such files read back."""

from __future__ import annotations

from ridgeline.targets.nxd_training.names import ID
from ridgeline.targets.nxd_training.read import read, recognises
from ridgeline.targets.nxd_training.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
