"""Turn what a trainer's file names into what it means: DeepSpeed's file beside it, the catalog's model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.models.names import MODELS, find_name
from ridgeline.targets.model_names import named_by_beginning
from ridgeline.targets.option_reader import OptionReader
from ridgeline.targets.run_files import around
from ridgeline.targets.target import Files, Unread

QUANTIZED = re.compile(r"\b(gptq|awq|aqlm|bnb|nf4|int4|int8|4bit|8bit|nvfp4)\b", re.IGNORECASE)


def beside(files: Files, name: Any) -> dict[str, Any] | None:
    """A table that a configuration names: among the files, or beside them in their checkout."""
    if isinstance(name, Mapping):
        return dict(name)
    if not isinstance(name, str) or not name or len(name) > 300:
        return None
    path = PurePosixPath(name)
    text = files.get(path.name) or around(files).named(name)
    if text is None or path.suffix not in (".json", ".yaml", ".yml", ".conf"):
        return None
    try:
        return parse_table(
            Path(path.name).with_suffix(".json") if path.suffix == ".conf" else Path(path.name), text
        ).data
    except InputError:
        return None


def zero_file(files: Files, name: Any, notes: list[Unread]) -> dict[str, Any]:
    """DeepSpeed's file by the name that a configuration gives; its name alone tells the stage where it is not here."""
    if name in (None, "", False):
        return {}
    found = beside(files, name)
    if found is not None:
        return found
    stage = re.search(r"z(?:ero)?_?(?:stage)?_?([0-3])(?!\d)", PurePosixPath(str(name)[:300]).name.lower())
    told = f"stage {stage.group(1)} by its name" if stage else "read as stage 0"
    why = f"the file is not here: {told}; formats and offloading as the rest says"
    notes.append(Unread(option="deepspeed", value=str(name)[:80], why=why, matters=True))
    return {"zero_optimization": {"stage": int(stage.group(1)) if stage else 0}}


def model_of(reader: OptionReader, option: str, named: str | None) -> str | None:
    """The catalog's model of this name or folder; unread where it has none."""
    value = reader.take(option)
    if named is not None or not isinstance(value, str) or not value:
        return named
    tower = reader.options.get("train.vision_tower")
    if tower:  # the run trains more than the text model that it names
        why = f"with the tower {str(tower)[:60]} no catalog entry is it"
        reader.notes.append(Unread(option="model", value=value[:100], why=why, matters=True))
        return None
    if QUANTIZED.search(value):
        why = "frozen weights in few bits are not priced: read as bf16"
        reader.notes.append(Unread(option=option, value=value[:100], why=why, matters=True))
    for name in (value[:200], value.rstrip("/").rpartition("/")[2][:200]):
        found = find_name(name)
        if found is not None and not found[1]:
            return found[0]
    part = named_by_beginning(value)
    if part is not None:
        reader.assumptions.append(f"model = {part[0]}: by {part[1]} in {value[:80]}")
        return part[0]
    reader.notes.append(Unread(option="model", value=value[:100], why="no catalog entry is it", matters=True))
    return None


def trained(reader: OptionReader, model: str | None) -> str | dict[str, Any] | None:
    """The model as transformers builds it, without blocks that predict further tokens."""
    if model is None or model not in MODELS or MODELS[model].mtp is None:
        return model
    reader.assumptions.append("mtp = 0: transformers leaves out blocks that predict further tokens")
    return {"base": model, "mtp": 0}
