"""Turn the configuration that a launch script of verl starts from (`--config-name`) into the options below its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.targets.option_reader import flatten
from ridgeline.targets.run_files import around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files

SCRIPTS = (".sh", ".sbatch", ".slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The configuration that a script names.

    megatron  its name, or that of a file it builds on, says that Megatron is the actor's engine
    options   what it holds by dotted path, where it stands in the script's checkout
    """

    megatron: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def base_of(files: Files) -> Base:
    """The configuration of the first command that names one; of a YAML file, those that it builds on."""
    for name, text in files.items():
        below = re.search(r"^defaults:[ \t]*\n((?:[ \t]*(?:-.*|#.*)?\n)+)", text, re.MULTILINE)
        if name.endswith((".yaml", ".yml")) and "actor_rollout_ref" in text:
            return Base(megatron=below is not None and "megatron" in below.group(1).lower())
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in read_script(text, around(files)).commands:
                said = _options(command)
                if "config-name" in said:
                    return _read(files, said["config-name"].removesuffix(".yaml"), said.get("config-path", ""))
    return Base()


def _options(command: list[str]) -> dict[str, str]:
    """Hydra's own options of a command."""
    found: dict[str, str] = {}
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in ("--config-name", "--config-path"):
            found[name[2:]] = (value if equals else "".join(command[at + 1 : at + 2])).strip("\"'")
    return found


def _read(files: Files, name: str, folder: str) -> Base:
    text = around(files).named(f"{folder}/{name}.yaml")
    data: dict[str, Any] = {}
    if text is not None:
        try:
            data = parse_table(Path(f"{name}.yaml"), text).data
        except InputError:
            data = {}
    below = data.get("defaults")
    names = [name, *(str(part) for part in (below if isinstance(below, list) else ()) if isinstance(part, str))]
    options = {key: value for key, value in flatten(data) if not key.startswith(("defaults", "hydra."))}
    return Base(megatron=any("megatron" in one.lower() for one in names), options=options)
