"""Turn a study file into a DesignStudy: workloads with their plans, the ranges of a machine's numbers, budgets, money.

title = "What should the chip after the H100 be?"
objective = "cost"                          # cost | time: what `best` means; the frontier is of both

[[workload]]                                # a mix, by weight
name = "pretrain"
scenario = "llama3-70b-64xh100.toml"        # a file beside the study, or a table
weight = 0.5
plans = [{ tp = 4 }, { recompute = "none" }]  # beside the scenario's own; or plans = "search"

[space]                                     # ranges: a list of values, or from, to and how many, evenly in logarithms
compute = { from = "500 TFLOP/s", to = "4 PFLOP/s", points = 12 }
"memory.bandwidth" = ["2 TB/s", "4 TB/s", "8 TB/s"]

[budget]                                    # of one chip: area, power, price
area = 1600
power = "1 kW"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import toml_text
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.evidence import Quoted
from ridgeline.core.files import INSIDE, path_within, read_table, read_text
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, decode
from ridgeline.core.units import parse_quantity
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import parse_value, read_scenario
from ridgeline.plan.scenario_file import scenario as scenario_of

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "FLOP/s",
        "compute.fp8": "FLOP/s",
        "compute.fp4": "FLOP/s",
        "memory.bandwidth": "B/s",
        "memory.capacity": "B",
        "cache.capacity": "B",
        "scaleup.bandwidth": "B/s",
        "scaleup.domain": "",
        "scaleup.latency": "s",
        "scaleout.bandwidth": "B/s",
        "scaleout.latency": "s",
        "host.bandwidth": "B/s",
    }
)
"""Numbers of a machine that a study may vary, with their units."""
BUDGETS: Mapping[str, str] = MappingProxyType({"area": "", "power": "W", "price": "", "usd_per_hour": ""})
MOST_POINTS = 4_000_000
MOST_VALUES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTable:
    """Values between two ends, evenly in logarithms."""

    from_: str
    to: str
    points: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEntry:
    """One workload of the mix as written."""

    name: str
    scenario: Annotated[object, Doc("a scenario file beside the study, or a table")]
    weight: Annotated[float, AtLeast(0)] = 1.0
    plans: Annotated[object, Doc("plans beside the scenario's own, as tables; or search")] = ()


def nothing() -> JsonMapping:
    """An empty table."""
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """A study file as written."""

    name: str = ""
    title: str = ""
    notes: str = ""
    objective: Literal["cost", "time"] = "cost"
    workload: tuple[StudyEntry, ...] = ()
    space: Annotated[Mapping[str, object], Doc("ranges of a machine's numbers")] = field(default_factory=nothing)
    budget: Annotated[Mapping[str, object], Doc("area in mm2, power, price in USD, usd_per_hour: of one chip")] = field(
        default_factory=nothing
    )
    node: Annotated[str, Doc("n7, n4 or n3: the process of the chip")] = "n4"
    technology: Mapping[str, Quoted] = field(default_factory=nothing)
    chip: Annotated[object, Doc("a new chip by eight fields, in the place of the scenarios'")] = None
    architectures: Annotated[object, Doc("a search of models; see architectures")] = None
    uncertainty: Mapping[str, float] = field(default_factory=nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWorkload:
    """One workload of the mix: its scenarios differ in their plan alone, the first being the one that was written."""

    name: str
    weight: float
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignAxis:
    """One varied number: its name, unit and values, rising."""

    name: str
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignStudy:
    """A study, read.

    source_text   what it was read from, for its hash: the study and every scenario
    """

    name: str
    title: str
    objective: str
    workloads: tuple[StudyWorkload, ...]
    axes: tuple[DesignAxis, ...]
    budgets: Mapping[str, float]
    node: str
    technology: Mapping[str, Quoted]
    chip: JsonMapping | None
    architectures: JsonMapping | None
    uncertainty: Mapping[str, float]
    folder: Path
    source_text: str

    @property
    def points(self) -> int:
        """Designs of the space."""
        return int(np.prod([len(axis.values) for axis in self.axes], dtype=np.int64)) if self.axes else 1

    @property
    def inputs_hash(self) -> str:
        """Of everything that was read."""
        return sha256(self.source_text.encode()).hexdigest()[:16]


def read_study(path: Path | str, settings: Sequence[str] = ()) -> DesignStudy:
    """The study in a file, or an `InputError` with everything wrong in it."""
    file = Path(path)
    table = read_table(file)
    data: JsonObject = dict(table.data)
    _apply_settings(data, settings)
    return study_of(data, folder=file.parent, name=file.stem)


def _apply_settings(data: JsonObject, settings: Sequence[str]) -> None:
    """Write `key.path=value` into a study's table; a dotted name of the space is one key."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        head, *below_keys = path.strip().split(".")
        if not equals or head not in StudyTable.__slots__:
            known_keys = ", ".join(StudyTable.__slots__)
            raise InputError(
                Problem(path="--set", given=repr(setting)[:80], expected=f"KEY=VALUE, KEY of {known_keys}")
            )
        if not below_keys:
            data[head] = parse_value(text)
            continue
        below = data.get(head)
        if isinstance(below, list):
            raise InputError(Problem(path="--set", given=repr(setting)[:80], expected="a key that is no list"))
        data[head] = {**(below if isinstance(below, dict) else {}), ".".join(below_keys): parse_value(text)}


def study_of(data: JsonMapping, folder: Path = Path(), name: str = "study") -> DesignStudy:
    """The study that a table means; files in it are beside `folder`."""
    read = decode(StudyTable, data)
    workloads = tuple(_workload(entry, place, folder) for place, entry in enumerate(read.workload))
    if not workloads and read.architectures is None:
        raise InputError(Problem(path="workload", given="nothing", expected="at least one [[workload]]"))
    total = sum(entry.weight for entry in workloads)
    if workloads and total <= 0:
        raise InputError(Problem(path="workload.weight", given="0 in all", expected="weights above 0"))
    axes = tuple(_axis(key, value) for key, value in read.space.items())
    study = DesignStudy(
        name=read.name or name,
        title=read.title or read.name or name,
        objective=read.objective,
        workloads=tuple(replace(entry, weight=entry.weight / total) for entry in workloads),
        axes=axes,
        budgets=MappingProxyType(dict(_budgets(read.budget))),
        node=read.node,
        technology=read.technology,
        chip=_table_or_none("chip", read.chip),
        architectures=_table_or_none("architectures", read.architectures),
        uncertainty=read.uncertainty,
        folder=folder,
        source_text=_source_text(data, folder),
    )
    if study.points > MOST_POINTS:
        todo = "take fewer values for a number, or vary fewer numbers"
        raise InputError(
            Problem(path="space", given=f"{study.points:,} designs", expected=f"at most {MOST_POINTS:,}", todo=todo)
        )
    return study


def _table_or_none(path: str, value: object) -> JsonMapping | None:
    if value is None or isinstance(value, Mapping):
        return value
    raise InputError(Problem(path=path, given=repr(value)[:60], expected="a table"))


def _source_text(data: JsonMapping, folder: Path) -> str:
    """The study and the files it names, as one text."""
    texts = [toml_text({key: value for key, value in data.items() if not isinstance(value, list)}), repr(data)]
    for entry in data.get("workload", ()):
        if isinstance(entry, Mapping) and isinstance(entry.get("scenario"), str):
            file = path_within(folder, entry["scenario"])
            texts.append(read_text(file) if file is not None and file.is_file() else "")
    return "\n".join(texts)


def _workload(entry: StudyEntry, place: int, folder: Path) -> StudyWorkload:
    path = f"workload[{place}]"
    if isinstance(entry.scenario, str):
        written_scenario = read_scenario(_scenario_file(entry.scenario, folder, path))
    elif isinstance(entry.scenario, Mapping):
        written_scenario = scenario_of(entry.scenario, folder=folder)
    else:
        raise InputError(
            Problem(path=f"{path}.scenario", given=repr(entry.scenario)[:60], expected="a file or a table")
        )
    if entry.plans == "search":
        from ridgeline.design.plan_lists import searched_plans

        return StudyWorkload(name=entry.name, weight=entry.weight, scenarios=searched_plans(written_scenario))
    if not isinstance(entry.plans, (list, tuple)) or not all(isinstance(plan, Mapping) for plan in entry.plans):
        raise InputError(Problem(path=f"{path}.plans", given=repr(entry.plans)[:60], expected="tables, or search"))
    other_scenarios = [_with_plan(entry.scenario, plan, folder) for plan in entry.plans]
    return StudyWorkload(name=entry.name, weight=entry.weight, scenarios=(written_scenario, *other_scenarios))


def _scenario_file(name: str, folder: Path, path: str) -> Path:
    """The scenario file that a study names: beside it or below, never outside its folder."""
    file = path_within(folder, name)
    if file is None:
        raise InputError(Problem(path=f"{path}.scenario", given=repr(name)[:60], expected=INSIDE, todo="copy it there"))
    return file


def _with_plan(given: object, plan: Mapping[str, object], folder: Path) -> Scenario:
    """The scenario with some keys of its plan changed."""
    settings = [f"plan.{key}={_setting_value(value)}" for key, value in plan.items()]
    if isinstance(given, str):
        return read_scenario(_scenario_file(given, folder, "workload"), settings)
    assert isinstance(given, Mapping)
    return scenario_of(given, settings, folder)


def _setting_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_setting_value(part)}" for key, part in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _axis(name: str, value: object) -> DesignAxis:
    if name not in UNITS:
        raise InputError(not_among(f"space.{name}", name, tuple(UNITS), "remove it"))
    unit, path = UNITS[name], f"space.{name}"
    if isinstance(value, Mapping):
        ends = decode(
            RangeTable, {("from_" if key == "from" else key): _text(part) for key, part in value.items()}, path
        )
        low, high = _number(ends.from_, unit, path), _number(ends.to, unit, path)
        if not 0 < low <= high or ends.points > MOST_VALUES:
            expectation = f"0 < from <= to, at most {MOST_VALUES} points"
            raise InputError(
                Problem(path=path, given=f"{ends.from_} to {ends.to}, {ends.points}", expected=expectation)
            )
        values: Array = np.geomspace(low, high, ends.points)
        return DesignAxis(name=name, unit=unit, values=_round_values(name, values.tolist()))
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MOST_VALUES:
        raise InputError(
            Problem(path=path, given=repr(value)[:60], expected="a list of values, or from, to and points")
        )
    return DesignAxis(name=name, unit=unit, values=_round_values(name, [_number(item, unit, path) for item in value]))


def _text(value: object) -> object:
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _round_values(name: str, values: Iterable[float]) -> tuple[float, ...]:
    is_whole = name == "scaleup.domain"
    return tuple(sorted({float(round(value)) if is_whole else value for value in values}))


def _number(value: object, unit: str, path: str) -> float:
    """A quantity as a string with its unit, or a plain count; what is wrong with it is told with its place."""
    try:
        number = parse_quantity(value, unit) if isinstance(value, str) and unit else float(str(value))
    except (InputError, ValueError):
        expectation = f"a quantity{unit and ' in '}{unit}"
        raise InputError(Problem(path=path, given=repr(value)[:60], expected=expectation)) from None
    if not 0 < number < float("inf"):
        raise InputError(Problem(path=path, given=repr(value)[:60], expected="a number above 0"))
    return number


def _budgets(table: Mapping[str, object]) -> Iterable[tuple[str, float]]:
    for name, value in table.items():
        if name not in BUDGETS:
            raise InputError(not_among(f"budget.{name}", name, tuple(BUDGETS), "remove it"))
        yield name, _number(value, BUDGETS[name], f"budget.{name}")
