"""Turn a configuration function of torchtitan into settings: as `torchtitan` reads it, which knows both generations."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.targets.target import Files, Imported
from ridgeline.targets.torchtitan.read import functions
from ridgeline.targets.torchtitan.read import read as read_titan
from ridgeline.targets.torchtitan.read_python import is_registry
from ridgeline.targets.torchtitan_preset.names import ID

__all__ = ["functions", "read", "recognises"]
FILE = "preset.py"


def read(files: Files) -> Imported:
    """What a function that returns a Trainer.Config says; from 0.3 on no schedule overlaps the exchange of experts."""
    kept = {name: text for name, text in files.items() if name.partition("::")[0].endswith(".py")}
    found = read_titan(files if len(kept) == len(files) else kept)
    plan = dict(found.settings["plan"])
    if "moe" in plan.get("overlap", {}):
        plan["overlap"] = {**plan["overlap"], "moe": False}
    return replace(found, target=ID, settings={**found.settings, "plan": plan})


def recognises(files: Files) -> bool:
    """A preset that Ridgeline wrote; those of others are `torchtitan`'s, whatever their version."""
    return FILE in files and "Written by Ridgeline" in files[FILE] and is_registry(files)
