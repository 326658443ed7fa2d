"""Turn what names a run of Primus into the module that trains.

That is an experiment, a script that starts one with words of its own, or a file of Primus's model folder, which runs by
the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import parse_table
from ridgeline.targets.option_reader import tables
from ridgeline.targets.run_files import Around, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files

SCRIPTS = (".sh", ".sbatch", ".slurm")
YAML = (".yaml", ".yml")
DEFAULTS = "pre_trainer.yaml"
WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run.

    module  its framework, model, file of defaults and overrides
    place   what stands around it, the environment that a script sets included
    beside  tables of the experiment's file beside its modules
    notes   what was assumed or left out
    """

    module: Mapping[str, Any]
    name: str
    place: Around
    beside: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())


def sources(files: Files) -> Iterator[Source]:
    """The runs that files name, the first of each kind."""
    place = around(files)
    for table in tables(files, *YAML):
        module = module_of(table.data)
        if module is not None:
            yield Source(module=module, name=table.source, place=place, beside=table.data)
    yield from _scripts(files)
    yield from _model_files(files)


def module_of(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The module of an experiment that trains."""
    modules = data.get("modules")
    for module in modules.values() if isinstance(modules, Mapping) else ():
        if isinstance(module, Mapping) and "framework" in module and "model" in module:
            return module
    return None


def _scripts(files: Files) -> Iterator[Source]:
    """Experiments that scripts start: `primus-cli direct -- train pretrain --config FILE --tp_size 2 ...`."""
    for name, text in files.items():
        if not name.endswith(SCRIPTS) or "primus" not in text.lower():
            continue
        place = around(files)
        script = read_script(text, place)
        for command in script.commands:
            words = _options(command)
            path = words.pop("config", None)
            module = _experiment(place, str(path)) if isinstance(path, str) and path.endswith(YAML) else None
            if module is not None:
                inner = module.get("overrides")
                said = {**(inner if isinstance(inner, Mapping) else {}), **words}
                environment = {**script.environment, **place.environment}
                notes = tuple(f"left out: {note}" for note in dict.fromkeys(script.notes))[:12]
                filled = replace(place, environment=environment)
                yield Source(module={**module, "overrides": said}, name=name, place=filled, notes=notes)
                return


def _experiment(place: Around, path: str) -> Mapping[str, Any] | None:
    text = place.named(path)
    if text is None:
        return None
    try:
        return module_of(parse_table(Path(path), text).data)
    except InputError:
        return None


def _options(command: list[str]) -> dict[str, Any]:
    """`--name value` of a command, names as the files spell them."""
    found: dict[str, Any] = {}
    name = ""
    for word in command:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found[name] = _value(value) if equals else True
            name = "" if equals else name
        elif name:
            found[name] = _value(word)
            name = ""
    return found


def _value(word: str) -> Any:
    if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":  # quotes for the program's own parser
        return word[1:-1]
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    return int(word) if word.lstrip("-").isdigit() and len(word) < 16 else word


def _model_files(files: Files) -> Iterator[Source]:
    """A file of `primus/configs/models/FRAMEWORK`."""
    folder = around(files).folder
    if folder is None or folder.parts[-4:-1] != ("primus", "configs", "models"):
        return
    for table in tables(files, *YAML):
        module = {"framework": folder.name, "config": DEFAULTS, "model": table.source}
        note = "a model file: batch, sequence, mesh and recompute are Primus's defaults"
        yield Source(module=module, name=table.source, place=around(files), notes=(note,))
