"""Turn a name, a file or a table into a chip or a system; the catalogs load an entry when it is first asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.catalog import Catalog, overlay
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.files import SUFFIXES, path_beside, read_layers
from ridgeline.core.table import decode, given_text
from ridgeline.hardware.chip import Chip, read_chip
from ridgeline.hardware.system import System, SystemRequest, SystemTemplate, Tier, build
from ridgeline.hardware.topology import Torus

FOLDER = Path(__file__).parent / "catalog"
BIGGEST_SYSTEM = 10_000_000  # chips
SAME_CHIP = {"id", "name", "notes", "price", "tdp"}  # keys that leave a chip what it is
WITH_CAPACITY = "the share of the capacity given that the driver leaves of the catalog's"
_NAME = re.compile(r"(?:(\d{1,9})x)?([A-Za-z0-9][\w.-]*?)(?::(\d{1,6}(?:x\d{1,6})*))?")


def _template(id: str, table: JsonObject) -> SystemTemplate:
    entries = {key: value for key, value in table.items() if key != "aliases"}
    return decode(SystemTemplate, {"id": id, **entries})


CHIPS: Catalog[Chip] = Catalog("chip", FOLDER / "chips", read_chip)
SYSTEMS: Catalog[SystemTemplate] = Catalog("system", FOLDER / "systems", _template)


@cache
def sources() -> Mapping[str, str]:
    """What each source id of the catalog stands for."""
    import tomllib

    with (FOLDER / "sources.toml").open("rb") as stream:
        return MappingProxyType({id: entry["text"] for id, entry in tomllib.load(stream).items()})


def rated_power(chip: Chip) -> Quoted | None:
    """A chip's TDP; where nobody publishes it the highest of its family, as an assumption; None where nobody has one.

    The one number that is taken from other chips: without it a chip would count as one of another family.

    >>> power = rated_power(CHIPS["h800-sxm"])
    >>> power.value, power.evidence.label, power.note
    (700.0, 'assumed', 'the highest of the hopper family: not published for h800-sxm')
    """
    if chip.tdp is not None or not chip.family:
        return chip.tdp
    family_power = _family_power(chip.family)
    note = f"the highest of the {chip.family} family: not published for {chip.id}"
    return family_power and replace(family_power, evidence=Evidence.ASSUMED, note=note, conflicts=())


@cache
def _family_power(family: str) -> Quoted | None:
    """The highest published TDP of a family; chips of other families are not decoded."""
    relatives = [CHIPS[id] for id in CHIPS.with_key("family", f'"{family}"')]
    powers = [chip.tdp for chip in relatives if chip.tdp is not None]
    return max(powers, key=lambda tdp: tdp.value, default=None)


def chip(ref: str | Path | JsonMapping) -> Chip:
    """A chip by id or alias, by TOML file, or by table; `base = ID` starts a table from a catalog entry.

    >>> chip({"base": "h100-sxm", "hbm": {"bandwidth": "8 TB/s"}}).hbm.bandwidth.value
    8000000000000.0
    """
    if isinstance(ref, Mapping):
        table = dict(ref)
        base = table.pop("base", None)
        if base is None:
            return read_chip(str(table.pop("id", "custom")), table, "chip")
        if str(base).endswith(SUFFIXES):
            return chip({"id": Path(base).stem, **merge(read_layers(Path(base), merge).data, table)})
        catalog_chip = CHIPS[str(base)]
        if not table:
            return catalog_chip
        known = CHIPS.table(catalog_chip.id)
        if not table.keys() <= SAME_CHIP:  # nobody sells the chip that this one becomes
            known = {key: value for key, value in known.items() if key != "price"}
        return _with_capacity(read_chip(catalog_chip.id, merge(known, table), "chip"), catalog_chip, table)
    if isinstance(ref, Path) or ref.endswith(SUFFIXES):
        return chip({"id": Path(ref).stem, **read_layers(Path(ref), merge).data})
    return CHIPS[ref]


def _with_capacity(made: Chip, known: Chip, given: JsonMapping) -> Chip:
    """What a driver leaves of memory, scaled where another capacity is given and nothing is said of what is usable."""
    memory, hbm_table = known.hbm, given.get("hbm")
    if not isinstance(hbm_table, Mapping) or "capacity" not in hbm_table or "usable" in hbm_table:
        return made
    if memory.usable is None or memory.capacity is None or made.hbm.capacity is None:
        return made
    usable = memory.usable.scale_by(made.hbm.capacity.value / memory.capacity.value, WITH_CAPACITY)
    return replace(made, hbm=replace(made.hbm, usable=usable))


def system(ref: str | Path | JsonMapping, chip_overrides: JsonMapping | None = None) -> System:
    """A system by name (`64xh100-sxm`, `256xgb200-nvl72`, `tpu-v5p:8x8x8`, `dgx-h100`), by TOML file, or by table.

    A table is either a template with its number of `chips`, or `base = NAME` with what differs; `domain` says how many
    chips of an innermost domain are used. `chip_overrides` are merged into the chip's own table.
    """
    if isinstance(ref, Mapping):
        return _from_table(dict(ref), chip_overrides or {})
    if not isinstance(ref, (str, Path)):
        raise InputError(
            Problem(path="system", given=given_text(ref), expected="a name such as 64xh100-sxm, a path or a table")
        )
    if isinstance(ref, Path) or ref.endswith(SUFFIXES):
        return _from_table(system_table(Path(ref)), chip_overrides or {})
    template, request = parse_name(ref)
    return build(template, _modify_chip(template.chip, chip_overrides or {}), request)


def resize_name(ref: str, chips: int) -> str | JsonObject:
    """What names the same system with another number of chips; a torus takes the shape that suits the number.

    >>> resize_name("64xh100-sxm", 128), resize_name("h100-sxm", 8), resize_name("tpu-v5p:8x8x8", 256)
    ('128xh100-sxm', '8xh100-sxm', '256xtpu-v5p')
    """
    if ref.endswith(SUFFIXES):
        return {"base": ref, "chips": chips}
    match = _NAME.fullmatch(ref)
    return f"{chips}x{match.group(2) if match else ref}"


def subsystem(whole: System, chips: int) -> System:
    """So many chips of a system, as near each other as they can be; chips and links as they are there.

    >>> part = subsystem(system("64xh100-sxm"), 16)
    >>> part.chips, [tier.chips for tier in part.tiers]
    (16, [8, 16])
    """
    name = resize_name(whole.name, chips)
    part_name = name if isinstance(name, str) else f"{chips} chips of {whole.name}"
    if whole.template in SYSTEMS and any(isinstance(tier.topology, Torus) for tier in whole.tiers):
        request = SystemRequest(name=part_name, chips=chips)
        return replace(build(SYSTEMS[whole.template], whole.chip, request), host_memory=whole.host_memory)
    tiers: list[Tier] = []
    for tier in whole.tiers:
        if (tiers[-1].chips if tiers else 1) < chips:
            tiers.append(replace(tier, chips=min(tier.chips, chips)))
    return replace(whole, name=part_name, chips=chips, node=min(whole.node, chips), tiers=tuple(tiers))


def parse_name(name: str) -> tuple[SystemTemplate, SystemRequest]:
    """The template and size that a short name means; a chip's name stands for the system it usually comes in."""
    match = _NAME.fullmatch(name)
    count, stem, shape = match.groups() if match else (None, name, None)
    if stem in CHIPS:
        catalog_chip = CHIPS[stem]
        template, one_chip = SYSTEMS[catalog_chip.system], 1
        if catalog_chip.id != template.chip:
            raise InputError(f"chip {catalog_chip.id} names system {template.id}, which holds {template.chip}")
    elif stem in SYSTEMS:
        template = SYSTEMS[stem]
        one_chip = template.node
    else:
        raise UnknownId("system", name, [*CHIPS, *SYSTEMS], todo="write COUNTxCHIP, for example 64xh100-sxm")
    chips = int(count) if count else None
    sizes = tuple(int(size) for size in shape.split("x")) if shape else ()
    if chips == 0 or 0 in sizes or (chips or 1) > BIGGEST_SYSTEM:
        raise InputError(Problem(path="system", given=repr(name), expected=f"1 to {BIGGEST_SYSTEM:,} chips"))
    return template, SystemRequest(name=name, chips=chips or (None if sizes else one_chip), shape=sizes)


def system_table(path: Path) -> JsonObject:
    """A system file as a table; a chip file it names must lie in its own folder and is read in."""
    table = {"name": path.stem, **read_layers(path, merge).data}
    inner = table.get("chip")
    if isinstance(inner, str) and inner.endswith(SUFFIXES):
        target = path_beside(path, inner, "system.chip")
        table["chip"] = {"id": target.stem, **read_layers(target, merge).data}
    return table


def _from_table(table: JsonObject, chip_overrides: JsonMapping) -> System:
    base = table.pop("base", None)
    if isinstance(base, str) and base.endswith(SUFFIXES):
        return _from_table(merge(system_table(Path(base)), table), chip_overrides)
    chips, domain = (_whole_number(table.pop(key, None), f"system.{key}") for key in ("chips", "domain"))
    if base is not None:
        template, request = parse_name(str(base) if chips is None else str(resize_name(str(base), chips)))
        raw = {"id": template.id, **merge(SYSTEMS.table(template.id), table)}
        request = replace(request, domain=domain)
    elif chips is None:
        expected_text = f"1 to {BIGGEST_SYSTEM:,} chips"
        raise InputError(Problem(path="system.chips", given="nothing", expected=expected_text, todo="add chips"))
    else:
        raw, request = dict(table), SystemRequest(name=str(table.get("name", "custom")), chips=chips, domain=domain)
    inner = raw.get("chip")
    if isinstance(inner, Mapping):
        raw["chip"], chip_overrides = inner.get("base", inner.get("id", "custom")), merge(dict(inner), chip_overrides)
        chip_overrides = {key: value for key, value in chip_overrides.items() if key != "id"}
    raw.pop("aliases", None)
    template = decode(SystemTemplate, {"id": str(raw.get("name", "custom")), **raw}, "system")
    return build(template, _modify_chip(template.chip, chip_overrides), request)


def _whole_number(value: object, path: str) -> int | None:
    """A number of chips as a table writes it; None where it does not."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BIGGEST_SYSTEM:
        raise InputError(Problem(path=path, given=given_text(value), expected=f"1 to {BIGGEST_SYSTEM:,} chips"))
    return value


def _modify_chip(id: str, overrides: JsonMapping) -> Chip:
    if id in CHIPS:
        return chip({**overrides, "base": id})
    if {"name", "vendor", "hbm"} <= set(overrides):
        return chip({"id": id, "system": "", **{key: value for key, value in overrides.items() if key != "base"}})
    return CHIPS[id]  # raises UnknownId with near matches


def merge(base: JsonMapping, over: JsonMapping) -> JsonObject:
    """`base` with the keys of `over` laid upon it; a table with a value of its own is another quotation."""
    return overlay(base, over, lambda _, above: "value" in above, "system")
