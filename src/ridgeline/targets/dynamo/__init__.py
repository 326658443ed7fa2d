"""Dynamo: a deployment of a frontend and workers, their scripts, and such files read back."""

from __future__ import annotations

from ridgeline.targets.dynamo.names import ID
from ridgeline.targets.dynamo.read import read, recognises
from ridgeline.targets.dynamo.write import write
from ridgeline.targets.target import Target

TARGET = Target(id=ID, write=write, read=read, recognises=recognises)
