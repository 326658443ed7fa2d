"""What a folder of Hugging Face weights says before any is read: whether it is one, and the constants of its config."""

from __future__ import annotations

from pathlib import Path

from ridgeline.core.errors import Problem
from ridgeline.core.files import read_table
from ridgeline.runtime.train.numerics import Numerics, config_numerics

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"


def folder_problems(folder: Path) -> list[Problem]:
    """Why a folder cannot be loaded from, before anything starts."""
    if (folder / INDEX).is_file() or (folder / SINGLE).is_file():
        return []
    given_text = str(folder) if folder.is_dir() else f"{folder} (no such folder)"
    todo = "name the folder of a Hugging Face model"
    return [Problem(path="--weights", given=given_text, expected=f"a folder with {SINGLE} or {INDEX}", todo=todo)]


def folder_numerics(folder: Path) -> Numerics | None:
    """The constants of the config.json beside the weights, where there is one."""
    if not (folder / CONFIG).is_file():
        return None
    return config_numerics(read_table(folder / CONFIG).data)
