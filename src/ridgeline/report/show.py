"""Turn names into entries of the catalogs: catalog words, ids, system names, schedules and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import DTYPES
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.hardware.load import CHIPS, SYSTEMS, chip, system
from ridgeline.models.load import MODELS, model
from ridgeline.models.params import count
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario_file import apply_settings, read_scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.report import catalog


def _chip_rows() -> Iterator[JsonObject]:
    for item in CHIPS.values():
        peaks = {key: number.value for key, number in item.peak.items()}
        numbers = {
            "memory_bytes": item.hbm.capacity, "memory_bytes_per_s": item.hbm.bandwidth,
            "scaleup_bytes_per_s": item.scaleup.bandwidth, "tdp_w": item.tdp,
        }  # fmt: skip
        yield {
            "id": item.id, "vendor": item.vendor, "name": item.name,
            "bf16_flops_per_s": peaks.get("bf16", peaks.get("fp16")), "fp8_flops_per_s": peaks.get("fp8"),
            **{key: number.value if number else None for key, number in numbers.items()},
        }  # fmt: skip


def _model_rows() -> Iterator[JsonObject]:
    for spec in MODELS.values():
        params = count(spec)
        yield {
            "id": spec.id, "params": params.total, "active": params.active, "layers": spec.layers,
            "hidden": spec.hidden, "attention": catalog.mixer_label(spec), "experts": catalog.experts_label(spec),
        }  # fmt: skip


LISTS: Mapping[str, Callable[[], Iterable[JsonObject]]] = {
    "chips": _chip_rows,
    "systems": lambda: (
        {"id": id, "name": template.name, "chip": template.chip, "node": template.node,
         "tiers": " > ".join(f"{tier.name} ({tier.topology.kind})" for tier in template.tier)}
        for id, template in SYSTEMS.items()
    ),
    "models": _model_rows,
    "engines": lambda: (
        {"id": engine.id, "name": engine.name, "launch": engine.launch.mode, "shard": " ".join(engine.supports.shard),
         "overlaps": " ".join(engine.overlaps), "evidence": engine.evidence.label}
        for engine in ENGINES.values()
    ),
    "schedules": lambda: (
        {"id": kind.id, "meaning": kind.meaning, "source": kind.source} for kind in SCHEDULES.values()
    ),
    "dtypes": lambda: (
        {"id": item.id, "bits_per_element": float(item.bits_per_element), "block": item.block, "peak": item.peak}
        for item in DTYPES.values()
    ),
}  # fmt: skip


# -- names ------------------------------------------------------------------------------------------------------------


def show(*names: str, detail: catalog.Detail | None = None, settings: tuple[str, ...] = ()) -> list[JsonObject]:
    """The facts of each name as `ridgeline show --json` prints them, in order; see `entries`.

    >>> facts = show("h100-sxm")[0]
    >>> facts["kind"], facts["numbers"]["peak.bf16"]["value"]
    ('chip', 989000000000000.0)
    """
    return [to_json(entry) for entry in entries(*names, detail=detail, settings=settings)]


def entries(*names: str, detail: catalog.Detail | None = None, settings: tuple[str, ...] = ()) -> list[catalog.Entry]:
    """An entry for each name, in order. A catalog's word (`chips`, `models`, ...) gives one that lists it."""
    detail = detail or catalog.Detail()
    if wrong := list(detail.problems()):
        raise InputError(wrong)
    return [_entry(name, detail, settings) for name in names]


def known_names() -> list[str]:
    """Every name of the catalogs, and the words that list them."""
    return [*LISTS, *CHIPS, *MODELS, *SYSTEMS, *ENGINES, *SCHEDULES]


def _entry(name: str, detail: catalog.Detail, settings: tuple[str, ...]) -> catalog.Entry:
    if name in LISTS:
        _refuse(settings, name)
        return catalog.Listing(of=name, rows=tuple(LISTS[name]()))
    if name.endswith(SUFFIXES) or _is_path(name):
        return _file_entry(Path(name), detail, settings)
    if name in SCHEDULES:
        _refuse(settings, name)
        return catalog.schedule_entry(name, detail)
    if name in CHIPS:
        return _entry_of_kind("chip", name, detail, settings)
    if name in MODELS:
        return _entry_of_kind("model", name, detail, settings)
    if name in ENGINES:
        _refuse(settings, name)
        return catalog.engine_entry(ENGINES[name])
    for kind in ("system", "model"):
        try:
            return _entry_of_kind(kind, name, detail, settings)
        except UnknownId:
            continue
    raise UnknownId("name", name, known_names(), todo="`ridgeline show models` and its kin list what there is")


def _is_path(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # a name no file system takes
        return False


def _entry_of_kind(kind: str, name: str, detail: catalog.Detail, settings: tuple[str, ...]) -> catalog.Entry:
    """The entry of one chip, system or model with the settings that concern it."""
    own_keys = {"chip": ("chip",), "system": ("system", "chip"), "model": ("model",)}[kind]
    _refuse(tuple(setting for setting in settings if setting.split(".")[0].strip() not in own_keys), name)
    data: JsonObject = {kind: name}
    if problems := apply_settings(data, settings):
        raise InputError(problems)
    if kind == "chip":
        return catalog.chip_entry(chip(data["chip"]))
    if kind == "system":
        return catalog.system_entry(system(data["system"], data.get("chip")))
    return catalog.model_entry(model(data["model"]), detail)


def _refuse(settings: tuple[str, ...], name: str) -> None:
    if settings:
        todo = "set chip., system. or model. keys of what is shown, or show a scenario file"
        raise InputError(Problem(path="--set", given=repr(settings[0]), expected=f"a key of {name}", todo=todo))


def _file_entry(path: Path, detail: catalog.Detail, settings: tuple[str, ...]) -> catalog.Entry:
    """A scenario, a chip, a system or a model, told apart by the keys only one of them has."""
    if path.is_dir() or path.suffix.lower() not in SUFFIXES:
        return catalog.model_entry(model(path), detail)
    keys = read_table(path).data
    if {"workload", "plan"} & keys.keys():
        return catalog.ScenarioEntry(scenario=read_scenario(path, settings))
    base, kind = str(keys.get("base", "")), "model"
    if {"tier", "chips", "domain"} & keys.keys():
        kind = "system"
    elif "peak" in keys or base in CHIPS:
        kind = "chip"
    elif base and base not in MODELS:
        kind = "system"
    return _entry_of_kind(kind, str(path), detail, settings)
