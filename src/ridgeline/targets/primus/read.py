"""Turn an experiment of Primus (YAML) into Megatron's words, and those into a scenario's settings.

An experiment names a model file and a file of defaults, each of which extends others, and overrides them. The files are
looked for in the checkout that the experiment stands in; a model whose file is not there is looked up in the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table, parse_table
from ridgeline.core.overlay import overlay as laid_over
from ridgeline.hardware.load import system as load_system
from ridgeline.models.load import model as load_model
from ridgeline.models.names import find_name
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.launch import system_in
from ridgeline.targets.maxtext.read import read_table
from ridgeline.targets.maxtext.read_machine import filled_axes
from ridgeline.targets.megatron.collect import OTHER_WORK, Given
from ridgeline.targets.megatron.read import settings_of
from ridgeline.targets.primus.names import ID, NAMES, OPPOSITE
from ridgeline.targets.primus.read_bridge import adapters, bridge_words, unstated
from ridgeline.targets.primus.read_changes import recomputed, with_adapters
from ridgeline.targets.primus.read_sources import Source, sources
from ridgeline.targets.run_files import Around
from ridgeline.targets.target import Files, Imported
from ridgeline.targets.torchtitan.read import read_job

DEEPEST = 12  # files that extend files
FRAMEWORKS = ("megatron", "torchtitan", "maxtext", "megatron_bridge")
IMAGES = ("diffusion", "hummingbird", "automodel")  # frameworks of Primus that train models of images and video
KINDS = ("gpt", "mamba")  # of Megatron's own models


def recognises(files: Files) -> bool:
    """A YAML file of modules that name a framework and a model, a script that starts one, or a model file of Primus."""
    try:
        return any(True for _ in sources(files))
    except InputError:
        return False


def read(files: Files) -> Imported:
    """The settings of an experiment."""
    for source in sources(files):
        found = _read(source, files)
        return replace(found, assumptions=(*source.notes, *found.assumptions))
    raise InputError(Problem(path="", given=", ".join(files) or "no file", expected="an experiment of Primus"))


def _world(files: Files, place: Around) -> int | None:
    """Ranks of the caller's machine, or of the one that a file written by Ridgeline names."""
    name = system_in(files)
    return place.chips or (load_system(name).chips if name is not None else None)


def _read(source: Source, files: Files) -> Imported:
    module, place = source.module, source.place
    framework = _text(module["framework"], place)
    if any(word in framework for word in IMAGES) or "diffusion" in str(module["model"]).lower():
        given = f"a model of images or video (framework {framework[:40]})"
        raise InputError(Problem(path="", given=given, expected="training of a decoder", where=source.name))
    if framework not in FRAMEWORKS:
        given, expected = f"framework {framework[:40]}", f"framework {', '.join(FRAMEWORKS)}"
        raise InputError(Problem(path="modules", given=given, expected=expected, where=source.name))
    said: dict[str, Any] = {}
    notes: list[str] = []
    model = _text(module["model"], place)
    for kind, name in (("modules", _text(module.get("config", ""), place)), ("models", model)):
        found = _layers(place, (kind, framework), name, 0)
        if found is None:
            notes.append(f"the file {name[:60]}, which is not here")
        said = _over(said, found or {})
    said = {key: value for key, value in said.items() if str(key).replace("_", "-") not in OTHER_WORK}
    inner = module.get("overrides")
    said = _filled(_over(said, inner if isinstance(inner, Mapping) else {}), place)
    if framework == "torchtitan":
        said.setdefault("model", {}).setdefault("flavor", model)
        found_run = read_job(Table(data=said, source=source.name), None)
    elif framework == "maxtext":
        found_run = read_table(filled_axes(Table(data=said, source=source.name), place.chips or 0), place.model)
    elif framework == "megatron_bridge":
        found_run = _bridge(said, source, replace(place, chips=_world(files, place)))
    else:
        found_run = _megatron(said, model, source.name, replace(place, chips=_world(files, place)))
        found_run = replace(found_run, chips=None)
    left = tuple(f"left out: {note}" for note in notes)
    asked = {str(key).replace("_", "-") for key in inner} if isinstance(inner, Mapping) else set()
    unread = tuple(  # thousands of defaults stand in the files: only what an experiment asks for can matter
        replace(part, matters=part.matters and (framework != "megatron" or part.option in asked))
        for part in found_run.unread
    )
    return replace(found_run, target=ID, assumptions=(*left, *found_run.assumptions), unread=unread)


def _megatron(said: Mapping[str, Any], model: str, source: str, place: Around) -> Imported:
    options = dict(_options(said))
    if options.pop("stage", None) == "sft":
        options["sft"] = True
    if place.seq is not None:
        options["seq-length"] = place.seq
    if place.model is not None:
        options["model"] = place.model
    elif options.get("model-type", "gpt") not in KINDS or "lfm-layer-types" in options:
        given = f"layers of {str(options.get('model-type', 'gpt'))[:40]} ({model[:60]})"
        expected, todo = "layers that the options spell", "name the model with --model"
        raise InputError(Problem(path="model_type", given=given, expected=expected, todo=todo, where=source))
    elif "num-layers" not in options and "hybrid-layer-pattern" not in options:
        named = find_name(re.sub(r"\.ya?ml$", "", model).replace("_", "-"))
        if named is not None:
            options["model"] = named[0]
    options.pop("finetune", None)
    ids = options.pop("recompute-layer-ids", None)
    found = settings_of(Given(options=options, source=source, world=place.chips), ID, ID)
    return with_adapters(recomputed(found, ids), said.get("lora"))


def _bridge(said: Mapping[str, Any], source: Source, place: Around) -> Imported:
    options = bridge_words(said, place.model, source.name)
    found = settings_of(Given(options=options, source=source.name, world=place.chips), ID, ID)
    lora, notes = adapters(said, source.beside.get("peft"), has_experts(load_model(options["model"])))
    said_so = (*unstated(said, options), *found.assumptions, *notes)
    return with_adapters(replace(found, assumptions=said_so, chips=None), lora)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    return laid_over(below, above, lambda *_: False)


def _filled(said: Mapping[str, Any], place: Around) -> dict[str, Any]:
    """Tables with what the environment decides filled in."""
    return {
        str(key): _filled(value, place) if isinstance(value, Mapping) else _value(value, place)
        for key, value in said.items()
    }


def _layers(place: Around, at: tuple[str, str], name: str, depth: int) -> dict[str, Any] | None:
    """A file of the software's own configuration, laid over those that it extends."""
    if place.top is None or not name or depth > DEEPEST or ".." in name:
        return None
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    text = place.text(place.top / "primus" / "configs" / at[0] / at[1] / path)
    if text is None:
        return None
    data = parse_table(path, text).data
    found: dict[str, Any] = {}
    for key in ("extends", "includes", "bases"):
        for below in data.get(key) or ():
            found = _over(found, _layers(place, at, str(below), depth + 1) or {})
    return _over(found, {key: value for key, value in data.items() if key not in ("extends", "includes", "bases")})


def _text(value: Any, place: Around) -> str:
    return str(_value(value, place))


def _value(value: Any, place: Around) -> Any:
    """A value with `${NAME:default}` filled in."""
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\$\{(\w+)(?::-?([^}]*))?\}", value)
    if whole is None:
        return re.sub(
            r"\$\{(\w+):-?([^}]*)\}", lambda found: place.environment.get(found.group(1)) or found.group(2), value
        )
    text = place.environment.get(whole.group(1), whole.group(2))
    if text is None:
        return value
    word = {"true": True, "false": False, "null": None, "": None}.get(text.lower(), text)
    if isinstance(word, str) and re.fullmatch(r"-?\d{1,15}", word):
        return int(word)
    return word


def _options(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of Megatron's configuration as options of its command line."""
    for key, value in said.items():
        name = str(key).replace("_", "-")
        if name in OPPOSITE:
            if value is False:
                yield OPPOSITE[name], True
            continue
        if value is None or value is False or isinstance(value, Mapping):
            continue
        yield NAMES.get(name, name), value
    if said.get("use_turbo_deepep") is True:
        yield "moe-token-dispatcher-type", "flex"
        yield "moe-flex-dispatcher-backend", "deepep"
