"""Turn a chip's numbers into area, power and price: bottom up, every coefficient quoted in `technology.toml`.

    cores      peak / (2 FMA clock)                             area of each: transistors / density + its SRAM
    area       cores x spare + cache + memory interfaces + links + host interface
    price      wafer / good dies, memory, package; over what passes the test
    power      idle + flops + bytes of memory and links, each at its energy

Sizes may be numbers or arrays over designs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from math import pi
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, not_among
from ridgeline.core.evidence import Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.core.units import HOUR
from ridgeline.ir.ops import Num

FILE = Path(__file__).with_suffix(".toml")
BITS = 8
WAFER_RADIUS = 150.0  # mm
HOURS_OF_YEAR = 8766
WATTS_OF_KW = 1000
ALPHA = 10.0  # how defects cluster, of the negative binomial yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """Coefficients by their place in the file (`hbm.phy`); those of one node under `node`."""

    node: str
    numbers: Mapping[str, Quoted]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name].value

    def with_factor(self, name: str, factor: float) -> Technology:
        """The same with one coefficient times a factor."""
        number = self.numbers[name]
        changed_number = number.scale_by(factor, f"x {factor:.3g}")
        return Technology(node=self.node, numbers=MappingProxyType({**self.numbers, name: changed_number}))


@cache
def technology(node: str) -> Technology:
    """The coefficients of one node; an unknown node is refused with the known ones."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    if node not in table["node"]:
        raise InputError(not_among("technology.node", node, tuple(table["node"])))
    numbers = {f"{part}.{key}": entry for part, keys in table.items() if part != "node" for key, entry in keys.items()}
    for node_table in (table["node"].get(table["node"][node].get("like", "")), table["node"][node]):
        for key, entry in (node_table or {}).items():
            if isinstance(entry, dict):
                known_entries = (
                    {f"node.{key}": entry} if "value" in entry else {f"{key}.{at}": part for at, part in entry.items()}
                )
                numbers |= known_entries
    return Technology(
        node=node, numbers=MappingProxyType({name: decode(Quoted, entry) for name, entry in numbers.items()})
    )


def with_changes(known_entries: Technology, changes: Mapping[str, Quoted]) -> Technology:
    """The coefficients with those that a study states in their place."""
    for name in changes:
        if name not in known_entries.numbers:
            raise InputError(not_among(f"technology.{name}", name, tuple(known_entries.numbers)))
    return Technology(node=known_entries.node, numbers=MappingProxyType({**known_entries.numbers, **changes}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSizes:
    """What a chip's area, power and price follow from; numbers or arrays.

    flops_per_s   dense, 16 bits
    scale_up, scale_out, memory_rate   bytes/s      capacity, cache   bytes
    """

    flops_per_s: Num
    memory_rate: Num
    capacity: Num
    cache: Num
    scale_up: Num
    scale_out: Num


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipCost:
    """Area in mm2, watts at full load, dollars to make, dollars of a network endpoint; by part of the area."""

    area_mm2: Array
    power_w: Array
    made_usd: Array
    network_usd: Array
    area_parts: Mapping[str, Array]


def chip_cost(sizes: ChipSizes, tech: Technology) -> ChipCost:
    """Area, power and cost of a chip, or of many.

    >>> rates = {"flops_per_s": 312e12, "memory_rate": 2.04e12, "scale_up": 300e9, "scale_out": 25e9}
    >>> a100 = ChipSizes(**rates, capacity=80e9, cache=40e6)
    >>> found = chip_cost(a100, technology("n7"))
    >>> round(float(found.area_mm2)), round(float(found.power_w))     # published: 826 mm2, 400 W
    (833, 285)
    """
    parts = _areas(sizes, tech)
    area = np.asarray(sum(parts.values()))
    memory_w = sizes.memory_rate * tech["hbm.energy_per_byte"]
    link_w = 2 * sizes.scale_up * tech["link.energy_per_byte"]
    power = tech["chip.idle_power"] + sizes.flops_per_s * tech["chip.energy_per_flop"] + memory_w + link_w
    made_usd = (die_usd(area, tech) + sizes.capacity * tech["hbm.price_per_byte"] + tech["chip.package"]) / tech[
        "chip.tested"
    ]
    network = sizes.scale_up * tech["link.price_per_rate"] + sizes.scale_out / tech[
        "link.endpoint_rate"
    ] * endpoint_usd(2, tech)
    return ChipCost(
        area_mm2=area,
        power_w=np.asarray(power),
        made_usd=np.asarray(made_usd),
        network_usd=np.asarray(network),
        area_parts=MappingProxyType({name: np.asarray(part) for name, part in parts.items()}),
    )


def _areas(sizes: ChipSizes, tech: Technology) -> dict[str, Num]:
    density, bit = tech["node.logic"], tech["node.sram_bit"] / tech["core.sram_efficiency"]
    cores = sizes.flops_per_s / (2 * tech["core.fmas"] * tech["core.clock"]) * tech["core.spare"]
    logic = tech["core.fixed_transistors"] + tech["core.fmas"] * tech["core.transistors_per_fma"]
    per_core = logic / density + tech["core.sram_bytes"] * BITS * bit
    stacks = sizes.memory_rate / tech["hbm.stack_rate"]
    interface = tech["hbm.phy"] + tech["hbm.controller_transistors"] / density
    links = sizes.scale_up * (tech["link.phy_per_rate"] + tech["link.controller_per_rate"] / density)
    return {
        "cores": cores * per_core,
        "cache": sizes.cache * BITS * bit * tech["core.cache_spare"],
        "memory interfaces": stacks * interface,
        "links": links,
        "host interface": tech["host.area"],
    }


# switches and links between switches of one endpoint, by topology and radix 64; a fat tree follows from its levels
TOPOLOGIES = MappingProxyType({"slim-fly": (1568 / 32928, 1.0), "dragonfly": (16352 / 261632, 384272 / 261632)})


def endpoint_usd(levels: int | str, tech: Technology) -> float:
    """Dollars of switches and cables of one endpoint: of a fat tree of so many levels, or of a topology by name.

        fat tree: (2 L - 1) / k switches and L - 1 links between switches an endpoint       k = ports of a switch

    The planes of a multi-plane network are fat trees beside each other: each endpoint has one port in one of them.

    >>> [round(endpoint_usd(what, technology("n4"))) for what in (2, 3, "slim-fly", "dragonfly")]
    [4394, 7490, 4455, 5926]
    """
    if isinstance(levels, str):
        switches, links = TOPOLOGIES[levels]
    else:
        switches, links = (2 * levels - 1) / tech["link.radix"], levels - 1.0
    return switches * tech["link.switch"] + links * tech["link.switch_link"]


def die_usd(area: Num, tech: Technology) -> Num:
    """Dollars of good silicon of so much area: dies as large as the reticle at most, a wafer over those that work.

        dies = pi r^2 / a - pi 2 r / sqrt(2 a)          yield = (1 + a d / alpha) ^ -alpha

    >>> f"{float(die_usd(814.0, technology('n4'))):.0f}"
    '585'
    """
    number = np.ceil(area / tech["chip.reticle"])
    die_area = area / number
    dies = pi * WAFER_RADIUS**2 / die_area - pi * 2 * WAFER_RADIUS / np.sqrt(2 * die_area)
    works = (1 + die_area * tech["node.defects"] / ALPHA) ** -ALPHA
    return number * tech["node.wafer"] / (dies * works)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What an hour of a chip costs: its price and its share of network and host over their life, and power.

    margin   the price of a chip over what it costs to make: such that the base chip costs what the catalog says
    """

    margin: float
    years: float
    usd_per_kwh: float
    pue: float
    host_usd: float
    host_w: float

    def usd_per_hour(self, cost: ChipCost) -> Array:
        """Dollars an hour of one chip."""
        capital = cost.made_usd * self.margin + cost.network_usd + self.host_usd
        watts = (cost.power_w + self.host_w) * self.pue
        return np.asarray(capital / (self.years * HOURS_OF_YEAR) + watts / WATTS_OF_KW * self.usd_per_kwh)


def tariff_of(base: ChipCost, usd_per_hour: float | None, tech: Technology) -> Tariff:
    """The tariff under which a base chip costs so much an hour; a margin of 1 at least, 4 where no price is known."""
    free = Tariff(
        margin=0.0,
        years=tech["money.years"],
        usd_per_kwh=tech["money.tariff"],
        pue=tech["money.pue"],
        host_usd=tech["host.price"],
        host_w=tech["host.power"],
    )
    if usd_per_hour is None:
        margin = USUAL_MARGIN
    else:
        left_usd = usd_per_hour - float(free.usd_per_hour(base))
        margin = max(1.0, left_usd * free.years * HOURS_OF_YEAR / float(base.made_usd))
    return Tariff(
        margin=margin,
        years=free.years,
        usd_per_kwh=free.usd_per_kwh,
        pue=free.pue,
        host_usd=free.host_usd,
        host_w=free.host_w,
    )


USUAL_MARGIN = 4.0  # price over cost of a data-centre chip where no price is known, assumed


def amortized_usd(price: float, hours: float, orders_of_magnitude_per_year: float = 0.14) -> float:
    """What a chip loses of its price in so many hours of use, prices of equal performance falling exponentially.

        price (1 - 10^(-r t))       r = 0.14 orders of magnitude a year (Epoch AI, dollar cost of training, 2024)

    >>> round(amortized_usd(30_000, 8766))
    8267
    """
    return price * (1 - 10 ** (-orders_of_magnitude_per_year * hours / HOURS_OF_YEAR))


def seconds_usd(usd_per_hour: Num, seconds: Num) -> Num:
    """Dollars of so many seconds."""
    return usd_per_hour * seconds / HOUR
