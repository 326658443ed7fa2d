"""Turn a study into a DesignSpace: any number of its designs priced at once, each workload by the best of its plans.

A design is a place in the grid of the study's axes. Its numbers move columns of `sim.MachineRows`, its area, power and
price follow from the technology, and a plan counts where its memory fits. The scale-up domain changes which ranks share
fast links, so every domain of the study has machines of its own; all other numbers are columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.dtype import PEAKS
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.design.capacity import needed_bytes
from ridgeline.design.chip_sketch import sizes_of, sketch_chip, with_chip
from ridgeline.design.design_answer import DerivedField
from ridgeline.design.study import DesignStudy, StudyWorkload
from ridgeline.design.technology import (
    ChipCost,
    ChipSizes,
    Tariff,
    Technology,
    chip_cost,
    tariff_of,
    technology,
    with_changes,
)
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.system import System
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import capacity_of
from ridgeline.sim.batches import MachineRows, RowTimes

Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCosts:
    """What designs cost: mm2, watts and dollars of a chip, dollars an hour of a chip with its share of the rest."""

    area_mm2: Array
    power_w: Array
    price_usd: Array
    usd_per_hour: Array

    def at(self, rows: Index | Mask) -> DesignCosts:
        """Some of the designs."""
        return DesignCosts(
            area_mm2=self.area_mm2[rows],
            power_w=self.power_w[rows],
            price_usd=self.price_usd[rows],
            usd_per_hour=self.usd_per_hour[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDesigns:
    """Seconds of every workload on every design by its best plan (infinite where none fits), and which plan that is."""

    seconds: Array
    plan: Index


class DesignSpace:
    """The designs of a study, priced where asked."""

    def __init__(self, study: DesignStudy) -> None:
        self.study = study
        self.tech: Technology = with_changes(technology(study.node), study.technology)
        self.derived_fields: tuple[DerivedField, ...] = ()
        self.workloads = self._with_study_chip(study.workloads)
        self.chip = self._one_chip()
        self.base_cost: ChipCost = chip_cost(sizes_of(self.chip), self.tech)
        price, power = self.chip.price, rated_power(self.chip)
        rated_power_w = replace(self.base_cost, power_w=np.asarray(power.value)) if power else self.base_cost
        self.tariff: Tariff = tariff_of(rated_power_w, price.value if price else None, self.tech)
        self.weights = np.array([entry.weight for entry in self.workloads])

    def _with_study_chip(self, workloads: Sequence[StudyWorkload]) -> tuple[StudyWorkload, ...]:
        if self.study.chip is None:
            return tuple(workloads)
        sketch = sketch_chip(self.study.chip, self.tech)
        self.derived_fields = sketch.derived_fields
        return tuple(
            replace(
                entry,
                scenarios=tuple(
                    replace(own_values, system=with_chip(own_values.system, sketch)) for own_values in entry.scenarios
                ),
            )
            for entry in workloads
        )

    def _one_chip(self) -> Chip:
        chips = {
            own_values.system.chip.id: own_values.system.chip
            for entry in self.workloads
            for own_values in entry.scenarios
        }
        if len(chips) != 1:
            todo = "name systems of the same chip in every scenario"
            given_names = ", ".join(chips) or "no workload"
            raise InputError(
                Problem(path="workload", given=given_names, expected="one chip in all workloads", todo=todo)
            )
        return next(iter(chips.values()))

    @cached_property
    def today(self) -> dict[str, float]:
        """The base chip's value of every axis."""
        chip = self.chip
        sizes, inner, outer = sizes_of(chip), *self._tiers()
        usual = {
            "compute": sizes.flops_per_s,
            "memory.bandwidth": sizes.memory_rate,
            "memory.capacity": sizes.capacity,
            "cache.capacity": sizes.cache,
            "scaleup.bandwidth": inner,
            "scaleout.bandwidth": outer,
            "scaleup.domain": float(self._first_tier_chips()),
            "host.bandwidth": _value(chip.host.bandwidth),
            "compute.fp8": _value(chip.peak.get("fp8")),
            "compute.fp4": _value(chip.peak.get("fp4")),
        }
        wiring = self._rows(0, 0, None).machines.topology
        numbers = {name: float(value) for name, value in usual.items()}
        return {
            **numbers,
            "scaleup.latency": float(wiring.start[0]),
            "scaleout.latency": float(wiring.scale_out_step[0]),
        }

    def _tiers(self) -> tuple[float, float]:
        tiers = max((own_values.system.tiers for entry in self.workloads for own_values in entry.scenarios), key=len)
        rates = [tier.need_bandwidth().value for tier in tiers[:2]]
        up = rates[0] if rates else _value(self.chip.scaleup.bandwidth)
        return up, rates[1] if len(rates) > 1 else _value(self.chip.scaleout.bandwidth)

    def _first_tier_chips(self) -> int:
        return max(
            own_values.system.tiers[0].chips if own_values.system.tiers else 1
            for entry in self.workloads
            for own_values in entry.scenarios
        )

    # -- values of designs ----------------------------------------------------------------------------------------

    def values(self, places: Index) -> dict[str, Array]:
        """Every axis's value of designs by their place in the grid, the last axis changing fastest."""
        shape = [len(axis.values) for axis in self.study.axes]
        indices = np.unravel_index(places, shape) if shape else ()
        return {axis.name: np.array(axis.values)[index] for axis, index in zip(self.study.axes, indices, strict=True)}

    def costs(self, values: Values, count: int) -> DesignCosts:
        """Area, power and money of designs."""
        sizes, ones = sizes_of(self.chip), np.ones(count)
        wide = values.get("compute", sizes.flops_per_s * ones)
        narrow = sum(
            (self._ratio(values, name, count) / self._ratio(values, "compute", count) for name in NARROW), 0.0 * ones
        )
        wide = wide * narrow / len(NARROW)  # a format made faster than the rest costs its share of the matrix units
        cost = chip_cost(
            ChipSizes(
                flops_per_s=wide,
                memory_rate=values.get("memory.bandwidth", sizes.memory_rate * ones),
                capacity=values.get("memory.capacity", sizes.capacity * ones),
                cache=values.get("cache.capacity", sizes.cache * ones),
                scale_up=values.get("scaleup.bandwidth", sizes.scale_up * ones),
                scale_out=values.get("scaleout.bandwidth", sizes.scale_out * ones),
            ),
            self.tech,
        )
        rated_power_w = rated_power(self.chip)
        power = cost.power_w * (rated_power_w.value / float(self.base_cost.power_w) if rated_power_w else 1.0)
        hour = self.tariff.usd_per_hour(replace(cost, power_w=power))
        return DesignCosts(
            area_mm2=cost.area_mm2, power_w=power, price_usd=cost.made_usd * self.tariff.margin, usd_per_hour=hour
        )

    def _ratio(self, values: Values, name: str, count: int) -> Array:
        usual = self._ratio(values, "compute", count) if name in NARROW else np.ones(count)
        return values[name] / self.today[name] if name in values and self.today.get(name) else usual

    def factors(self, values: Values, power_w: Array) -> dict[str, Array]:
        """Columns of `MachineRows` over today's."""
        count = len(power_w)
        compute = self._ratio(values, "compute", count)
        rated_power_w = rated_power(self.chip)
        power = power_w / rated_power_w.value if rated_power_w else np.ones(count)
        factors = {"exponentials": compute}
        for key in PEAKS:
            ratio = self._ratio(values, f"compute.{key}", count) if f"compute.{key}" in NARROW else compute
            factors |= {f"peak.{key}": ratio, f"density.{key}": ratio / power}
        for name, column in COLUMNS.items():
            if name in values:
                factors |= dict.fromkeys(column, self._ratio(values, name, count))
        return factors

    # -- prices ----------------------------------------------------------------------------------------------------

    @cached_property
    def _cache(self) -> dict[tuple[int, int, float | None], tuple[MachineRows, float] | None]:
        return {}

    def _priced_plan(self, place: int, plan: int, domain: float | None) -> tuple[MachineRows, float] | None:
        """Rows and the share of a chip's capacity that a plan needs; None where the plan cannot run at all."""
        key = (place, plan, domain)
        if key not in self._cache:
            scenario = self.workloads[place].scenarios[plan]
            scenario = scenario if domain is None else replace(scenario, system=with_domain(scenario.system, domain))
            if any(_not_memory(scenario)):
                self._cache[key] = None
            else:
                need = needed_bytes(scenario) / capacity_of(scenario)
                self._cache[key] = (MachineRows(scenario), need)
        return self._cache[key]

    def rows_that_fit(self, place: int, plan: int, domain: float | None, values: Values) -> MachineRows | None:
        """Rows of a plan of a workload, where it fits the memory of one design."""
        plan_prices = self._priced_plan(place, plan, domain)
        capacity = float(self._ratio(values, "memory.capacity", 1)[0])
        return plan_prices[0] if plan_prices is not None and capacity >= plan_prices[1] else None

    def fits(self, scenario: Scenario) -> bool:
        """Whether a scenario can run, and its memory suffices."""
        return not any(_not_memory(scenario)) and needed_bytes(scenario) <= capacity_of(scenario)

    def _rows(self, place: int, plan: int, domain: float | None) -> MachineRows:
        plan_prices = self._priced_plan(place, plan, domain)
        if plan_prices is None:
            scenario = self.workloads[place].scenarios[plan]
            raise InputError(tuple(check(scenario)))
        return plan_prices[0]

    def price(self, values: Values, costs: DesignCosts) -> PricedDesigns:
        """Every workload on every design, by its best plan."""
        count = len(costs.power_w)
        seconds, best = np.full((len(self.workloads), count), np.inf), np.zeros((len(self.workloads), count), np.int64)
        for domain, rows in _by_domain(values, count):
            own_values = {name: column[rows] for name, column in values.items()}
            factors = self.factors(own_values, costs.power_w[rows])
            capacity = self._ratio(own_values, "memory.capacity", len(rows))
            for place, workload in enumerate(self.workloads):
                for plan in range(len(workload.scenarios)):
                    plan_prices = self._priced_plan(place, plan, domain)
                    if plan_prices is None:
                        continue
                    times = np.where(
                        capacity >= plan_prices[1], plan_prices[0].times(factors, len(rows)).seconds, np.inf
                    )
                    better = times < seconds[place, rows]
                    seconds[place, rows] = np.where(better, times, seconds[place, rows])
                    best[place, rows] = np.where(better, plan, best[place, rows])
        return PricedDesigns(seconds=seconds, plan=best)

    def bound(self, factors: Mapping[str, Array], capacity: Array, domains: Sequence[float | None]) -> Array:
        """Seconds that no design of boxes takes less than: the least of all plans and domains at factors that are the
        best of each box, column by column."""
        count = len(capacity)
        least = np.full((len(self.workloads), count), np.inf)
        for domain in domains:
            for place, workload in enumerate(self.workloads):
                for plan in range(len(workload.scenarios)):
                    plan_prices = self._priced_plan(place, plan, domain)
                    if plan_prices is not None:
                        times = np.where(
                            capacity >= plan_prices[1],
                            plan_prices[0].times(factors, count).seconds * plan_prices[0].bound_slack,
                            np.inf,
                        )
                        least[place] = np.minimum(least[place], times)
        return least

    def relative(self, seconds: Array) -> Array:
        """Weighted geometric mean of seconds over the reference design's."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(seconds / self.reference_seconds[:, None])
        return np.asarray(np.exp((self.weights[:, None] * logs).sum(0)))

    @cached_property
    def reference_seconds(self) -> Array:
        """Seconds of every workload on the base chip as it is, by its best plan, whatever fits."""
        nothing: dict[str, Array] = {}
        costs = self.costs(nothing, 1)
        plan_prices = self.price(nothing, costs).seconds[:, 0]
        if not np.isfinite(plan_prices).all():
            names = ", ".join(
                entry.name for entry, value in zip(self.workloads, plan_prices, strict=True) if value == np.inf
            )
            raise InputError(
                Problem(
                    path="workload", given=f"{names} with no plan that fits {self.chip.id}", expected="one that fits"
                )
            )
        return plan_prices

    def detail(self, place: int, plan: int, domain: float | None, factors: Mapping[str, Array]) -> RowTimes:
        """Times with their parts of one plan of one workload."""
        return self._rows(place, plan, domain).times(factors, len(next(iter(factors.values()))))

    def scenario(self, place: int, plan: int) -> Scenario:
        """One scenario of the study."""
        return self.workloads[place].scenarios[plan]


NARROW = ("compute.fp8", "compute.fp4")
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "memory.bandwidth": ("memory",),
        "scaleup.bandwidth": ("scale_up",),
        "scaleout.bandwidth": ("scale_out",),
        "scaleup.latency": ("start", "hop"),
        "scaleout.latency": ("scale_out_step",),
        "host.bandwidth": ("host",),
    }
)
"""Columns of `MachineRows` that an axis moves in proportion; `compute` moves all formats, `cache.capacity` none."""
LARGER_IS_SLOWER = frozenset(("start", "hop", "scale_out_step"))


def _not_memory(scenario: Scenario) -> Iterator[Problem]:
    """Reasons why a scenario cannot run at all, whatever its memory holds."""
    return (problem for problem in check(scenario) if problem.path not in ("memory", "plan.memory"))


def _value(number: Quoted | None) -> float:
    return number.value if number else 0.0


def _by_domain(values: Values, count: int) -> list[tuple[float | None, Index]]:
    """Designs by their scale-up domain; None where the study does not vary it."""
    if "scaleup.domain" not in values:
        return [(None, np.arange(count))]
    column = values["scaleup.domain"]
    return [(float(domain), np.flatnonzero(column == domain)) for domain in np.unique(column)]


def with_domain(system: System, domain: float) -> System:
    """A system whose innermost domain joins so many of its chips; tiers that then join no more fall away."""
    if not system.tiers:
        return system
    size = int(max(1, min(domain, system.chips)))
    while system.chips % size:
        size -= 1
    note = Quoted(value=float(size), evidence=Evidence.ASSUMED, source="the study")
    inner = replace(system.tiers[0], chips=int(note.value))
    outer = tuple(tier for tier in system.tiers[1:] if tier.chips > size)
    if not outer and size < system.chips:
        outer = (
            replace(system.tiers[0], name="scale-out", chips=system.chips, bandwidth=system.chip.scaleout.bandwidth),
        )
    return replace(system, tiers=(inner, *outer) if size > 1 else outer)
