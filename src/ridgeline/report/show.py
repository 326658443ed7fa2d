"""Turn names into sheets of facts: catalog words, ids, system names, schedules and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import DTYPES
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.hardware.load import CHIPS, SYSTEMS, chip, system
from ridgeline.models.load import MODELS, model
from ridgeline.models.params import count
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.plan.schedules import SCHEDULES, build, requirement
from ridgeline.plan.settings import apply_settings
from ridgeline.report.catalog_sheets import (
    Detail,
    Sheet,
    chip_sheet,
    engine_sheet,
    experts_label,
    mixer_label,
    model_sheet,
    scenario_sheet,
    schedule_sheet,
    system_sheet,
)


def show(*names: str, detail: Detail | None = None, settings: tuple[str, ...] = ()) -> list[Sheet]:
    """A sheet for each name, in order. A catalog's word (`chips`, `models`, ...) gives one sheet that lists it.

    >>> sheet = show("h100-sxm")[0]
    >>> sheet["kind"], sheet["numbers"]["peak.bf16"]["value"]
    ('chip', 989000000000000.0)
    """
    asked = detail or Detail()
    wrong = list(asked.problems())
    if wrong:
        raise InputError(wrong)
    return [_entry_sheet(name, asked, settings) for name in names]


def known_names() -> list[str]:
    """Every name of the catalogs, and the words that list them."""
    return [*LISTS, *CHIPS, *MODELS, *SYSTEMS, *ENGINES, *SCHEDULES]


def _entry_sheet(name: str, detail: Detail, settings: tuple[str, ...]) -> Sheet:
    if name in LISTS:
        _refuse(settings, name)
        return {"kind": "list", "of": name, "rows": LISTS[name]()}
    if name.endswith(SUFFIXES) or _is_path(name):
        return _file(Path(name), detail, settings)
    if name in SCHEDULES:
        _refuse(settings, name)
        return _schedule(name, detail)
    if name in CHIPS:
        return _sheet_of_kind("chip", name, detail, settings)
    if name in MODELS:
        return _sheet_of_kind("model", name, detail, settings)
    if name in ENGINES:
        _refuse(settings, name)
        return engine_sheet(ENGINES[name])
    for kind in ("system", "model"):
        try:
            return _sheet_of_kind(kind, name, detail, settings)
        except UnknownId:
            continue
    raise UnknownId("name", name, known_names(), todo="`ridgeline show models` and its kin list what there is")


def _is_path(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # a name no file system takes
        return False


def _sheet_of_kind(kind: str, name: str, detail: Detail, settings: tuple[str, ...]) -> Sheet:
    """The sheet of one chip, system or model with the settings that concern it."""
    concerned = {"chip": ("chip",), "system": ("system", "chip"), "model": ("model",)}[kind]
    _refuse(tuple(setting for setting in settings if setting.split(".")[0].strip() not in concerned), name)
    data: JsonObject = {kind: name}
    problems = apply_settings(data, settings)
    if problems:
        raise InputError(problems)
    if kind == "chip":
        return chip_sheet(chip(data["chip"]))
    if kind == "system":
        return system_sheet(system(data["system"], data.get("chip")))
    return model_sheet(model(data["model"]), detail)


def _refuse(settings: tuple[str, ...], name: str) -> None:
    if settings:
        todo = "set chip., system. or model. keys of what is shown, or show a scenario file"
        raise InputError(Problem(path="--set", given=repr(settings[0]), expected=f"a key of {name}", todo=todo))


def _file(path: Path, detail: Detail, settings: tuple[str, ...]) -> Sheet:
    """A scenario, a chip, a system or a model, told apart by the keys only one of them has."""
    if path.is_dir() or path.suffix.lower() not in SUFFIXES:
        return model_sheet(model(path), detail)
    keys = read_table(path).data
    if {"workload", "plan"} & keys.keys():
        return scenario_sheet(read_scenario(path, settings))
    base = str(keys.get("base", ""))
    if {"tier", "chips", "domain"} & keys.keys():
        return _sheet_of_kind("system", str(path), detail, settings)
    if "peak" in keys or base in CHIPS:
        return _sheet_of_kind("chip", str(path), detail, settings)
    if base and base not in MODELS:
        return _sheet_of_kind("system", str(path), detail, settings)
    return _sheet_of_kind("model", str(path), detail, settings)


def _schedule(name: str, detail: Detail) -> Sheet:
    reason = requirement(name, detail.stages, detail.microbatches, detail.chunks)
    if reason:
        size = f"{detail.stages} stages, {detail.microbatches} microbatches, {detail.chunks or 'its own'} chunks"
        raise InputError(Problem(path=name, given=size, expected=reason, todo="set --stages, --microbatches, --chunks"))
    return schedule_sheet(build(name, stages=detail.stages, microbatches=detail.microbatches, chunks=detail.chunks))


def _chips() -> list[Sheet]:
    rows = []
    for item in CHIPS.values():
        peaks = {key: number.value for key, number in item.peak.items()}
        memory, power = item.hbm, item.tdp
        rows.append(
            {
                "id": item.id,
                "vendor": item.vendor,
                "name": item.name,
                "bf16_flops_per_s": peaks.get("bf16", peaks.get("fp16")),
                "fp8_flops_per_s": peaks.get("fp8"),
                "memory_bytes": memory.capacity.value if memory.capacity else None,
                "memory_bytes_per_s": memory.bandwidth.value if memory.bandwidth else None,
                "scaleup_bytes_per_s": item.scaleup.bandwidth.value if item.scaleup.bandwidth else None,
                "tdp_w": power.value if power else None,
            }
        )
    return rows


def _systems() -> list[Sheet]:
    return [
        {
            "id": id,
            "name": template.name,
            "chip": template.chip,
            "node": template.node,
            "tiers": " > ".join(f"{tier.name} ({tier.topology.kind})" for tier in template.tier),
        }
        for id, template in SYSTEMS.items()
    ]


def _models() -> list[Sheet]:
    rows = []
    for spec in MODELS.values():
        params = count(spec)
        rows.append(
            {
                "id": spec.id,
                "params": params.total,
                "active": params.active,
                "layers": spec.layers,
                "hidden": spec.hidden,
                "attention": mixer_label(spec),
                "experts": experts_label(spec),
            }
        )
    return rows


def _engines() -> list[Sheet]:
    return [
        {
            "id": engine.id,
            "name": engine.name,
            "launch": engine.launch.mode,
            "shard": " ".join(engine.supports.shard),
            "overlaps": " ".join(engine.overlaps),
            "evidence": engine.evidence.label,
        }
        for engine in ENGINES.values()
    ]


def _schedules() -> list[Sheet]:
    return [{"id": kind.id, "meaning": kind.meaning, "source": kind.source} for kind in SCHEDULES.values()]


def _dtypes() -> list[Sheet]:
    return [
        {"id": item.id, "bits_per_element": float(item.bits_per_element), "block": item.block, "peak": item.peak}
        for item in DTYPES.values()
    ]


LISTS: Mapping[str, Callable[[], list[Sheet]]] = {
    "chips": _chips,
    "systems": _systems,
    "models": _models,
    "engines": _engines,
    "schedules": _schedules,
    "dtypes": _dtypes,
}
