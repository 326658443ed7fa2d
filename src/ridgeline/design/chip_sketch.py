"""Turn eight fields of a chip into a Chip: what nobody gave follows by a rule that is said, and counts as assumed.

given     name, flops (dense bf16), memory, bandwidth, scaleup, domain, scaleout, power      (and a base chip)
derived   other formats, vector units, usable memory, price, cores, host link
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.units import parse_quantity
from ridgeline.design.design_answer import DerivedField
from ridgeline.design.technology import ChipSizes, Technology, chip_cost, tariff_of
from ridgeline.hardware.chip import Chip, Link
from ridgeline.hardware.load import CHIPS, rated_power
from ridgeline.hardware.system import System

EIGHT: Mapping[str, str] = MappingProxyType(
    {
        "name": "a name",
        "flops": "FLOP/s",
        "memory": "B",
        "bandwidth": "B/s",
        "scaleup": "B/s",
        "domain": "chips",
        "scaleout": "B/s",
        "power": "W",
    }
)
"""The fields of a new chip, with their units; `base` names the chip of the catalog that it is like."""
USUAL_CACHE = 50e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedChip:
    """A chip of eight fields, and what was derived."""

    chip: Chip
    domain: int
    derived_fields: tuple[DerivedField, ...]


def sketch_chip(table: JsonMapping, tech: Technology) -> SketchedChip:
    """The chip that eight fields mean, like its base chip in all that they do not say.

    >>> from ridgeline.design.technology import technology
    >>> fields = {"base": "h100-sxm", "name": "next", "flops": "2 PFLOP/s", "memory": "192 GB", "bandwidth": "8 TB/s",
    ...     "scaleup": "900 GB/s", "domain": 72, "scaleout": "800 Gbit/s", "power": "1 kW"}
    >>> made = sketch_chip(fields, technology("n4"))
    >>> made.chip.peak["fp8"].value / 1e15, [entry.field for entry in made.derived_fields][:3]
    (4.002022244691608, ['peak.fp64', 'peak.fp32', 'peak.tf32'])
    """
    base = CHIPS[str(table.get("base", "h100-sxm"))]
    _refuse_fields(table)
    given_numbers = {
        name: _given_number(name, table[name], unit) for name, unit in EIGHT.items() if name not in ("name", "domain")
    }
    rules = Derivation(base=base.id, derived_fields=[])
    new_chip = _derived_chip(base, str(table["name"]), given_numbers, rules)
    price = _price(new_chip, base, tech)
    hour = Quoted(value=price.value, evidence=Evidence.ASSUMED, source=price.rule)
    derived_fields = (*rules.derived_fields, price)
    domain = table["domain"]
    if not isinstance(domain, int) or isinstance(domain, bool) or domain < 1:
        raise InputError(Problem(path="chip.domain", given=repr(domain)[:40], expected="a number of chips, above 0"))
    return SketchedChip(chip=replace(new_chip, price=hour), domain=domain, derived_fields=derived_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """Numbers that follow from a base chip's, and the list of them with their rules."""

    base: str
    derived_fields: list[DerivedField]

    def derive(self, field: str, number: Quoted | None, factor: float, unit: str, rule: str) -> Quoted | None:
        """A number of the base chip times a factor; None where it has none."""
        if number is None:
            return None
        value = number.value * factor
        entry = DerivedField(field=field, value=value, unit=unit, rule=rule, source=number.source)
        self.derived_fields.append(entry)
        return Quoted(value=value, evidence=Evidence.ASSUMED, source=f"{self.base}: {rule}")


def _derived_chip(base: Chip, name: str, numbers: Mapping[str, Quoted], rules: Derivation) -> Chip:
    """The base chip with the numbers given, and those that follow from them."""
    ratio = numbers["flops"].value / base.peak["bf16"].value
    as_flops, derive = f"as dense bf16: x {ratio:.3g} of {base.id}", rules.derive
    peak = {
        key: numbers["flops"] if key == "bf16" else derive(f"peak.{key}", number, ratio, "FLOP/s", as_flops)
        for key, number in base.peak.items()
    }
    usable = base.hbm.usable
    if usable is not None and base.hbm.capacity is not None:
        share = numbers["memory"].value / base.hbm.capacity.value
        usable = derive("hbm.usable", usable, share, "B", f"the share that the driver leaves of {base.id}'s")
    host = derive("host.bandwidth", base.host.bandwidth, 1.0, "B/s", f"as {base.id}")
    return replace(
        base,
        id=name,
        name=name,
        calibrated_as=base.fitted_id,
        peak=MappingProxyType({key: number for key, number in peak.items() if number is not None}),
        hbm=replace(base.hbm, capacity=numbers["memory"], usable=usable, bandwidth=numbers["bandwidth"]),
        vector=derive("vector", base.vector, ratio, "FLOP/s", as_flops),
        exponentials=derive("exponentials", base.exponentials, ratio, "Hz", as_flops),
        cores=derive("cores", base.cores, 1.0, "", f"as {base.id}: larger cores, not more of them"),
        scaleup=Link(kind=base.scaleup.kind, bandwidth=numbers["scaleup"]),
        scaleout=Link(kind=base.scaleout.kind, bandwidth=numbers["scaleout"]),
        host=Link(kind=base.host.kind, bandwidth=host),
        tdp=numbers["power"],
        price=None,
        notes="",
    )


def _refuse_fields(table: JsonMapping) -> None:
    for name in table:
        if name not in (*EIGHT, "base"):
            raise InputError(not_among(f"chip.{name}", str(name), (*EIGHT, "base"), "remove it"))
    missing = [name for name in EIGHT if name not in table]
    if missing:
        todo = f"add {', '.join(missing)}"
        raise InputError(Problem(path="chip", given=f"no {missing[0]}", expected="eight fields", todo=todo))


def _given_number(name: str, value: object, unit: str) -> Quoted:
    if not isinstance(value, str):
        raise InputError(
            Problem(path=f"chip.{name}", given=repr(value)[:60], expected=f'a quantity such as "1 {unit}"')
        )
    number = parse_quantity(value, unit)
    if not 0 < number < float("inf"):
        raise InputError(Problem(path=f"chip.{name}", given=repr(value)[:60], expected="a number above 0"))
    return Quoted(value=number, evidence=Evidence.ASSUMED, source="the study")


def sizes_of(chip: Chip) -> ChipSizes:
    """What a chip's area, power and price follow from."""
    wide = chip.peak.get("bf16") or chip.peak["fp16"]
    return ChipSizes(
        flops_per_s=wide.value,
        memory_rate=chip.need("hbm.bandwidth").value,
        capacity=chip.need("hbm.capacity").value,
        cache=chip.cache.capacity.value if chip.cache.capacity else USUAL_CACHE,
        scale_up=chip.scaleup.bandwidth.value if chip.scaleup.bandwidth else 0.0,
        scale_out=chip.scaleout.bandwidth.value if chip.scaleout.bandwidth else 0.0,
    )


def _price(new_chip: Chip, base: Chip, tech: Technology) -> DerivedField:
    """Dollars an hour: as the base chip's price follows from its cost, so does the new chip's."""
    before = chip_cost(sizes_of(base), tech)
    tariff = tariff_of(before, base.price.value if base.price else None, tech)
    after = chip_cost(sizes_of(new_chip), tech)
    power = rated_power(new_chip)
    hour = tariff.usd_per_hour(replace(after, power_w=after.power_w * 0 + (power.value if power else 0.0)))
    rule = f"cost to make x {tariff.margin:.3g}, which is {base.id}'s price over its cost, and network, host, power"
    source = "technology.toml"
    return DerivedField(field="price", value=float(hour), unit="USD/h", rule=rule, source=source)


def with_chip(system: System, sketched: SketchedChip) -> System:
    """A system whose chips are the new ones: links of its tiers are theirs, and its first domain as large as theirs
    allows."""
    chip, tiers = sketched.chip, []
    for place, tier in enumerate(system.tiers):
        rate = chip.scaleup.bandwidth if place == 0 else chip.scaleout.bandwidth
        size = max(tier.chips, min(sketched.domain, system.chips)) if place == 0 else tier.chips
        tiers.append(replace(tier, bandwidth=rate, chips=size))
    outer_tiers = [tier for place, tier in enumerate(tiers) if place == 0 or tier.chips > tiers[0].chips]
    return replace(system, chip=chip, tiers=tuple(outer_tiers))
