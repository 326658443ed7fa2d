"""Turn a scenario into the list of what its machine's speed follows from: every rate and every time that a step reads.

    rate   bytes/s, FLOP/s, watts: more of it is never slower
    time   latencies of links, launches and kernels: less of it is never slower

Each says where its value comes from, which columns of `sim.MachineRows` it moves, and how to change it in a System.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.cost import PARAMETERS, SERVING_PARAMETERS, owners
from ridgeline.design.sensitivity import Group, Kind
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.system import System, Tier
from ridgeline.plan.scenario import is_training
from ridgeline.sim.batches import MachineRows

MODELLED = "fitted to measured collectives and kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineParameter:
    """One number of a machine.

    columns   columns of `MachineRows` that it moves, each with the power in which it does: 1 with it, -1 against it
    """

    parameter: str
    title: str
    kind: Kind
    group: Group
    unit: str
    value: float
    evidence: Evidence
    source: str
    columns: Mapping[str, int]

    def factors(self, values: Array) -> dict[str, Array]:
        """Factors of the columns where the parameter is so many times its value."""
        return {name: values if power == 1 else 1 / values for name, power in self.columns.items()}


def machine_parameters(rows: MachineRows) -> tuple[MachineParameter, ...]:
    """Every number of the machine that times of a scenario follow from, those of the chip first."""
    system = rows.scenario.system
    return (
        *_chip_parameters(system.chip, rows.formats),
        *_link_parameters(system),
        *_latency_parameters(rows),
        *_software_parameters(rows),
    )


def _parameter_of(number: Quoted, **given: object) -> MachineParameter:
    return MachineParameter(value=number.value, evidence=number.evidence, source=number.source, **given)  # type: ignore[arg-type]


def _chip_parameters(chip: Chip, formats: frozenset[str]) -> Iterator[MachineParameter]:
    exponential = chip.exponentials or chip.vector
    used = [
        key for key in chip.peak if key in formats or (key == "fp16" and "bf16" in formats and "bf16" not in chip.peak)
    ]
    for key in used:
        column = "bf16" if key == "fp16" and "bf16" not in chip.peak else key
        columns = {f"peak.{column}": 1, f"density.{column}": 1}
        if exponential is None and column == "bf16":
            columns["exponentials"] = 1
        path, title = f"chip.peak.{key}", f"{key} compute"
        yield _parameter_of(
            chip.peak[key], parameter=path, title=title, kind="rate", group="chip", unit="FLOP/s", columns=columns
        )
    if exponential is not None:
        path = "chip.exponentials" if chip.exponentials else "chip.vector"
        unit, title = ("Hz", "exponentials of softmax") if chip.exponentials else ("FLOP/s", "vector units (softmax)")
        columns = {"exponentials": 1}
        yield _parameter_of(
            exponential, parameter=path, title=title, kind="rate", group="chip", unit=unit, columns=columns
        )
    memory = chip.need("hbm.bandwidth")
    path, title = "chip.hbm.bandwidth", "memory bandwidth"
    yield _parameter_of(
        memory, parameter=path, title=title, kind="rate", group="chip", unit="B/s", columns={"memory": 1}
    )
    power = rated_power(chip)
    if power is not None:
        title = "rated power (what clocks under load may draw)"
        yield _parameter_of(
            power, parameter="chip.tdp", title=title, kind="rate", group="chip", unit="W", columns={"density": -1}
        )
    if chip.host.bandwidth is not None:
        path, title = "chip.host.bandwidth", "link to the host"
        number = chip.host.bandwidth
        yield _parameter_of(
            number, parameter=path, title=title, kind="rate", group="chip", unit="B/s", columns={"host": 1}
        )


def _link_parameters(system: System) -> Iterator[MachineParameter]:
    tiers = system.tiers
    beyond = min(tiers[2:], key=lambda tier: tier.need_bandwidth().value, default=None)
    for place, tier in enumerate(tiers):
        columns = {"scale_up": 1} if place == 0 else {"scale_out": 1} if place == 1 else {"top": 1}
        if place == 0 and len(tiers) == 1:
            columns["scale_out"] = 1
        if place == 1 and beyond is not None:
            columns["top"] = -1
        if place > 1 and tier is not beyond:
            continue
        yield _parameter_of(
            tier.need_bandwidth(),
            parameter=f"system.tier.{tier.name}.bandwidth",
            title=f"{tier.name} links, one way a chip",
            kind="rate",
            group="network",
            unit="B/s",
            columns=columns,
        )


def _latency_parameters(rows: MachineRows) -> Iterator[MachineParameter]:
    tiers, wiring = rows.scenario.system.tiers, rows.machines.topology
    if not tiers:
        return
    start, step = float(wiring.start[0]), float(wiring.scale_out_step[0])
    inner = tiers[0]
    yield _latency(f"system.tier.{inner.name}.latency", "start of a collective", inner.latency, start, "start")
    yield _latency("model.hop", f"one hop inside a {inner.name} domain", None, float(wiring.hop_s), "hop")
    yield _latency("model.switch_sum", "a switch that adds up", None, float(wiring.switch_s), "switch_step")
    if len(tiers) > 1:
        outer = tiers[1]
        path, title = f"system.tier.{outer.name}.latency", f"one hop over {outer.name}"
        yield _latency(path, title, outer.latency, step, "scale_out_step")


def _latency(path: str, title: str, number: Quoted | None, usual: float, column: str) -> MachineParameter:
    known_number = number or Quoted(value=usual, evidence=Evidence.FITTED, source=MODELLED)
    return _parameter_of(
        known_number, parameter=path, title=title, kind="time", group="network", unit="s", columns={column: 1}
    )


TRAINING = {
    "kernel": "gap around each kernel",
    "host": "host issues a kernel",
    "wait": "host learns of an expert's tokens",
    "meet": "ranks wait for the last at a collective",
    "fixed": "a step's fixed cost",
}
SERVING = {
    "kernel": "gap around each kernel",
    "issue": "host issues a kernel",
    "step": "host between two steps",
    "request": "host for each request of a step",
    "all_reduce": "latency of a collective in a step",
}


def _software_parameters(rows: MachineRows) -> Iterator[MachineParameter]:
    scenario, fitted_grade = rows.scenario, Evidence.FITTED
    owner_names = owners(scenario.system.chip, scenario.engine)
    floor = Quoted(value=rows.machines.floor_s, evidence=fitted_grade, source=MODELLED)
    yield _parameter_of(
        floor,
        parameter="model.kernel_floor",
        title="a kernel that does next to nothing",
        kind="time",
        group="software",
        unit="s",
        columns={"floor": 1},
    )
    trains = is_training(scenario)
    room, source = ("training", rows.calibration.source) if trains else ("serving", rows.serving.source)
    for name, title in (TRAINING if trains else SERVING).items():
        value = (
            rows.calibration.owner_value(name, owner_names) if trains else rows.serving.owner_value(name, owner_names)
        )
        number = Quoted(value=value, evidence=fitted_grade, source=source)
        group: Group = "network" if name in ("meet", "all_reduce") else "software"
        unit = (PARAMETERS if trains else SERVING_PARAMETERS)[name].unit
        path, columns = f"{room}.{name}", {f"{room}.{name}": 1}
        yield _parameter_of(number, parameter=path, title=title, kind="time", group=group, unit=unit, columns=columns)


def scaled_system(system: System, parameter: str, factor: float) -> System:
    """The system with one number of its chip or tiers so many times what it is; `KeyError` for a number of the model.

    >>> from ridgeline.hardware.load import system
    >>> scaled_system(system("8xh100-sxm"), "chip.hbm.bandwidth", 2.0).chip.hbm.bandwidth.value
    6700000000000.0
    """
    head, *path = parameter.split(".")
    if head == "chip":
        return replace(system, chip=_scaled_chip(system.chip, path, factor))
    if head != "system" or path[0] != "tier":
        raise KeyError(parameter)
    name, key = ".".join(path[1:-1]), path[-1]
    return replace(
        system, tiers=tuple(_scaled_tier(tier, key, factor) if tier.name == name else tier for tier in system.tiers)
    )


def _scaled_tier(tier: Tier, key: str, factor: float) -> Tier:
    number = tier.bandwidth if key == "bandwidth" else tier.latency
    if number is None:
        raise KeyError(f"tier.{tier.name}.{key}")
    scaled_number = scale_number(number, factor)
    return replace(tier, bandwidth=scaled_number) if key == "bandwidth" else replace(tier, latency=scaled_number)


def scale_number(number: Quoted, factor: float) -> Quoted:
    """A quoted number times a factor."""
    return replace(number, value=number.value * factor)


def _scaled_chip(chip: Chip, path: list[str], factor: float) -> Chip:
    """A chip by way of its table of fields, so that any number in it can be scaled."""
    values = {entry.name: getattr(chip, entry.name) for entry in fields(chip)}
    head = path[0]
    if head == "tdp":
        values["tdp"] = rated_power(chip)
    if len(path) == 1:
        return Chip(**{**values, head: scale_number(values[head], factor)})
    part = values[head]
    if isinstance(part, Mapping):
        scaled_number = {
            key: scale_number(number, factor) if key == path[1] else number for key, number in part.items()
        }
        return Chip(**{**values, head: MappingProxyType(scaled_number)})
    inner = {entry.name: getattr(part, entry.name) for entry in fields(part)}
    return Chip(**{**values, head: type(part)(**{**inner, path[1]: scale_number(inner[path[1]], factor)})})


def factor_rows(parameters: tuple[MachineParameter, ...], values: Array) -> dict[str, Array]:
    """Factors of columns of a matrix of parameter values, rows by parameters: several may move one column."""
    factors: dict[str, Array] = {}
    for place, parameter in enumerate(parameters):
        for name, column in parameter.factors(np.ascontiguousarray(values[:, place])).items():
            factors[name] = factors[name] * column if name in factors else column
    return factors
