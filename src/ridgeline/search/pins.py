"""Turn what a user wants of the plan into pins: for each axis of the search the choices that are left.

tp = 8                              pinned
tp = [4, 8]      "4,8"              one of these
tp = "2..8"                         bounded: what the search would try in that range, and powers of two
schedule = "interleaved"            a name stands for all choices of that name; a table for exactly one
schedule.chunks = "2..4"            a key below keeps the choices that agree with it
recompute.parts = "norm+mlp"        parts that are recomputed together
placement = [20, 21, 21, 18]        layers of each virtual stage: one placement, so pp x chunks is as many
overlap.tp = [true, false]          switches are pinned by their own keys

The same keys, values and messages as under [plan] of a scenario file, except that a list means "one of".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import Problem, not_among
from ridgeline.core.table import decode_into, keys
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.plan import Plan, Recompute, Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import parse_value
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.search.space import MOST_CHUNKS, Pins, powers_of_two, space_of

RANGE = re.compile(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*")
MOST_CHOICES = 64  # of one key
COUNTS = ("tp", "cp", "pp", "dp", "ep", "etp", "microbatch", "shard_degree")
SWITCHES = tuple(item.name for item in fields(Switches))
TABLES = ("schedule", "recompute", "offload", "precision")  # axes whose choices are tables themselves
KEYS = tuple(keys(Plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of the plan, before a model and a system are known: key of [plan] -> the values given for it.

    A key below a table is dotted: `schedule.chunks`. `source` says where a key was written.
    """

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    source: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines to search, each a space of its own; empty: as the scenario says."""
        return tuple(dict.fromkeys(ENGINES[str(id)].id for id in self.values.get("engine", ())))


def wanted(table: Mapping[str, Any], source: str = "--set", problems: list[Problem] | None = None) -> Wanted:
    """The values of a [space] table, or of `plan.` settings as a table; problems are appended to the caller's list.

    >>> wanted({"tp": "4,8", "schedule": {"chunks": 2}}).values
    {'tp': (4, 8), 'schedule.chunks': (2,)}
    """
    found: dict[str, tuple[Any, ...]] = {}
    problems = [] if problems is None else problems
    for key, value in table.items():
        if key not in KEYS:
            problems.append(_unknown(key, source))
        elif isinstance(value, Mapping) and key in (*TABLES, "overlap") and not _whole(key, value):
            found |= {f"{key}.{part}": _listed(inner) for part, inner in value.items()}
        else:
            found[key] = (value,) if key == "placement" else _listed(value)
    for key, values in found.items():
        if not 1 <= len(values) <= MOST_CHOICES:
            expected = f"1 to {MOST_CHOICES} choices"
            problems.append(
                Problem(path=f"plan.{key}", given=f"{len(values)} choices", expected=expected, where=source)
            )
    unknown = [id for id in found.get("engine", ()) if not isinstance(id, str) or id not in ENGINES]
    problems += [replace(not_among("plan.engine", str(id), ENGINES), where=source) for id in unknown]
    return Wanted(values=found, source=dict.fromkeys(found, source))


def settings_table(settings: Iterable[str], problems: list[Problem]) -> tuple[dict[str, Any], list[str]]:
    """`plan.` settings as a table of wishes, and the settings that are not about the plan."""
    table: dict[str, Any] = {}
    rest: list[str] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        parts = [part.strip() for part in path.split(".")]
        if parts[0] != "plan" or not equals:
            rest.append(setting)
            continue
        if not 2 <= len(parts) <= 3 or not all(parts):
            expected = "plan.key=value or plan.key.part=value"
            problems.append(Problem(path="--set", given=repr(setting), expected=expected, todo="for example plan.tp=8"))
            continue
        if len(parts) == 2:
            table[parts[1]] = parse_value(text)
        else:
            below = table.get(parts[1])
            table[parts[1]] = {**(below if isinstance(below, Mapping) else {}), parts[2]: parse_value(text)}
    return table, rest


def joined(first: Wanted, second: Wanted) -> Wanted:
    """Both; the second wins, and replaces everything said below a key it gives."""
    heads = {key.split(".")[0] for key in second.values if "." not in key}
    kept = {key: values for key, values in first.values.items() if key.split(".")[0] not in heads}
    return Wanted(values={**kept, **second.values}, source={**first.source, **second.source})


def pins_of(wish: Wanted, scenario: Scenario, problems: list[Problem]) -> Pins:
    """The pins of a scenario's search; wrong values become problems as a scenario file would report them.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> base, _ = assemble({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}})
    >>> pins_of(wanted({"tp": "2..4", "shard": ["zero1"]}), base, [])
    {'tp': (2, 4), 'shard': ('zero1',)}
    """
    space = space_of(scenario)
    pins: dict[str, tuple[Any, ...]] = {}
    switches: tuple[Switches, ...] = space.switches
    for key, values in wish.values.items():
        head, _, part = key.partition(".")
        before = len(problems)
        if head in COUNTS:
            tried = () if head == "dp" else getattr(space, head)
            pins[head] = _counts(head, values, tried, scenario, problems)
        elif head == "placement":
            pins[head] = (_placement(values[0], scenario, problems),)
        elif key == "recompute.parts":
            pins[head] = tuple(_parts(value, problems) for value in values)
        elif head == "shard":
            pins[head] = tuple(dict.fromkeys(_decoded(head, value, problems).sharding.shard for value in values))
        elif head in TABLES:
            base = pins.get(head, getattr(space, head))
            pins[head] = _agreeing(head, part, values, base, problems) if part else _named(head, values, base, problems)
        elif head in SWITCHES:
            switches = _switched(key, values, switches, problems)
            pins["switches"] = switches
        problems[before:] = [replace(problem, where=wish.source.get(key, "")) for problem in problems[before:]]
    return pins


def _whole(key: str, value: Mapping[str, Any]) -> bool:
    """Whether a table says enough to be one choice: a schedule with name and chunks, a recompute with its kind."""
    least = {"schedule": {"name", "chunks"}, "recompute": {"kind"}, "precision": {"name"}, "offload": set[str]()}
    lists = any(isinstance(part, (list, str)) and (isinstance(part, list) or _range(part)) for part in value.values())
    return key in least and least[key] <= set(value) and (key == "recompute" or not lists)


def _listed(value: Any) -> tuple[Any, ...]:
    """One value or several: a list, or words with commas between them."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, str) and "," in value:
        return tuple(parse_value(part) for part in value.split(",") if part.strip())
    return (value,)


def _unknown(key: str, source: str) -> Problem:
    return replace(not_among(f"plan.{key}", str(key), KEYS, "remove it"), where=source)


def _decoded(key: str, value: Any, problems: list[Problem]) -> Plan:
    """A plan with this one key, decoded as a scenario file's; the default plan where that cannot be."""
    return decode_into(Plan, {key: value}, "plan", problems) or Plan()


def _range(value: Any) -> tuple[int, int] | None:
    match = RANGE.fullmatch(value) if isinstance(value, str) else None
    return (int(match[1]), int(match[2])) if match else None


def _counts(
    key: str, values: Sequence[Any], tried: Iterable[int], scenario: Scenario, problems: list[Problem]
) -> tuple[int, ...]:
    found: list[int] = []
    for value in values:
        bounds = _range(value)
        if bounds is None:
            found.append(_count(key, value, problems))
            continue
        low, high = bounds
        inside = {size for size in (*tried, *powers_of_two(scenario.system.chips)) if low <= size <= high}
        if not inside:
            given, expected = f"{low}..{high}", f"a range with a choice in it; tried otherwise: {_words(tried)}"
            problems.append(Problem(path=f"plan.{key}", given=given, expected=expected, todo="widen it"))
        found += sorted(inside)
    return tuple(dict.fromkeys(found))


def _count(key: str, value: Any, problems: list[Problem]) -> int:
    """One degree; a shard degree of 0 or "all" means all data-parallel ranks."""
    if key == "shard_degree" and value in (0, "all"):
        return 0
    plan = _decoded(key, value, problems)
    if key == "microbatch":
        return plan.microbatch
    return plan.sharding.shard_degree or 0 if key == "shard_degree" else getattr(plan.mesh, key)


def _placement(value: Any, scenario: Scenario, problems: list[Problem]) -> tuple[int, ...]:
    """Layers of each virtual stage; they sum to the model's."""
    before = len(problems)
    found: tuple[int, ...] = _decoded("placement", value, problems).placement
    layers = scenario.model.layers
    if len(problems) == before and sum(found) != layers:
        expected = f"layers of each virtual stage that sum to the {layers} of {scenario.model.id}"
        problems.append(
            Problem(path="plan.placement", given=f"{len(found)} numbers, {sum(found)} layers", expected=expected)
        )
    return found


def _parts(value: Any, problems: list[Problem]) -> Recompute:
    """Parts that are recomputed together, as `norm+mlp` or a list."""
    parts = [part.strip() for part in value.split("+")] if isinstance(value, str) else value
    made: Recompute = _decoded("recompute", {"kind": "selective", "parts": parts}, problems).recompute
    return made


def _words(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "any"


def _named(key: str, values: Sequence[Any], tried: Sequence[Any], problems: list[Problem]) -> tuple[Any, ...]:
    """Choices of a table: a name stands for all that are tried under it, anything else for itself."""
    found: list[Any] = []
    for value in values:
        made = getattr(_decoded(key, value, problems), key)
        if key == "schedule" and made.name not in SCHEDULES:
            problems.append(not_among("plan.schedule.name", made.name, SCHEDULES))
            continue
        alike = [choice for choice in _all(key, made, tried) if isinstance(value, str) and _name(choice) == _name(made)]
        found += alike if alike and key in ("schedule", "recompute") else [made]
    return tuple(_distinct(found))


def _distinct(choices: Iterable[Any]) -> list[Any]:
    """The choices without repetition; a choice may hold a mapping, so equality decides."""
    kept: list[Any] = []
    for choice in choices:
        if choice not in kept:
            kept.append(choice)
    return kept


def _all(key: str, made: Any, tried: Sequence[Any]) -> Sequence[Any]:
    """What is tried under a name: the search's own choices, or every number of chunks a schedule takes."""
    if key != "schedule" or any(_name(choice) == made.name for choice in tried):
        return tried
    kind = SCHEDULES[made.name]
    chunks = range(kind.fewest_chunks, (kind.most_chunks or MOST_CHUNKS) + 1)
    return [Schedule(name=made.name, chunks=count) for count in chunks]


def _name(choice: Any) -> str:
    return str(choice.name if isinstance(choice, Schedule) else getattr(choice, "kind", ""))


def _agreeing(
    key: str, part: str, values: Sequence[Any], tried: Sequence[Any], problems: list[Problem]
) -> tuple[Any, ...]:
    """Choices that agree with a key below the table; where none does, the choices with that key changed."""
    ranges: list[tuple[int, int]] = []
    made: list[Any] = []
    for value in values:
        bounds = _range(value) if part == "chunks" else None
        if bounds is not None:
            ranges.append(bounds)
            continue
        before = len(problems)
        plan = _decoded(key, _table(key, part, value), problems)
        if len(problems) > before:
            return tuple(tried)
        made.append(getattr(getattr(plan, key), part, None))

    def agrees(given: Any) -> bool:
        return given in made or any(low <= given <= high for low, high in ranges)

    if (key, part) == ("recompute", "layers"):
        tried = [choice for choice in tried if choice.kind != "none"]
    alike = [choice for choice in tried if agrees(getattr(choice, part))]
    if alike or not made:
        if not alike:
            given = ", ".join(map(str, values))
            problems.append(Problem(path=f"plan.{key}.{part}", given=given, expected="a range with a choice in it"))
        return tuple(alike)
    return tuple(_distinct(replace(choice, **{part: value}) for choice, value in product(tried, made)))


def _table(key: str, part: str, value: Any) -> dict[str, Any]:
    """A table with one key, and what it needs beside it to be decoded."""
    return {"name": "interleaved", part: value} if (key, part) == ("schedule", "chunks") else {part: value}


def _switched(
    key: str, values: Sequence[Any], switches: Sequence[Switches], problems: list[Problem]
) -> tuple[Switches, ...]:
    """Every set of switches with each of the values in place of what it has."""
    head, _, part = key.partition(".")
    found: list[Switches] = []
    for value in values:
        made = _decoded(head, {part: value} if part else value, problems).switches
        for base in switches:
            new = {**base.overlap, **made.overlap} if head == "overlap" else getattr(made, head)
            changed: dict[str, Any] = {head: new}
            found.append(replace(base, **changed))
    return tuple(_distinct(found))
