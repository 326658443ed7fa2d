"""Turn a script or a table of Megatron-LM's arguments into a scenario's settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table, parse_table
from ridgeline.models.load import model as load_model
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.megatron.names import ID
from ridgeline.targets.megatron.read_model import read_model
from ridgeline.targets.megatron.read_plan import Seen, read_plan, read_workload
from ridgeline.targets.option_reader import OptionReader, model_in
from ridgeline.targets.options import Options, options
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files, Imported, Unread

SCRIPTS = (".sh", ".sbatch", ".slurm")
NOT_PRICED = "decides nothing that a scenario holds"
BLOCKING = ("CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Options as a run's files give them: names without dashes, values as words or numbers, True for a flag."""

    options: Mapping[str, Any]
    source: str
    world: int | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""  # the model that a file written by Ridgeline names


def read(files: Files) -> Imported:
    """The settings of a script, or of a YAML table of arguments."""
    return settings_of(collect(files), ID, "megatron-core")


def settings_of(found: Given, target: str, engine: str, names: Mapping[str, str] | None = None) -> Imported:
    """Options in Megatron's words as settings; `names` gives back what another dialect calls them."""
    said = {name: value for name, value in found.options.items() if name != "model"}
    reader = OptionReader(Table(data=said, source=found.source))
    if "model" in found.options:  # named rather than spelled
        model: str | Mapping[str, Any] = found.options["model"]
    else:
        model = read_model(reader, found.hint)
    spec = load_model(model if isinstance(model, str) or "vocab" in model or "base" in model else {**model, "vocab": 1})
    workload = read_workload(reader)
    seen = Seen(engine=engine, layers=spec.layers, experts=has_experts(spec), world=found.world)
    plan = read_plan(reader, seen)
    known = options(target)
    unread = tuple(_renamed(part, known, names or {}) for part in reader.unread({}))
    per_rank = None if "global_batch" in workload else plan["microbatch"]
    notes = (*(f"left out: {note}" for note in found.notes), *reader.assumptions)
    return Imported(
        target=target,
        settings={"model": model, "workload": workload, "plan": plan},
        unread=unread,
        assumptions=notes,
        per_rank=per_rank,
    )


def _renamed(part: Unread, known: Options, names: Mapping[str, str]) -> Unread:
    own = names.get(part.option, part.option)
    documented = own in known.flags or own in known.values or "." in own
    why = NOT_PRICED if documented else f"not among the options recorded of {known.target} {known.version}"
    return replace(part, option=own, value="" if part.value == "True" else part.value, why=why)


def collect(files: Files) -> Given:
    """The options of the first script that starts a run; without one, of the first table that holds any."""
    return replace(_collect(files), hint=model_in(files) or "")


def _collect(files: Files) -> Given:
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            found = from_script(name, text)
            if found is not None:
                return found
    for name, text in files.items():
        if name.endswith((".yaml", ".yml", ".json")):
            table = parse_table(Path(name), text).data
            plain = {str(key).replace("_", "-"): value for key, value in table.items() if not isinstance(value, dict)}
            if "num-layers" in plain:
                return Given(options={key: value for key, value in plain.items() if value is not False}, source=name)
    expected = "a script that passes --num-layers to a training program, or a table with num-layers"
    raise InputError(Problem(path="", given=", ".join(files) or "no file", expected=expected))


def from_script(name: str, text: str) -> Given | None:
    """What a script passes to the Python program it starts; None when no command passes --num-layers."""
    script = read_script(text)
    for command in script.commands:
        if not any(word.replace("_", "-").startswith("--num-layers") for word in command):
            continue
        start = next((index for index, word in enumerate(command) if word.endswith(".py")), -1)
        found = parsed(command[start + 1 :])
        found |= {key: value for key, value in script.environment.items() if key in BLOCKING}
        launch = parsed(command[: max(start, 0)])
        return Given(options=found, source=name, world=_world(launch), notes=tuple(dict.fromkeys(script.notes)))
    return None


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Options by name without dashes; one value as itself, several as a list, none as True.

    >>> parsed(["--tp", "8", "--bf16", "--modules", "a", "b", "--x=1e-3"])
    {'tp': 8, 'bf16': True, 'modules': ['a', 'b'], 'x': 0.001}
    """
    found: dict[str, list[Any]] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = [_value(value)] if equals else []
        elif name:
            found[name].append(_value(word))
    return {name: True if not values else values[0] if len(values) == 1 else values for name, values in found.items()}


def _value(word: str) -> Any:
    if NUMBER.fullmatch(word) is None or len(word) > 40:
        return word
    return int(word) if word.lstrip("+-").isdigit() else float(word) if math.isfinite(float(word)) else word


def world_of(files: Files) -> int | None:
    """Ranks that the first script with torchrun's numbers starts."""
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in read_script(text).commands:
                found = _world(parsed(command))
                if found is not None:
                    return found
    return None


def _world(launch: Mapping[str, Any]) -> int | None:
    """Ranks that torchrun starts, where both of its numbers are known."""
    nodes, each = launch.get("nnodes", 1), launch.get("nproc-per-node")
    known = type(nodes) is int and type(each) is int and nodes > 0 and each > 0
    return nodes * each if known and isinstance(nodes, int) and isinstance(each, int) else None


def recognises(files: Files) -> bool:
    """Whether a script or a table speaks of --num-layers."""
    return any(True for _ in speaking(files))


def speaking(files: Files) -> Iterator[str]:
    """The texts of scripts and tables that speak of --num-layers."""
    for name, text in files.items():
        if name.endswith((*SCRIPTS, ".yaml", ".yml")) and ("num-layers" in text or "num_layers" in text):
            yield text
